"""An expert that sees only the text: it searches receptacles in one fixed, sensible order.

It knows the task (from the sentence itself), what ALFWorld's receptacles may hold, and what the game has said so far;
neither where things are nor what commands the game admits. Its lessons for the warm start are therefore about
searching: a planner's walkthrough, which knows where to go, would teach to guess.

Its beliefs come from the texts alone, so it can also say what to do next in a game that someone else has played so far.
"""

import re

from alfworld.gen import constants
from alfworld.gen.goal_library import gdict

from collect.games import TASK_TYPES, Task

# Surfaces in sight first, then what has to be opened, then where little is ever found.
_ORDER = (
    *("countertop", "diningtable", "sidetable", "coffeetable", "desk", "dresser", "shelf", "bed", "sofa", "armchair"),
    *("ottoman", "tvstand", "cart", "stoveburner", "sinkbasin", "bathtubbasin", "toilet", "toiletpaperhanger"),
    *("towelholder", "handtowelholder", "coffeemachine", "toaster", "fridge", "microwave", "cabinet", "drawer"),
    *("garbagecan", "laundryhamper", "safe"),
)
_LAMP_STANDS = ("desk", "sidetable", "dresser", "diningtable", "coffeetable", "shelf")
_TREATMENTS = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "fridge"),
}
_HOLDS = {
    receptacle.lower(): {type_.lower() for type_ in types}
    for receptacle, types in constants.VAL_RECEPTACLE_OBJECTS.items()
}
_SPELLING = {type_.lower(): type_ for type_ in sorted({*constants.OBJECTS, *constants.RECEPTACLES})}

_THING = r"(\w+ \d+)"
_THINGS = re.compile(rf"\ban? {_THING}")
_ROOM = re.compile(r"Looking quickly around you, you see (.*?)\.")
_SENTENCE = re.compile(r"Your task is to: (.*?)\.?\s*$")
_ARRIVED = re.compile(rf"You arrive at {_THING}\.")
_CONTENT = re.compile(rf"(?:On the {_THING}|The {_THING} is open\. In it), you see (.*?)\.")
_CLOSED = re.compile(rf"(?:The {_THING} is closed\.|You close the {_THING}\.)")
_TAKEN = re.compile(rf"You pick up the {_THING} from the {_THING}\.")
_MOVED = re.compile(rf"You move the {_THING} to the {_THING}\.")
_TREATED = re.compile(rf"You (?:clean|heat|cool) the {_THING} using the {_THING}\.")


def parse_task(sentence: str) -> Task:
    """The task that a sentence of ALFWorld's goal templates asks for (`put two cd in safe`).

    Raises `ValueError` for any other sentence, such as those that people wrote for ALFRED.
    """
    for task_type in TASK_TYPES:
        for template in gdict[task_type]["templates"]:
            pattern = template.format(obj=r"(?P<obj>\w+)", recep=r"(?P<recep>\w+)", toggle=r"(?P<toggle>\w+)")
            if match := re.fullmatch(pattern, sentence):
                words = match.groupdict()
                if all(word in _SPELLING for word in words.values()):
                    return Task(
                        task_type, *(_SPELLING.get(words.get(key, ""), "") for key in ("obj", "recep", "toggle"))
                    )
    raise ValueError(f"not one of ALFWorld's goal templates: {sentence!r}")


