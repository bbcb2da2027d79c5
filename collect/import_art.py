"""The trajectories that OpenPipe's ART writes as Parquet, a file a training step: one trajectory a row.

Format version 1 holds the conversation as `messages`; version 2 adds it whole as `trajectory_json`, with the
log-probabilities of what was sampled, and with the exchanges with the model where ART captured those instead.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from collect.conversation import Turn, steps_of
from collect.errors import InputError
from collect.import_gathered import Parts, gathered, of_packed, packed
from collect.import_groups import Import, named_after
from collect.logged import LoggedGroup
from collect.spool import Spool

_COLUMNS = ("group_index", "reward", "messages", "trajectory_json")


def groups(log: Import) -> Iterator[LoggedGroup]:
    """The groups of a log. A file's number is how many updates its policy had seen."""
    with Spool() as spool:
        for file in log.source.files:
            columns = _columns(file)
            for place, row in log.source.parquet_rows(file, columns):
                group = f"{file.stem}/{row['group_index']}"
                if row["reward"] is None and row.get("messages") is None and row.get("trajectory_json") is None:
                    log.left_out.add(f"group {group}", "it has no trajectory: all of them failed")
                    continue
                try:
                    _needed(row["group_index"], "group_index")
                    turns, reward = _turns(row), _reward(row)
                except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
                    log.source.malformed.add(place, str(error) or type(error).__name__)
                    continue
                steps = steps_of(turns, log.actions)
                asked = next((place for place, turn in enumerate(turns) if turn.role == "assistant"), len(turns))
                game = named_after("\0".join(f"{turn.role}\0{turn.text}" for turn in turns[:asked]))
                version = int(file.stem) if re.fullmatch(r"0*[0-9]{1,9}", file.stem, re.ASCII) else None
                spool.add(group, str(place.number), len(steps), [reward, packed(steps), game, version])
        yield from gathered(log, spool, _group)


def _columns(file: Any) -> list[str]:
    try:
        there = pq.read_schema(file).names
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: cannot be read as Parquet; give a file of trajectories that ART wrote") from error
    for needed in ("group_index", "reward", "messages"):
        if needed not in there:
            raise InputError(f"{file}: the column {needed} is missing; give a file of trajectories that ART wrote")
    return [name for name in _COLUMNS if name in there]


def _reward(row: Mapping[str, Any]) -> float:
    reward = row["reward"]
    if reward is None or reward != reward or reward in (float("inf"), float("-inf")):
        raise ValueError("reward: is no finite number")
    return float(reward)


def _turns(row: Mapping[str, Any]) -> list[Turn]:
    """The conversation; ValueError where the row has none that can be read."""
    if row.get("trajectory_json") is None:
        return [_turn(message) for message in _needed(row["messages"], "messages")]
    whole = json.loads(row["trajectory_json"])
    if messages := whole.get("messages_and_choices"):
        return [_turn(message) for message in messages]
    exchanges: Mapping[str, Any] = whole.get("exchanges") or {}
    if chat := exchanges.get("chat_completions"):
        return _captured(chat)
    captured = [protocol for protocol, some in exchanges.items() if some]
    raise ValueError(
        f"exchanges of {captured[0]}: only those of chat_completions are read" if captured else "no messages"
    )


def _captured(exchanges: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Turns of captured requests: what each asked beyond the request before it, and its answer."""
    turns = list[Turn]()
    for exchange in sorted(exchanges, key=lambda one: str(one.get("start_time", ""))):
        asked = [_turn(message) for message in exchange["request"]["messages"]]
        said = max((place for place, turn in enumerate(asked, start=1) if turn.role == "assistant"), default=0)
        turns += [*asked[said:], _turn(exchange["response"]["choices"][0])]
    return turns


def _turn(message: Mapping[str, Any]) -> Turn:
    """A message, or a choice of the model: the message in it and the log-probabilities of its tokens."""
    logprobs = None
    if isinstance(message.get("message"), Mapping):
        tokens = (message.get("logprobs") or {}).get("content")
        logprobs = None if tokens is None else tuple(float(token["logprob"]) for token in tokens)
        message = message["message"]
    calls = message.get("tool_calls") or []
    calls = json.loads(calls) if isinstance(calls, str) else calls
    called = tuple((str(call["function"]["name"]), call["function"].get("arguments")) for call in calls)
    return Turn(str(message["role"]), _text(message.get("content")), called, logprobs)


def _text(content: Any) -> str:
    """A message's text; of a list of contents, the text of those that are text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


def _needed(value: Any, name: str) -> Any:
    if value is None:
        raise ValueError(f"{name}: is null")
    return value


def _group(name: str, parts: Parts) -> LoggedGroup:
    _, _, game, version = parts[0][1][0]
    return LoggedGroup(
        game_id=game,
        trajectories=tuple(of_packed([part[:2] for part in one]) for _, one in parts),
        policy_version=version,
    )
