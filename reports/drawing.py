"""From a chart to the files and the page: one look, colours that any eye tells apart, both themes from one drawing.

The page shows figures as inline SVG: crisp at any size, read by screen readers mark by mark, a few tens of kB each, and
no script. Every colour that a figure uses stands in `COLOURS`; in the page each becomes a CSS variable, so that one
drawing serves the light and the dark theme.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collect.errors import MissingDependency
from collect.files import replacing
from reports.tables import Sheet

# Okabe and Ito's palette, which the colour-blind tell apart, and greys. The page's style sheet has the dark ones.
COLOURS: Mapping[str, str] = {
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#009e73",
    "pink": "#cc79a7",
    "sky": "#56b4e9",
    "yellow": "#e69f00",
    "grey": "#8b929c",
    "ink": "#1f2329",
    "muted": "#5c6470",
    "grid": "#e3e6ea",
    "paper": "#ffffff",
}
SERIES = tuple(COLOURS[name] for name in ("blue", "orange", "green", "pink", "sky", "yellow", "grey"))
OF_OUTCOME = {
    "all_fail": COLOURS["orange"],
    "mixed": COLOURS["grey"],
    "all_succeed": COLOURS["blue"],
    "uniform": COLOURS["pink"],
}

# Metrically the same three; the first is in vl-convert, so that text has its right width on a machine without fonts.
_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
_COLOUR = re.compile("|".join(map(re.escape, COLOURS.values())))


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure: its name in files, what it shows, of how many groups, how to read it, the chart, and the table that it
    draws. A `wide` one takes the width of the page.
    """

    name: str
    title: str
    subtitle: str
    caption: str
    chart: Any  # of Altair
    data: Sheet
    wide: bool = False


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG with its title, on white paper; and as it stands in the page, under a title of the page's own."""

    svg: str
    inline: str


def check_installed() -> None:
    """Raise MissingDependency where the packages that draw are absent."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingDependency("what draws figures (altair, vl-convert)", _INSTALL) from error


_INSTALL = 'pip install "selective-rollout[report]"'


def draw(figure: Figure) -> Drawn:
    """Draw a figure; the same figure gives the same text."""
    import altair as alt
    import vl_convert

    with alt.data_transformers.enable("default", max_rows=None):
        bare = _styled(figure.chart).to_dict()
    titled = bare | {"title": {"text": figure.title, "subtitle": figure.subtitle}}
    inline, whole = (_renumbered(vl_convert.vegalite_to_svg(chart)) for chart in (bare, titled))
    return Drawn(whole, _inline(inline, figure.name))


def write(drawn: Drawn, folder: Path, name: str) -> None:
    """Write a drawn figure as SVG and PDF. The order of objects in a PDF varies; what it shows does not."""
    import vl_convert

    with replacing(folder / f"{name}.svg") as temporary:
        temporary.write_text(drawn.svg, encoding="utf-8")
    with replacing(folder / f"{name}.pdf") as temporary:
        temporary.write_bytes(vl_convert.svg_to_pdf(drawn.svg))


def _styled(chart: Any) -> Any:
    return (
        chart.configure(font=_FONT, background=COLOURS["paper"], padding=6)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=COLOURS["muted"],
            titleColor=COLOURS["ink"],
            domainColor=COLOURS["grey"],
            tickColor=COLOURS["grey"],
            gridColor=COLOURS["grid"],
            labelFontSize=11,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_legend(
            labelColor=COLOURS["ink"],
            titleColor=COLOURS["ink"],
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
            orient="top",
            labelLimit=400,
        )
        .configure_header(labelColor=COLOURS["ink"], titleColor=COLOURS["ink"], labelFontSize=11, titleFontSize=12)
        .configure_title(
            color=COLOURS["ink"],
            subtitleColor=COLOURS["muted"],
            fontSize=13,
            subtitleFontSize=11,
            anchor="start",
            frame="group",
            offset=10,
        )
    )


def _renumbered(svg: str) -> str:
    """The drawing with its ids counted from 1: Vega goes on counting from one drawing to the next."""
    for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', svg)), start=1):
        svg = re.sub(rf'(\bid="|url\(#){re.escape(name)}(?=["\)])', rf"\g<1>part{number}", svg)
    return svg


def _inline(svg: str, name: str) -> str:
    """The drawing for the page: colours by name, and ids of its own, since ids are one name space in a page."""
    svg = _COLOUR.sub(lambda found: f"var(--{_NAME_OF[found[0]]})", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    return svg.replace("<svg ", '<svg role="img" ', 1)


_NAME_OF = {colour: name for name, colour in COLOURS.items()}
