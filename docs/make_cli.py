"""Writes docs/cli.md from the commands themselves: `python docs/make_cli.py`. A test fails when the file is stale."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from sr import app

PAGE = Path(__file__).with_name("cli.md")

_INTRODUCTION = """\
# The command line

<!-- Written by docs/make_cli.py from the commands. Do not edit. -->

`sr COMMAND --help` says the same on the terminal. What is wrong with the input is said in one line.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | groups failed and are owed, or the disk refused; what was committed is safe: run the same again |
| 2 | something is wrong with the input, or a package is missing; nothing was written |
| 3 | `sr calibrate`: no gate reaches the target precision on these groups |
| 130 | interrupted with Ctrl-C |
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its full name, in the order of `sr --help`."""
    yield from _below("sr", get_command(app))


def page() -> str:
    """The whole of docs/cli.md."""
    return "\n".join([_INTRODUCTION, *(_section(name, command) for name, command in commands())])


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, child in command.commands.items():
        yield from _below(f"{name} {word}", child)


def _section(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    names = [argument.metavar or argument.name.upper() for argument in arguments]
    words = [n if a.required else f"[{n}]" for n, a in zip(names, arguments, strict=True)]
    lines = [f"## {name}", "", f"`{' '.join([name, *words, '[OPTIONS]'])}`", "", inspect.cleandoc(command.help), ""]
    if arguments:
        lines += ["| argument | |", "| --- | --- |"]
        lines += [f"| `{n}` | {_cell(a.help)} |" for n, a in zip(names, arguments, strict=True)]
        lines.append("")
    lines += ["| option | default | |", "| --- | --- | --- |", *map(_row, options), ""]
    return "\n".join(lines)


def _row(option: Any) -> str:
    value = f" {option.metavar}" if option.metavar else ""
    names = ", ".join(f"`{name}{value}`" for name in sorted(option.opts, key=len, reverse=True))
    names += "".join(f" / `{name}`" for name in option.secondary_opts)
    default = getattr(option.default, "value", option.default)
    shown = "" if default is None or isinstance(default, bool) else f"`{default}`"
    return f"| {names} | {shown} | {_cell(option.help)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
