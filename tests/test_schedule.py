"""Which games an iteration plays."""

from collections import Counter
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from synthetic import make_game

from train.schedule import Schedule


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 5))
def test_every_game_is_visited_once_a_pass_under_an_id_of_its_own(count: int, groups: int, seed: int) -> None:
    games = [make_game(number) for number in range(count)]
    schedule = Schedule(games, groups, seed)
    tasks = [task for iteration in range(1, count + 1) for task in schedule.tasks(iteration)]

    assert len({task.group_id for task in tasks}) == len(tasks) == count * groups
    assert Counter(task.game.id for task in tasks) == dict.fromkeys((game.id for game in games), groups)
    visits = [task.visit for task in tasks]
    assert visits == sorted(visits)


def test_the_same_seed_gives_the_same_games_and_another_one_others() -> None:
    games = [make_game(number) for number in range(20)]
    first, again, other = ([task.game.id for task in Schedule(games, 10, seed).tasks(1)] for seed in (7, 7, 13))
    assert first == again != other
    assert [task.game.id for task in Schedule(games, 20, 7).tasks(2)] != [
        task.game.id for task in Schedule(games, 20, 7).tasks(1)
    ]


@given(st.integers(1, 6), st.integers(0, 12))
def test_fresh_tasks_go_on_where_they_stopped_and_never_have_the_id_of_another(count: int, taken: int) -> None:
    schedule = Schedule([make_game(number) for number in range(count)], 3, 7)
    whole = list(islice(schedule.fresh(0), 30))

    assert list(islice(schedule.fresh(taken), 5)) == whole[taken : taken + 5]
    planned = {task.group_id for iteration in range(1, 11) for task in schedule.tasks(iteration)}
    assert len({task.group_id for task in whole} - planned) == 30
