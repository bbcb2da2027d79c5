"""The 120 rooms of ALFRED, from the layouts that the alfworld package ships.

The package gives a position for most receptacles (`FloorPlan*-openable.json`, which holds more than openables) but none
for stove burners, toasters, coffee machines and most bins and bathroom holders, though it names them among the room's
things. Those are put on the edge of the walkable floor, at a place that depends on the floor plan alone.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import alfworld.gen
import numpy as np
from alfworld.gen import constants

GRID = 0.25  # metres between two walkable points
HEADINGS = {0: (0.0, GRID), 90: (GRID, 0.0), 180: (0.0, -GRID), 270: (-GRID, 0.0)}  # degrees -> one step ahead (x, z)
HORIZON = 30  # degrees that the camera looks down, unless a place says otherwise
# Two receptacles at one location make "go to" between them a no-op: the camera's horizon tells their locations apart.
_HORIZONS = (30, 45, 60, 15, 0, -15, -30, 75, -45)

_SUPPLIED = {  # receptacles to put where the room names their type but gives no position; how many of each
    "Cabinet": 1,
    "CoffeeMachine": 1,
    "Drawer": 2,
    "GarbageCan": 1,
    "HandTowelHolder": 1,
    "LaundryHamper": 1,
    "Ottoman": 1,
    "Safe": 1,
    "Shelf": 2,
    "SinkBasin": 1,
    "StoveBurner": 4,
    "Toaster": 1,
    "Toilet": 1,
    "ToiletPaperHanger": 1,
    "TowelHolder": 1,
}
_ON_COUNTER = {"CoffeeMachine", "SinkBasin", "StoveBurner", "Toaster"}
_ON_FLOOR = {"GarbageCan", "LaundryHamper", "Ottoman", "Safe", "Toilet"}
_STACKED = {"Cabinet", "Drawer", "Shelf"}

Point = tuple[float, float]


@dataclass(frozen=True)
class FloorPlan:
    """One room: what it may hold, its fixed receptacles and where each is reached from, and the walkable points.

    `receptacles` maps an AI2-THOR id (`Cabinet|+00.68|+00.50|-02.20`) to a location (`loc_bar_0_bar_...`), in the order
    of the ids; no two share a location.
    """

    number: int
    room: str
    types: frozenset[str]
    receptacles: Mapping[str, str]
    points: tuple[Point, ...]


@cache
def floor_plan(number: int) -> FloorPlan:
    """The room of AI2-THOR's scene `number`: kitchens from 1, living rooms from 201, bedrooms 301, bathrooms 401."""
    layouts = Path(alfworld.gen.__path__[0]) / "layouts"
    types = frozenset(json.loads((layouts / f"FloorPlan{number}-objects.json").read_text()))
    known = json.loads((layouts / f"FloorPlan{number}-openable.json").read_text())
    walkable = np.load(layouts / f"FloorPlan{number}-layout.npy")[:, :2].round(2)
    points = tuple(sorted((float(x), float(z)) for x, z in walkable))
    places = {id_: (x, z, heading, horizon) for id_, (x, z, heading, horizon) in known.items()}
    places |= _supplied(number, types, places, points)
    room = next(room for room, numbers in constants.SCENE_TYPE.items() if number in numbers)
    return FloorPlan(number, room, types, _distinct_locations(places), points)


def object_id(type_: str, x: float, y: float, z: float) -> str:
    """An id as AI2-THOR writes it: the type and where it stands, in metres with two decimals."""
    x, y, z = (round(value, 2) + 0.0 for value in (x, y, z))
    return f"{type_}|{x:+06.2f}|{y:+06.2f}|{z:+06.2f}"


def position(id_: str) -> tuple[float, float, float]:
    """Where the thing of this id stands: x, height, z in metres."""
    x, y, z = id_.split("|")[1:4]
    return float(x), float(y), float(z)


def receptacle_type(id_: str) -> str:
    """`Cabinet` of `Cabinet|...`; `SinkBasin` of `Sink|...|SinkBasin`."""
    parts = id_.split("|")
    return parts[4] if len(parts) == 5 else parts[0]


def mangled(text: str) -> str:
    """An id as ALFWorld spells it in PDDL."""
    for character, name in (("|", "bar"), ("+", "plus"), ("-", "minus"), (".", "dot"), (",", "comma")):
        text = text.replace(character, f"_{name}_")
    return text


def location(x: float, z: float, heading: int, horizon: int) -> str:
    """A place of the agent as ALFWorld spells it: grid cell, quarter turns, and the camera's horizon in degrees."""
    return mangled(f"loc|{round(x / GRID)}|{round(z / GRID)}|{heading // 90}|{horizon}")


def _supplied(
    number: int, types: frozenset[str], places: Mapping[str, tuple[float, float, int, int]], points: tuple[Point, ...]
) -> dict[str, tuple[float, float, int, int]]:
    """Places for the receptacles that the room names without a position."""
    rng = random.Random(f"floor plan {number}")
    edge = _edge(points)
    counters = [id_ for id_ in sorted(places) if receptacle_type(id_) == "CounterTop"]
    present = {receptacle_type(id_) for id_ in places}
    supplied = {}
    for type_ in sorted(_SUPPLIED):
        if type_ not in types or type_ in present:
            continue
        spots = edge
        if type_ in _ON_COUNTER and counters:
            x, _, z = position(rng.choice(counters))
            spots = sorted(edge, key=lambda spot: (spot[0] - x) ** 2 + (spot[1] - z) ** 2)[:12]
        spot = rng.choice(spots)
        for index in range(_SUPPLIED[type_]):
            supplied[_supplied_id(type_, index, spot)] = (*spot, HORIZON)
    return supplied


def _supplied_id(type_: str, index: int, spot: tuple[float, float, int]) -> str:
    """The id of the `index`-th receptacle of a type: half a metre ahead of the agent, the next ones beside or above."""
    x, z, heading = spot
    ahead_x, ahead_z = HEADINGS[heading]
    ahead = 2.2 + 0.2 * (index % 2)
    beside = 0.2 * (index // 2)
    height = 0.0 if type_ in _ON_FLOOR else 0.9 + (GRID * index if type_ in _STACKED else 0.0)
    x += ahead_x * ahead + (beside if ahead_x == 0 else 0.0)
    z += ahead_z * ahead + (beside if ahead_z == 0 else 0.0)
    if type_ == "SinkBasin":
        return object_id("Sink", x, height, z) + "|SinkBasin"
    return object_id(type_, x, height, z)


def _edge(points: tuple[Point, ...]) -> list[tuple[float, float, int]]:
    """Points and headings from which the next step ahead is not walkable."""
    walkable = set(points)
    return [
        (x, z, heading)
        for x, z in points
        for heading, (ahead_x, ahead_z) in HEADINGS.items()
        if (round(x + ahead_x, 2), round(z + ahead_z, 2)) not in walkable
    ]


def _distinct_locations(places: Mapping[str, tuple[float, float, int, int]]) -> dict[str, str]:
    taken: set[str] = set()
    locations = {}
    for id_ in sorted(places):
        x, z, heading, own = places[id_]
        candidates = (location(x, z, heading, horizon) for horizon in (own, *_HORIZONS))
        locations[id_] = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(locations[id_])
    return locations