class Expert:
    """Plays one game. Give `task` where its sentence is in a person's words; else it is read from the first text.

    It goes to the receptacles that may hold what it wants, in one order of types and by number, the goal's own type
    last, then to all others; when it has seen them all, it starts again in the same order.
    """

    def __init__(self, task: Task | None = None) -> None:
        self._task = task
        self._receptacles: list[str] = []
        self._contents: dict[str, list[str]] = {}
        self._closed: set[str] = set()
        self._searched: set[str] = set()
        self._treated: set[str] = set()
        self._here = ""
        self._holding = ""
        self._said = ""

    def act(self, observation: str) -> str:
        """The command that answers what the game just said.

        Raises `ValueError` where the first text is not the beginning of an ALFWorld game.
        """
        self._see(observation)
        self._said = self._choose()
        return self._said

    @property
    def task(self) -> Task:
        """The task being played."""
        if self._task is None:
            raise ValueError("the expert has not been shown the beginning of a game")
        return self._task

    def _see(self, text: str) -> None:
        """Take in what the text says."""
        if not self._receptacles:
            self._begin(text)
        elif text == "Nothing happens.":
            self._doubt()
        if match := _ARRIVED.search(text):
            self._here = match[1]
        if match := _CONTENT.search(text):
            receptacle = match[1] or match[2]
            self._contents[receptacle] = _THINGS.findall(match[3])
            self._closed.discard(receptacle)
            self._searched.add(receptacle)
        if match := _CLOSED.search(text):
            self._closed.add(match[1] or match[2])
        if match := _TAKEN.search(text):
            self._holding = match[1]
            self._contents[match[2]] = [thing for thing in self._contents.get(match[2], []) if thing != match[1]]
        if match := _MOVED.search(text):
            self._holding = ""
            self._contents.setdefault(match[2], []).append(match[1])
        if match := _TREATED.search(text):
            self._treated.add(match[1])

    def _begin(self, text: str) -> None:
        room, sentence = _ROOM.search(text), _SENTENCE.search(text)
        if room is None or sentence is None:
            raise ValueError(f"not the beginning of an ALFWorld game: {text[:80]!r}")
        self._receptacles = _THINGS.findall(room[1])
        self._task = self._task or parse_task(sentence[1])

    def _doubt(self) -> None:
        """Nothing happened, so something believed is not so."""
        verb, _, thing = self._said.partition(" ")
        if verb == "go":  # it is reached from where one stands already
            self._here = thing.removeprefix("to ")
        elif verb == "examine":  # it is not reached from here after all: leave it
            self._contents[self._here] = []
            self._searched.add(self._here)
            self._here = ""
        else:
            self._contents.pop(self._here, None)
            self._closed.discard(self._here)

    def _choose(self) -> str:
        if self._here and self._here not in self._contents and self._here not in self._closed:
            return f"examine {self._here}"
        if not self._holding:
            return (
                self._find(self.task.object_target) or f"take {self._found(self.task.object_target)} from {self._here}"
            )
        if _type(self._holding) != self.task.object_target.lower():
            return self._put(self._home(self._holding))
        verb, appliance = _TREATMENTS.get(self.task.task_type, ("", ""))
        if verb and self._holding not in self._treated:
            return self._reach(self._first(appliance)) or f"{verb} {self._holding} with {self._here}"
        if self.task.toggle_target:
            return self._find(self.task.toggle_target) or f"use {self._found(self.task.toggle_target)}"
        return self._put(self._goal())

    def _find(self, type_: str) -> str:
        """What to do next to stand before a thing of this type in sight; empty when one does."""
        if self._found(type_):
            return self._open()
        if self._here in self._closed and self._here not in self._searched:
            return self._open()
        for receptacle in self._receptacles:
            if self._things(type_, receptacle):
                return self._reach(receptacle)
        order = self._order(type_)
        if self._searched.issuperset(order):
            self._searched.clear()
        elsewhere = (receptacle for receptacle in order if receptacle not in self._searched | {self._here})
        return next((f"go to {receptacle}" for receptacle in elsewhere), "look")

    def _found(self, type_: str) -> str:
        """A wanted thing of this type where one stands, or nothing."""
        return next(iter(self._things(type_, self._here)), "")

    def _things(self, type_: str, receptacle: str) -> list[str]:
        """The things of this type that were last seen there and are still wanted."""
        done = receptacle == self._goal() and self.task.task_type not in _TREATMENTS
        return [thing for thing in self._contents.get(receptacle, []) if _type(thing) == type_.lower() and not done]

    def _put(self, receptacle: str) -> str:
        """What to do next to leave what is held there."""
        return self._reach(receptacle) or self._open() or f"move {self._holding} to {receptacle}"

    def _home(self, thing: str) -> str:
        """Where a thing that is not wanted may be left: here if it can be."""
        fits = [r for r in (self._here, *self._receptacles) if r and _type(thing) in _HOLDS.get(_type(r), ())]
        return fits[0] if fits else self._receptacles[0]

    def _reach(self, receptacle: str) -> str:
        return "" if self._here == receptacle else f"go to {receptacle}"

    def _open(self) -> str:
        return f"open {self._here}" if self._here in self._closed else ""

    def _goal(self) -> str:
        return self._first(self.task.parent_target.lower()) if self.task.parent_target else ""

    def _first(self, type_: str) -> str:
        """The receptacle of this type with the smallest number."""
        return min((r for r in self._receptacles if _type(r) == type_), key=_number, default=f"{type_} 1")

    def _order(self, type_: str) -> list[str]:
        """All receptacles, in the order in which a thing of this type is searched."""
        lamp = type_ == self.task.toggle_target
        parent = self.task.parent_target.lower()

        def rank(receptacle: str) -> tuple[bool, bool, int, int]:
            kind = _type(receptacle)
            if lamp:
                likely = kind in _LAMP_STANDS
                place = _LAMP_STANDS.index(kind) if likely else _place(kind)
            else:
                likely = type_.lower() in _HOLDS.get(kind, ())
                place = _place(kind)
            return not likely, kind == parent, place, _number(receptacle)

        return sorted(self._receptacles, key=rank)


def _type(thing: str) -> str:
    return thing.split()[0]


def _number(thing: str) -> int:
    return int(thing.split()[1])


def _place(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
