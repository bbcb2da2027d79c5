import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collect.errors import InputError
from collect.import_format import Format
from collect.importer import Imported, import_log
from collect.store import scan

MESSAGE = pa.struct(
    [(name, pa.string()) for name in ("role", "content", "tool_calls", "tool_call_id")] + [("trainable", pa.bool_())]
)
VERSION_1 = pa.schema(
    [
        ("group_index", pa.int64()),
        ("group_metadata", pa.string()),
        ("group_metrics", pa.string()),
        ("group_logs", pa.list_(pa.string())),
        ("reward", pa.float64()),
        ("metrics", pa.string()),
        ("metadata", pa.string()),
        ("tools", pa.string()),
        ("logs", pa.list_(pa.string())),
        ("messages", pa.list_(MESSAGE)),
    ]
)
VERSION_2 = pa.schema(
    [
        ("format_version", pa.int16()),
        ("group_index", pa.int64()),
        ("trajectory_index", pa.int64()),
        ("group_json", pa.large_string()),
        ("trajectory_json", pa.large_string()),
        *list(VERSION_1)[1:],
    ],
    metadata={b"art.trajectory_parquet.version": b"2"},
)


def write(path: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> Path:
    """A file as ART writes it; what a row does not say is null."""
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")
    return path


def brought(log: Path, run: Path) -> Imported:
    return import_log(log, Format.ART, {}, run, lambda done, total: None)


def rows(run: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return scan(run, table).select(columns).collect().rows()


def message(role: str, content: str | None, calls: Any = None, trainable: bool = False) -> dict[str, Any]:
    return {"role": role, "content": content, "tool_calls": calls and json.dumps(calls), "trainable": trainable}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def played(task: str, *replies: str) -> list[dict[str, Any]]:
    opening = [message("system", "Act."), message("user", task)]
    turns = [[message("assistant", reply, trainable=True), message("user", f"after {reply}")] for reply in replies]
    return [*opening, *(one for turn in turns for one in turn)]


def test_messages_become_steps_and_calls_of_tools_actions(tmp_path: Path) -> None:
    with_tools = [
        *played("Put it there."),
        message("assistant", None, [call("go", to="desk", n=1)], trainable=True),
        message("tool", "You are there."),
        message("assistant", "Done.\u2028Action: stop", trainable=True),
    ]
    log = write(
        tmp_path / "0007.parquet",
        VERSION_1,
        [
            {"group_index": 0, "reward": 1.0, "messages": with_tools},
            {"group_index": 0, "reward": -0.5, "messages": played("Put it there.", "Action: look", "I look.")},
        ],
    )
    imported = brought(log, tmp_path / "run")
    assert rows(tmp_path / "run", "groups", "rewards", "policy_version", "visit") == [([1.0, -0.5], 7, 0)]
    assert rows(tmp_path / "run", "steps", "trajectory", "step", "observation", "action", "reply") == [
        (0, 1, "Put it there.", 'go({"n": 1, "to": "desk"})', ""),
        (0, 2, "You are there.", "Done. Action: stop", "Done.\u2028Action: stop"),
        (1, 1, "Put it there.", "look", "Action: look"),
        (1, 2, "after Action: look", "I look.", "I look."),
    ]
    assert imported.actions == {"whole replies": 2, "tool calls": 1, '"Action:" lines': 1}
    assert "reply_tokens" in imported.null["trajectories"]


def choice(content: str, *logprobs: float) -> dict[str, Any]:
    return {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": content, "tool_calls": None},
        "logprobs": {"content": [{"token": "x", "logprob": value, "top_logprobs": []} for value in logprobs]},
    }


def test_version_2_tells_log_probabilities_too(tmp_path: Path) -> None:
    def whole(*replies: tuple[str, list[float]]) -> str:
        said = [
            one for text, logprobs in replies for one in (choice(text, *logprobs), {"role": "user", "content": "next"})
        ]
        return json.dumps({"messages_and_choices": [{"role": "user", "content": "Task."}, *said], "reward": 1.0})

    log = write(
        tmp_path / "0000.parquet",
        VERSION_2,
        [
            {
                "format_version": 2,
                "group_index": 0,
                "trajectory_index": 0,
                "reward": 1.0,
                "trajectory_json": whole(("a", [-1.0, -0.5]), ("b", [])),
            },
            {
                "format_version": 2,
                "group_index": 0,
                "trajectory_index": 1,
                "reward": 0.0,
                "trajectory_json": whole(("c", [-0.25])),
            },
        ],
    )
    brought(log, tmp_path / "run")
    assert rows(tmp_path / "run", "trajectories", "reply_tokens", "logprobs") == [
        ([2, 0], [-1.0, -0.5]),
        ([1], [-0.25]),
    ]
    assert rows(tmp_path / "run", "steps", "action", "reply_tokens", "reply_logprob") == [
        ("a", 2, -1.5),
        ("b", 0, 0.0),
        ("c", 1, -0.25),
    ]


def test_captured_exchanges_are_read_as_the_conversation_that_they_were(tmp_path: Path) -> None:
    def exchange(at: int, asked: list[tuple[str, Any]], said: str) -> dict[str, Any]:
        messages = [{"role": role, "content": content} for role, content in asked]
        return {
            "start_time": f"2026-01-01T00:00:0{at}Z",
            "request": {"messages": messages},
            "response": {"choices": [choice(said, -1.0)]},
        }

    opening: list[tuple[str, Any]] = [("system", "Act."), ("user", [{"type": "text", "text": "Task."}])]
    first = exchange(1, opening, "look")
    second = exchange(2, [*opening, ("assistant", "look"), ("tool", "a mug")], "take mug")
    captured = {"chat_completions": [second, first], "completions": [], "responses": [], "messages": []}
    other: dict[str, Any] = {"chat_completions": [], "responses": [{"request": {}}]}
    row = {"format_version": 2, "group_index": 0, "reward": 1.0}
    log = write(
        tmp_path / "0001.parquet",
        VERSION_2,
        [
            *({**row, "trajectory_index": n, "trajectory_json": json.dumps({"exchanges": captured})} for n in (0, 1)),
            {**row, "trajectory_index": 2, "trajectory_json": json.dumps({"exchanges": other})},
        ],
    )
    imported = brought(log, tmp_path / "run")
    assert rows(tmp_path / "run", "steps", "observation", "action")[:2] == [("Task.", "look"), ("a mug", "take mug")]
    assert imported.malformed.first == [
        "0001.parquet, row 3: exchanges of responses: only those of chat_completions are read"
    ]


def test_files_of_a_run_are_read_in_order_and_the_same_task_is_the_same_game(tmp_path: Path) -> None:
    for number in (10, 9):
        two = [
            {"group_index": g, "reward": float(n), "messages": played(f"Task {g}.", "look")}
            for g in (0, 1)
            for n in (0, 1)
        ]
        write(tmp_path / f"{number:04d}.parquet", VERSION_1, two)
    brought(tmp_path, tmp_path / "run")
    groups = rows(tmp_path / "run", "groups", "game_id", "visit", "policy_version")
    assert [(visit, version) for _, visit, version in groups] == [(0, 9), (0, 9), (1, 10), (1, 10)]
    assert groups[0][0] == groups[2][0] != groups[1][0]


def test_groups_that_lost_a_trajectory_and_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    talk = played("Task.", "look")
    log = write(
        tmp_path / "0000.parquet",
        VERSION_1,
        [
            *({"group_index": g, "reward": 1.0, "messages": talk} for g in (0, 0, 1, 2, 2)),
            {"group_index": 3},
            {"group_index": 4, "reward": float("nan"), "messages": talk},
            {"group_index": 4, "reward": 1.0, "messages": [message("assistant", "x", [{"function": {}}])]},
        ],
    )
    imported = brought(log, tmp_path / "run")
    assert imported.groups == 2
    assert imported.malformed.first == [
        "0000.parquet, row 7: reward: is no finite number",
        "0000.parquet, row 8: 'name'",
    ]
    assert imported.left_out.first == [
        "group 0000/3: it has no trajectory: all of them failed",
        "group 0000/1: 1 trajectories; most groups have 2",
    ]


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"reward": [1.0]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="the column group_index is missing"):
        brought(tmp_path / "x.parquet", tmp_path / "run")
