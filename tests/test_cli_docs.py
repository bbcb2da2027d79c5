"""docs/cli.md is what the commands say of themselves."""

import re
import runpy
from typing import Any

import pytest
from typer.testing import CliRunner
from user import ROOT

import sr

GENERATOR = runpy.run_path(str(ROOT / "docs" / "make_cli.py"))
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = dict(GENERATOR["commands"]())


def help_of(command: str) -> str:
    """What `--help` prints, too wide for anything to be wrapped."""
    words = command.split()[1:]
    shown = CliRunner().invoke(sr.app, [*words, "--help"], terminal_width=10_000, max_content_width=10_000)
    assert shown.exit_code == 0
    return shown.stdout


def options_in(texts: list[str]) -> set[str]:
    return {option for text in texts for option in re.findall(r"--[a-z-]+", text)}


def test_cli_md_is_what_the_commands_say() -> None:
    assert GENERATOR["page"]() == PAGE, "stale: run python docs/make_cli.py"


def test_every_command_is_there() -> None:
    assert {"sr collect", "sr calibrate", "sr query", "sr games make", "sr games list"} <= set(COMMANDS)
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_has_help(command: str) -> None:
    assert COMMANDS[command].help
    for parameter in COMMANDS[command].params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith("."), f"{parameter.name}: a sentence ends with a full stop"


@pytest.mark.parametrize("group", ["sr", "sr games"])
def test_the_list_of_commands_says_each_in_a_whole_sentence(group: str) -> None:
    listed = CliRunner().invoke(sr.app, [*group.split()[1:], "--help"]).stdout.split("Commands:\n")[1]
    for line in listed.rstrip("\n").split("\n"):
        assert re.fullmatch(r"  [a-z]+ +[A-Z].*[^.]\.", line), line


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_the_options_that_help_prints(command: str) -> None:
    section = PAGE.split(f"\n## {command}\n")[1].split("\n## ")[0]
    printed = help_of(command).split("\nOptions:\n")[1]

    options = options_in(re.findall(r"^  (-.*?)(?:  |$)", printed, re.MULTILINE))
    documented = options_in(re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE))
    assert documented == options - {"--help"}
    assert documented
