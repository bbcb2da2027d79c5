"""The page: sections of figures and tables, and the group browser, in one HTML file that asks nothing of any network.

All text is escaped on its way in. The page's own policy (CSP) lets no script run but the one that it came with, and
lets nothing be fetched.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from reports.drawing import Drawn, Figure
from reports.tables import Sheet
from reports.visible import visible

_ROWS_SHOWN = 80  # of a table; longer ones stand in their files alone


@dataclass(frozen=True)
class Tile:
    """One number at the top of a section: what it is, its value, and its n and interval."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True, eq=False)
class Section:
    """One part of the page. `figures` come drawn; `sheets` are tables that no figure shows."""

    name: str
    title: str
    lead: Sequence[str] = ()
    warnings: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    figures: Sequence[tuple[Figure, Drawn]] = ()
    sheets: Sequence[Sheet] = field(default=())


def build(
    title: str, subtitle: str, sections: Sequence[Section], shelves: Sequence[Mapping[str, Any]], note: str, footer: str
) -> str:
    """The page as text. `shelves` are the groups of the browser, which is left out where there are none; `note` says
    which groups they are.
    """
    script, style = _data("report.js"), _data("report.css")
    parts = [_section(section) for section in sections]
    links = [(section.name, section.title) for section in sections]
    if shelves:
        parts.append(Template(_data("browser.html")).substitute(note=_text(note)))
        links.append(("groups", "Group browser"))
    return Template(_data("page.html")).substitute(
        title=_text(title),
        subtitle=_text(subtitle),
        style=style,
        script=script,
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        navigation="".join(f'<li><a href="#{name}">{_text(text)}</a></li>\n' for name, text in links),
        sections="".join(parts),
        shelves=_json(shelves),
        footer=_text(footer),
    )


def slug(text: str) -> str:
    """The text as part of a file's name or of an id: letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60] or "run"


def _data(name: str) -> str:
    return files("reports").joinpath("data", name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(visible(text))


def _json(value: Any) -> str:
    """JSON inside a script element: no character in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}">\n<h2>{_text(section.title)}</h2>\n']
    parts += [f'<p class="lead">{_text(line)}</p>\n' for line in section.lead]
    parts += [f'<p class="warning">{_text(line)}</p>\n' for line in section.warnings]
    if section.tiles:
        parts.append(f'<dl class="tiles">\n{"".join(map(_tile, section.tiles))}</dl>\n')
    if section.figures:
        parts.append(f'<div class="figures">\n{"".join(_figure(*pair) for pair in section.figures)}</div>\n')
    parts += [f"<h3>{_text(table.title)}</h3>\n{_table(table)}" for table in section.sheets]
    return "".join([*parts, "</section>\n"])


def _tile(tile: Tile) -> str:
    detail = f"<small>{_text(tile.detail)}</small>"
    return f"<div><dt>{_text(tile.name)}</dt><dd>{_text(tile.value)}{detail}</dd></div>\n"


def _figure(figure: Figure, drawn: Drawn) -> str:
    name = figure.name
    links = "".join(
        f'<a href="{folder}/{file}" download>{kind}</a>'
        for folder, file, kind in (
            ("figures", f"{name}.svg", "SVG"),
            ("figures", f"{name}.pdf", "PDF"),
            ("tables", f"{figure.data.name}.csv", "CSV"),
        )
    )
    return (
        f'<figure id="{name}"{" class=wide" if figure.wide else ""}>\n'
        f"<h3>{_text(figure.title)}<small>{_text(figure.subtitle)}</small></h3>\n"
        f'<div class="scroll">{_labelled(drawn.inline, figure)}</div>\n'
        f'<figcaption>{_text(figure.caption)} <span class="files">{links}</span></figcaption>\n'
        f"{_table(figure.data)}</figure>\n"
    )


def _labelled(svg: str, figure: Figure) -> str:
    label = escape(visible(f"{figure.title}: {figure.subtitle}"), quote=True)
    return svg.replace("<svg ", f'<svg aria-label="{label}" ', 1)


def _table(table: Sheet) -> str:
    rows = table.rows
    if not rows.height or rows.height > _ROWS_SHOWN:
        return ""
    shown = [name for name in rows.columns if not _is_bound(name, rows.columns)]
    text = {name: rows[name].dtype == "String" for name in shown}
    head = "".join(f"<th{_class(text[name])}>{_text(name)}</th>" for name in shown)
    body = "".join(
        f"<tr>{''.join(f'<td{_class(text[name])}>{_text(_cell(row, name))}</td>' for name in shown)}</tr>\n"
        for row in rows.iter_rows(named=True)
    )
    count = f"{rows.height} row{'s' * (rows.height != 1)}"
    return (
        f"<details><summary>Table: {_text(table.title)} ({count})</summary><p>{_text(table.note)}</p>"
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
        "</details>\n"
    )


def _is_bound(name: str, names: Sequence[str]) -> bool:
    return any(name.endswith(end) and name.removesuffix(end) in names for end in ("_low", "_high"))


def _class(text: bool) -> str:
    return ' class="text"' if text else ""


def _cell(row: Mapping[str, Any], name: str) -> str:
    """The value, with its interval where the row has one."""
    shown = number(row[name])
    if f"{name}_low" not in row or row[name] is None:
        return shown
    return f"{shown} [{number(row[f'{name}_low'])}, {number(row[f'{name}_high'])}]"


def number(value: Any) -> str:
    """A value as a table shows it: whole numbers whole, others to four digits, n/a where not known."""
    match value:
        case None:
            return "n/a"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.0f}" if value == round(value) or abs(value) >= 10_000 else f"{value:.4g}"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return str(value)
