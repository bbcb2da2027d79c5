from hypothesis import given
from hypothesis import strategies as st

from collect.spool import Spool

parts = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 5), st.text()))


@given(parts)
def test_parts_come_back_by_group_and_trajectory_in_the_order_of_their_coming(
    added: list[tuple[str, str, int, str]],
) -> None:
    expected: dict[str, dict[str, list[str]]] = {}
    lengths: dict[tuple[str, str], int] = {}
    with Spool() as spool:
        for group, trajectory, steps, content in added:
            spool.add(group, trajectory, steps, content)
            expected.setdefault(group, {}).setdefault(trajectory, []).append(content)
            lengths[group, trajectory] = lengths.get((group, trajectory), 0) + steps
        found = list(spool.groups())
        assert found == [(group, list(trajectories.items())) for group, trajectories in expected.items()]
        sizes = [len(trajectories) for trajectories in expected.values()]
        assert spool.sizes() == {size: sizes.count(size) for size in sizes}
        assert spool.longest() == max(lengths.values(), default=0)
