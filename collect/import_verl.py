"""What verl writes into trainer.rollout_data_dir: a file a training step, one sampled response a line.

A line holds `input` and `output` (prompt and response, decoded without special tokens), `gts`, `score` and `step`,
newer ones also `uid`: `<prompt>_<rollout>_<output>`.
"""

from collections.abc import Iterator

from collect.conversation import steps_of, turns_in
from collect.import_gathered import Parts, gathered, of_packed, packed
from collect.import_groups import Count, Import, Record, named_after
from collect.logged import LoggedGroup
from collect.spool import Spool


class _Line(Record):
    input: str
    output: str
    score: float
    step: Count | None = None
    uid: str | int | None = None


def groups(log: Import) -> Iterator[LoggedGroup]:
    """The groups of a dump: the responses to one prompt in one step, told apart by uid or, without it, by the prompt.

    An agent loop that cuts a rollout into several outputs gives several lines, which are one trajectory, with the last
    one's score. Before a step the policy had seen the updates of the steps before it.
    """
    with Spool() as spool:
        for file in log.source.files:
            for place, sample in log.records(file, _Line):
                steps = steps_of(turns_in(sample.input, sample.output), log.actions)
                game = named_after(sample.input)
                prompt, rollout = _key(sample, game)
                group = f"{prompt} of step {sample.step}" if sample.step is not None else f"{prompt} in {file.name}"
                content = [sample.score, packed(steps), game, sample.step]
                spool.add(group, str(place) if rollout is None else rollout, len(steps), content)
        yield from gathered(log, spool, _group)


def _key(sample: _Line, game: str) -> tuple[str, str | None]:
    """The prompt, and which rollout of it where the line says so."""
    if sample.uid is None:
        return game, None
    prompt, *numbers = str(sample.uid).rsplit("_", 2)
    if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
        return prompt, numbers[0]
    return str(sample.uid), None


def _group(name: str, parts: Parts) -> LoggedGroup:
    _, _, game, step = parts[0][1][0]
    return LoggedGroup(
        game_id=game,
        trajectories=tuple(of_packed([part[:2] for part in one]) for _, one in parts),
        policy_version=None if step is None else max(step - 1, 0),
    )
