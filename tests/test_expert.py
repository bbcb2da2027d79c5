import random
from pathlib import Path

import pytest
from alfworld.gen import constants
from alfworld.gen.goal_library import gdict
from hypothesis import given
from hypothesis import strategies as st

from collect.environment import Observation
from collect.expert import Expert, parse_task
from collect.games import TASK_TYPES, Game, Task, task_of
from collect.stock import StockInstance

ROOM = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    "countertop 1, a drawer 10, a drawer 2, a fridge 1, a safe 1, and a shelf 1.\n\nYour task is to: {}."
)
OBJECTS = sorted(
    {type_ for types in constants.VAL_RECEPTACLE_OBJECTS.values() for type_ in types if "Sliced" not in type_}
)
RECEPTACLES = sorted(constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET - {"PaintingHanger"})


def play(game: Game, expert: Expert, horizon: int, noise: float = 0.0) -> tuple[list[str], Observation]:
    """The commands that the expert wanted and what the last one sent led to; `noise` is the share of others sent."""
    rng = random.Random(game.id)
    instance = StockInstance(game.path)
    observation = instance.reset()
    commands: list[str] = []
    while not observation.done and len(commands) < horizon:
        commands.append(expert.act(observation.text))
        assert commands[-1] in observation.admissible_commands
        sent = rng.choice(observation.admissible_commands) if rng.random() < noise else commands[-1]
        observation = instance.step(sent)
    instance.close()
    return commands, observation


class EmptyRoom:
    """Answers as a game in which nothing lies anywhere; drawers, the fridge and the safe are closed at first."""

    def __init__(self) -> None:
        self.opened: set[str] = set()
        self.visits: list[str] = []

    def answer(self, command: str) -> str:
        receptacle = command.split(" ", 2)[-1] if command.startswith("go") else command.removeprefix("open ")
        receptacle = receptacle.removeprefix("to ")
        shuts = receptacle.split()[0] in {"drawer", "fridge", "safe"}
        if command.startswith("open"):
            self.opened.add(receptacle)
            return f"You open the {receptacle}. The {receptacle} is open. In it, you see nothing."
        self.visits.append(receptacle)
        if shuts and receptacle not in self.opened:
            return f"You arrive at {receptacle}. The {receptacle} is closed."
        sight = f"The {receptacle} is open. In it" if shuts else f"On the {receptacle}"
        return f"You arrive at {receptacle}. {sight}, you see nothing."


def test_it_wins_every_task_type_from_the_text_alone(six_games: list[Game]) -> None:
    for game in six_games:
        expert = Expert()

        commands, last = play(game, expert, horizon=60)

        assert last.won, (game.id, commands)
        assert expert.task == task_of(game)


def test_it_wins_a_game_of_alfworlds_own_in_which_receptacles_share_their_places(real_game: Path) -> None:
    game = Game("heat/trial", real_game, "train", "pick_heat_then_place_in_recep")

    commands, last = play(game, Expert(), horizon=60)

    assert last.won, commands


def test_it_still_wins_when_others_meddle(six_games: list[Game]) -> None:
    for game in six_games[::2]:
        _, last = play(game, Expert(), horizon=150, noise=0.25)

        assert last.won, game.id


def test_likely_places_come_first_in_a_fixed_order_and_the_goals_type_last_of_them() -> None:
    room, expert = EmptyRoom(), Expert()
    command = expert.act(ROOM.format("put two cd in drawer"))
    while len(room.visits) < 6:
        command = expert.act(room.answer(command))

    assert room.visits == [
        "countertop 1",
        "shelf 1",
        "safe 1",
        "drawer 2",
        "drawer 10",
        "fridge 1",
    ]  # no fridge for a CD
    assert room.opened == {"safe 1", "drawer 2", "drawer 10"}


def test_when_everything_was_searched_it_starts_again_in_the_same_order() -> None:
    room, expert = EmptyRoom(), Expert()
    command = expert.act(ROOM.format("put some cd on shelf"))
    while len(room.visits) < 3 * 6:
        command = expert.act(room.answer(command))

    assert room.visits[:6] == room.visits[6:12] == room.visits[12:]
    assert len(set(room.visits)) == 6


def test_what_it_chooses_depends_on_the_texts_alone() -> None:
    texts = [
        ROOM.format("clean some mug and put it in shelf"),
        "You arrive at countertop 1. On the countertop 1, you see a mug 2.",
    ]
    first, second = Expert(), Expert()

    assert [first.act(text) for text in texts] == [second.act(text) for text in texts]
    assert first.act("You pick up the mug 2 from the countertop 1.") == "go to sinkbasin 1"


def test_a_place_that_is_reached_already_is_examined_instead() -> None:
    expert = Expert()
    assert expert.act(ROOM.format("put a mug in safe")) == "go to countertop 1"
    assert expert.act("You arrive at countertop 1. On the countertop 1, you see nothing.") == "go to shelf 1"

    assert expert.act("Nothing happens.") == "examine shelf 1"
    assert expert.act("On the shelf 1, you see a mug 3.") == "take mug 3 from shelf 1"


def test_it_puts_away_what_is_not_wanted() -> None:
    expert = Expert()
    expert.act(ROOM.format("put a mug in safe"))
    expert.act("You arrive at countertop 1. On the countertop 1, you see a apple 1.")

    assert expert.act("You pick up the apple 1 from the countertop 1.") == "move apple 1 to countertop 1"


@given(st.sampled_from(TASK_TYPES), st.integers(0, 1), st.sampled_from(OBJECTS), st.sampled_from(RECEPTACLES))
def test_every_sentence_of_the_goal_templates_is_understood(
    task_type: str, template: int, object_: str, receptacle: str
) -> None:
    light = task_type == "look_at_obj_in_light"
    task = Task(task_type, object_, "" if light else receptacle, "DeskLamp" if light else "")
    words = {"obj": object_.lower(), "recep": receptacle.lower(), "toggle": "desklamp"}

    assert parse_task(gdict[task_type]["templates"][template].format(**words)) == task


@pytest.mark.parametrize("sentence", ["Put the warm tater in the sink.", "put a apple in heaven", "", "put two cd"])
def test_a_sentence_in_a_persons_words_is_not_guessed_at(sentence: str) -> None:
    with pytest.raises(ValueError, match="goal templates"):
        parse_task(sentence)


def test_a_task_that_is_given_needs_no_sentence_that_can_be_read() -> None:
    task = Task("pick_and_place_simple", "Mug", "Safe", "")

    assert Expert(task).act(ROOM.format("stow that cup")) == "go to countertop 1"


def test_anything_but_the_beginning_of_a_game_is_refused() -> None:
    with pytest.raises(ValueError, match="not the beginning"):
        Expert().act("You arrive at countertop 1. On the countertop 1, you see nothing.")
