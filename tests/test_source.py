from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collect.errors import InputError
from collect.source import Complaints, Source, find_files


def test_the_first_ten_complaints_are_kept_and_all_are_counted() -> None:
    complaints = Complaints()
    for number in range(25):
        complaints.add(f"line {number}", "bad\n\x1b[2Jthing")
    assert complaints.total == 25
    assert complaints.first == [f"line {number}: bad \ufffd[2Jthing" for number in range(10)]


@given(
    lines=st.lists(
        st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])).filter(
            lambda t: t.encode().strip()
        )
    ),
    end=st.booleans(),
)
def test_only_a_line_feed_ends_a_line(tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: bool) -> None:
    path = tmp_path_factory.mktemp("source") / "x.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n" * end)
    read = list(Source((path,)).lines(path))
    assert [line.removesuffix(b"\n").decode() for _, line, _ in read] == lines
    assert [place.number for place, _, _ in read] == list(range(1, len(lines) + 1))
    assert [unended for _, _, unended in read] == [False] * (len(lines) - 1) + [not end] * bool(lines)


def test_blank_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n  \nx\r\n")
    assert [(str(place), line) for place, line, _ in Source((path,)).lines(path)] == [("x.jsonl, line 3", b"x\r\n")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}")
    assert [line for _, line, _ in Source((path,)).lines(path)] == [b"{}\n", b"\xef\xbb\xbf{}"]


def test_a_line_too_long_for_memory_is_complained_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collect.source._LONGEST_LINE", 8)
    monkeypatch.setattr("collect.source._READ_AT_ONCE", 4)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"short\n" + b"y" * 21 + b"\nend")
    source = Source((path,))
    assert [(place.number, line) for place, line, _ in source.lines(path)] == [(1, b"short\n"), (3, b"end")]
    assert source.malformed.first == ["x.jsonl, line 2: longer than 256 MiB; is this JSON Lines?"]


def test_csv_rows_keep_what_is_quoted_and_malformed_ones_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(
        '\ufeffa,b\r\n1,"x\ny\u2028z"\n2\n3,"said ""no"""\n4,"a"b\n'.encode()
        + b"5,\xff\n6,\n\n7,"
        + "é\u0085".encode()
        + b'\n8,"to'
    )
    seen = list[tuple[int, int]]()
    source = Source((path,), lambda done, total: seen.append((done, total)))
    rows = [(place.number, row) for place, row in source.csv_rows(path)]
    assert rows == [
        (2, {"a": "1", "b": "x\ny\u2028z"}),
        (5, {"a": "3", "b": 'said "no"'}),
        (8, {"a": "6", "b": ""}),
        (10, {"a": "7", "b": "é\u0085"}),
    ]
    assert [told.split(":")[0] for told in source.malformed.first] == [f"x.csv, line {n}" for n in (4, 6, 7)]
    assert source.torn == ["x.csv, line 11: cut off in the middle; left out"]
    assert seen[-1][0] <= seen[-1][1] == path.stat().st_size


def test_a_quote_that_is_never_closed_is_named_with_all_that_it_swallows(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('a,b\n1,2\n3,"4\n5,6\n7,8\n')
    source = Source((path,))
    assert [row for _, row in source.csv_rows(path)] == [{"a": "1", "b": "2"}]
    assert source.malformed.first == [
        "x.csv, line 3: a quote is not closed: all up to the end of the file, line 5, is left out"
    ]
    assert source.torn == []


def test_a_csv_row_cut_off_between_values_is_torn_and_a_whole_one_without_its_end_is_not(tmp_path: Path) -> None:
    (tmp_path / "torn.csv").write_text("a,b,c\n1,2,3\n4,5")
    (tmp_path / "whole.csv").write_text("a,b,c\n1,2,3\n4,5,6")
    torn, whole = Source((tmp_path / "torn.csv",)), Source((tmp_path / "whole.csv",))
    assert len(list(torn.csv_rows(torn.files[0]))) == 1
    assert torn.torn == ["torn.csv, line 3: cut off in the middle; left out"]
    assert len(list(whole.csv_rows(whole.files[0]))) == 2
    assert whole.torn == []


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,a\n1,2\n")
    with pytest.raises(InputError, match="two columns have one name"):
        list(Source((tmp_path / "x.csv",)).csv_rows(tmp_path / "x.csv"))


def test_parquet_rows_are_read_and_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(1000)), "b": ["\u2028"] * 1000}), path, row_group_size=100)
    rows = list(Source((path,)).parquet_rows(path, ["a"]))
    assert [(str(place), row) for place, row in rows[:2]] == [
        ("x.parquet, row 1", {"a": 0}),
        ("x.parquet, row 2", {"a": 1}),
    ]
    assert len(rows) == 1000
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as Parquet after row 0") as refusal:
        list(Source((path,)).parquet_rows(path, ["a"]))
    assert "\n" not in str(refusal.value)


def test_files_of_a_folder_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("10.jsonl", "9.jsonl", "1.jsonl", "notes.txt"):
        (tmp_path / name).write_text("{}\n")
    assert [file.name for file in find_files(tmp_path, ".jsonl")] == ["1.jsonl", "9.jsonl", "10.jsonl"]
    assert find_files(tmp_path / "notes.txt", ".jsonl") == (tmp_path / "notes.txt",)
    with pytest.raises(InputError, match="holds no file that ends with"):
        find_files(tmp_path, ".parquet")
    with pytest.raises(InputError, match="no such file"):
        find_files(tmp_path / "nowhere", ".jsonl")
