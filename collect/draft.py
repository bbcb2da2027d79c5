"""One game, drawn from a floor plan: its room, its things, its task, and the commands that solve it.

Pure: a draft depends on its arguments and the random numbers it is given, on nothing else. Whether it can be won is not
taken on trust: `collect.generator` plays it before it becomes a game.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from alfworld.agents.utils.misc import Demangler
from alfworld.gen import constants
from alfworld.gen.goal_library import gdict
from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

from collect.floorplan import (
    HEADINGS,
    HORIZON,
    FloorPlan,
    floor_plan,
    location,
    mangled,
    object_id,
    position,
    receptacle_type,
)
from collect.games import Task
from collect.recipe import Difficulty

_HOLDS = constants.VAL_RECEPTACLE_OBJECTS  # receptacle type -> the object types it may hold
_FIXED = constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET
_LAMPS = ("DeskLamp", "FloorLamp")
_LAMP_STANDS = ("Desk", "SideTable", "Dresser", "DiningTable", "CoffeeTable", "Shelf")
_TREATMENTS = {  # task type -> (what the object must allow, where it is done, the verb)
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin", "clean"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave", "heat"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge", "cool"),
}
_TOO_SMALL_FOR_TWO = {"CoffeeMachine", "HandTowelHolder", "StoveBurner", "ToiletPaperHanger", "TowelHolder"}
_PREDICATES = {  # PDDL predicate -> the action that an object must allow for it
    "cleanable": "Cleanable",
    "heatable": "Heatable",
    "coolable": "Coolable",
    "toggleable": "Toggleable",
    "sliceable": "Sliceable",
}


@dataclass(frozen=True)
class Draft:
    """A game not yet played: `files` are those of its folder `<task>/<trial>`, by name.

    `walkthrough` should win it. `fingerprint` is equal for games that a player could not tell apart.
    """

    task: str
    trial: str
    files: Mapping[str, bytes]
    walkthrough: tuple[str, ...]
    fingerprint: str


@dataclass(frozen=True)
class _Layout:
    """What stands where when the game begins; ids as AI2-THOR writes them."""

    plan: FloorPlan
    receptacles: Mapping[str, str]  # id -> location
    objects: Mapping[str, str]  # id -> id of the receptacle that it is in
    start: str  # the agent's location


def draft(split: str, task_type: str, difficulty: Difficulty, trial: str, rng: random.Random) -> Draft | None:
    """Draw one game of this split and task type, or None where the room that was drawn cannot host the task."""
    plan = floor_plan(rng.choice(_floor_plans(split, task_type)))
    receptacles = _capped(plan.receptacles, difficulty.receptacles_per_type, rng)
    task = _choose_task(task_type, plan, receptacles, rng)
    if task is None:
        return None
    objects = _place_objects(task, plan, receptacles, difficulty, rng)
    layout = _Layout(plan, receptacles, objects, _start(plan, receptacles, rng))
    sentence = rng.choice(gdict[task_type]["templates"]).format(
        obj=task.object_target.lower(), recep=task.parent_target.lower(), toggle=task.toggle_target.lower()
    )
    walkthrough = tuple(_walkthrough(task, layout))
    problem = _problem(task, layout, trial)
    return Draft(
        task="-".join(
            (task_type, task.object_target, "None", task.parent_target or task.toggle_target, str(plan.number))
        ),
        trial=trial,
        files={
            "traj_data.json": _json(_annotation(task, plan, difficulty, trial, sentence)),
            "initial_state.pddl": problem.encode(),
            "game.tw-pddl": _json(
                {
                    "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
                    "grammar": Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", sentence),
                    "pddl_problem": problem,
                    "solvable": True,
                    "walkthrough": walkthrough,
                }
            ),
        },
        walkthrough=walkthrough,
        fingerprint=_fingerprint(task, layout),
    )


def _floor_plans(split: str, task_type: str) -> list[int]:
    """ALFRED's own division: unseen games are in rooms that no other split knows."""
    numbers = constants.TEST_SCENE_NUMBERS if split == "valid_unseen" else constants.TRAIN_SCENE_NUMBERS
    rooms = constants.GOALS_VALID[task_type]
    return [number for number in numbers if floor_plan(number).room in rooms]


def _capped(receptacles: Mapping[str, str], cap: int | None, rng: random.Random) -> dict[str, str]:
    """At most `cap` receptacles of each type, drawn at random."""
    kept: set[str] = set()
    for ids in _by_type(receptacles).values():
        kept.update(ids if cap is None or len(ids) <= cap else rng.sample(ids, cap))
    return {id_: place for id_, place in receptacles.items() if id_ in kept}


def _by_type(receptacles: Iterable[str]) -> dict[str, list[str]]:
    types: dict[str, list[str]] = {}
    for id_ in receptacles:
        types.setdefault(receptacle_type(id_), []).append(id_)
    return types


def _hosts(object_type: str, receptacles: Iterable[str]) -> list[str]:
    """The receptacle types of this room that may hold the object type."""
    return [type_ for type_ in _by_type(receptacles) if object_type in _HOLDS[type_]]


def _object_types(plan: FloorPlan, receptacles: Iterable[str]) -> list[str]:
    """What lies about in this room and can be taken."""
    receptacles = list(receptacles)
    return sorted(
        type_
        for type_ in plan.types - _FIXED - set(_LAMPS)
        if not type_.endswith("Sliced") and _hosts(type_, receptacles)
    )


def _choose_task(task_type: str, plan: FloorPlan, receptacles: Mapping[str, str], rng: random.Random) -> Task | None:
    """Any object and goal that the room allows; the object must have somewhere else to be than the goal."""
    present = set(_by_type(receptacles))
    action, appliance, _ = _TREATMENTS.get(task_type, (None, None, None))
    if appliance and appliance not in present:
        return None
    objects = [
        type_
        for type_ in _object_types(plan, receptacles)
        if action is None or type_ in constants.VAL_ACTION_OBJECTS[action]
    ]
    if task_type == "look_at_obj_in_light":
        lamps = [lamp for lamp in _LAMPS if lamp in plan.types and present.intersection(_LAMP_STANDS)]
        return Task(task_type, rng.choice(objects), "", rng.choice(lamps)) if lamps and objects else None
    unfit = {appliance} | (_TOO_SMALL_FOR_TWO if task_type == "pick_two_obj_and_place" else set())
    choices = [
        (object_type, parent)
        for object_type in objects
        for parent in _hosts(object_type, receptacles)
        if parent not in unfit and len(_hosts(object_type, receptacles)) > 1
    ]
    return Task(task_type, *rng.choice(choices), "") if choices else None


def _place_objects(
    task: Task, plan: FloorPlan, receptacles: Mapping[str, str], difficulty: Difficulty, rng: random.Random
) -> dict[str, str]:
    """Object id -> receptacle id. The wanted object never starts in a receptacle of the goal's type."""
    by_type = _by_type(receptacles)
    objects: dict[str, str] = {}
    closed: list[str] = []

    def put(type_: str, hosts: list[str]) -> None:
        # Half of the time any receptacle alike, else any type alike: twenty drawers don't swallow everything.
        spread = rng.random() < 0.5
        choices = [id_ for host in hosts for id_ in by_type[host]] if spread else by_type[rng.choice(hosts)]
        receptacle = rng.choice(choices)
        objects[_free_id(type_, receptacle, objects, rng)] = receptacle

    for type_ in _object_types(plan, receptacles):
        hosts = _hosts(type_, receptacles)
        if type_ == task.object_target:
            needed = 2 if task.task_type == "pick_two_obj_and_place" else 1
            count = needed - 1 + rng.randint(1, difficulty.targets)
            hosts = [host for host in hosts if host != task.parent_target]
            closed = [host for host in hosts if host in constants.OPENABLE_CLASS_SET]
        else:
            count = 0 if rng.random() < difficulty.absent else rng.randint(1, difficulty.instances)
        for _ in range(count):
            hide = type_ == task.object_target and closed and difficulty.hidden and rng.random() < difficulty.hidden
            put(type_, closed if hide else hosts)
    stands = [stand for stand in _LAMP_STANDS if stand in by_type]
    for lamp in _LAMPS:
        if lamp in plan.types and stands:
            put(lamp, stands)
    return objects


def _free_id(type_: str, receptacle: str, taken: Mapping[str, str], rng: random.Random) -> str:
    x, y, z = position(receptacle)
    while True:
        nearby = x + rng.uniform(-0.35, 0.35), y + rng.uniform(0.02, 0.12), z + rng.uniform(-0.35, 0.35)
        if (id_ := object_id(type_, *nearby)) not in taken:
            return id_


def _start(plan: FloorPlan, receptacles: Mapping[str, str], rng: random.Random) -> str:
    """Where the agent begins: not at a receptacle, or the game would describe that instead of the room."""
    while True:
        x, z = rng.choice(plan.points)
        place = location(x, z, rng.choice(list(HEADINGS)), HORIZON)
        if place not in receptacles.values():
            return place


def _walkthrough(task: Task, layout: _Layout) -> list[str]:
    """Commands that win, of one who knows where everything is."""
    names = _names([*layout.receptacles, *layout.objects])
    commands: list[str] = []
    here = ""
    opened: set[str] = set()

    def go(receptacle: str, *, open_it: bool) -> None:
        nonlocal here
        if receptacle != here:
            commands.append(f"go to {names[receptacle]}")
            here = receptacle
        if open_it and receptacle not in opened and receptacle_type(receptacle) in constants.OPENABLE_CLASS_SET:
            commands.append(f"open {names[receptacle]}")
            opened.add(receptacle)

    def first(type_: str) -> str:
        return next(id_ for id_ in layout.receptacles if receptacle_type(id_) == type_)

    wanted = [id_ for id_ in layout.objects if _object_type(id_) == task.object_target]
    for object_ in wanted[: 2 if task.task_type == "pick_two_obj_and_place" else 1]:
        go(layout.objects[object_], open_it=True)
        commands.append(f"take {names[object_]} from {names[here]}")
        if task.task_type in _TREATMENTS:
            _, appliance, verb = _TREATMENTS[task.task_type]
            go(first(appliance), open_it=False)
            commands.append(f"{verb} {names[object_]} with {names[here]}")
        if task.toggle_target:
            lamp = next(id_ for id_ in layout.objects if _object_type(id_) == task.toggle_target)
            go(layout.objects[lamp], open_it=False)
            commands.append(f"use {names[lamp]}")
        else:
            go(first(task.parent_target), open_it=True)
            commands.append(f"move {names[object_]} to {names[here]}")
    return commands


def _names(ids: Iterable[str]) -> dict[str, str]:
    """What ALFWorld calls things in its texts (`apple 1`), by id."""
    spelled = {id_: mangled(id_).lower() for id_ in ids}
    demangler = Demangler(game_infos={name: SimpleNamespace(id=name) for name in spelled.values()})
    return {id_: demangler.demangle_alfred_name(name) for id_, name in spelled.items()}


def _object_type(id_: str) -> str:
    return id_.split("|")[0]


def _fingerprint(task: Task, layout: _Layout) -> str:
    things = sorted((_object_type(id_), receptacle) for id_, receptacle in layout.objects.items())
    content = json.dumps([asdict(task), layout.plan.number, sorted(layout.receptacles), things])
    return hashlib.sha256(content.encode()).hexdigest()


def _annotation(task: Task, plan: FloorPlan, difficulty: Difficulty, trial: str, sentence: str) -> dict[str, object]:
    """`traj_data.json`, as far as a text game has anything to say there."""
    parameters = {
        "mrecep_target": "",
        "object_sliced": False,
        "object_target": task.object_target,
        "parent_target": task.parent_target,
        "toggle_target": task.toggle_target,
    }
    return {
        "task_id": trial,
        "task_type": task.task_type,
        "pddl_params": parameters,
        "scene": {"floor_plan": f"FloorPlan{plan.number}", "scene_num": plan.number},
        "template": {"task_desc": sentence, "high_descs": []},
        "turk_annotations": {"anns": [{"task_desc": sentence, "high_descs": []}]},
        "difficulty": difficulty.description(),
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _problem(task: Task, layout: _Layout, trial: str) -> str:
    """The game's beginning and goal in PDDL, in the layout of ALFWorld's own `initial_state.pddl`."""
    goal = gdict[task.task_type]["pddl"].format(
        obj=task.object_target, recep=task.parent_target, toggle=task.toggle_target
    )
    return "\n".join(
        (
            f"(define (problem plan_{trial})",
            "(:domain alfred)",
            "(:objects",
            *_indented(_declarations(layout)),
            ")",
            "(:init",
            *_indented(_facts(layout, task)),
            ")",
            goal.replace("#", "-").strip("\n"),
            "",
        )
    )


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"        {line}" for line in lines]


def _declarations(layout: _Layout) -> list[str]:
    return [
        "agent1 - agent",
        *(f"{type_}Type - otype" for type_ in sorted(constants.OBJECTS_SET - _FIXED)),
        *(f"{type_}Type - rtype" for type_ in sorted(_FIXED)),
        *(f"{mangled(id_)} - object" for id_ in sorted(layout.objects)),
        *(f"{mangled(id_)} - receptacle" for id_ in layout.receptacles),
        *(f"{place} - location" for place in sorted({*layout.receptacles.values(), layout.start})),
    ]


def _facts(layout: _Layout, task: Task) -> list[str]:
    receptacles = {mangled(id_): (receptacle_type(id_), place) for id_, place in layout.receptacles.items()}
    objects = {mangled(id_): (_object_type(id_), receptacle) for id_, receptacle in sorted(layout.objects.items())}
    object_types = sorted({task.object_target, *(type_ for type_, _ in objects.values())})
    return [
        f"(atLocation agent1 {layout.start})",
        *(f"(receptacleType {name} {type_}Type)" for name, (type_, _) in receptacles.items()),
        *(f"(receptacleAtLocation {name} {place})" for name, (_, place) in receptacles.items()),
        *(f"(openable {name})" for name, (type_, _) in receptacles.items() if type_ in constants.OPENABLE_CLASS_SET),
        *(
            f"(canContain {host}Type {type_}Type)"
            for host in sorted(_by_type(layout.receptacles))
            for type_ in object_types
            if type_ in _HOLDS[host]
        ),
        *(f"(objectType {name} {type_}Type)" for name, (type_, _) in objects.items()),
        *(f"(pickupable {name})" for name, (type_, _) in objects.items() if type_ not in _LAMPS),
        *(
            f"(isReceptacleObject {name})"
            for name, (type_, _) in objects.items()
            if type_ in constants.MOVABLE_RECEPTACLES_SET
        ),
        *(
            f"({predicate} {name})"
            for predicate, action in _PREDICATES.items()
            for name, (type_, _) in objects.items()
            if type_ in constants.VAL_ACTION_OBJECTS[action]
        ),
        *(f"(inReceptacle {name} {mangled(receptacle)})" for name, (_, receptacle) in objects.items()),
        *(f"(objectAtLocation {name} {layout.receptacles[receptacle]})" for name, (_, receptacle) in objects.items()),
    ]
