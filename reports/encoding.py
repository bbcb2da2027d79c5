"""What the figures about rollouts share: sizes, the two conventions, the threshold."""

from typing import TYPE_CHECKING, Any

from calibrate.signals import BY_NAME
from reports.drawing import COLOURS
from reports.focus import Focus

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

WIDTH, HEIGHT = 380, 260
QUARTERS = [0, 0.25, 0.5, 0.75, 1]
_CONVENTION_COLOURS = {"eligible": COLOURS["blue"], "paper": COLOURS["orange"]}


def threshold_rule(focus: Focus) -> Any:
    """A dashed line at the threshold; None where there is no single one."""
    import altair as alt
    import polars as pl

    if focus.threshold is None:
        return None
    rule = alt.Chart(pl.DataFrame({"threshold": [focus.threshold]}))
    return rule.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=COLOURS["ink"]).encode(x="threshold:Q")


def distinct(rows: "pl.DataFrame", focus: Focus) -> "pl.DataFrame":
    """The rows without the paper's convention where it counts the same groups, as it does while no group is over."""
    import polars as pl

    eligible = pl.col("convention") == "eligible"
    return rows.filter(eligible) if focus.all_eligible else rows


def convention_colour(rows: "pl.DataFrame") -> "alt.Color":
    """The colour of each convention that the rows hold."""
    import altair as alt

    there = [name for name in _CONVENTION_COLOURS if name in rows["convention"]]
    scale = alt.Scale(domain=there, range=[_CONVENTION_COLOURS[name] for name in there])
    return alt.Color("convention:N", title=None, scale=scale, legend=alt.Legend(symbolOpacity=1))


def convention_dash(rows: "pl.DataFrame") -> "alt.StrokeDash":
    """The dashes of each convention that the rows hold."""
    import altair as alt

    there = [name for name in _CONVENTION_COLOURS if name in rows["convention"]]
    scale = alt.Scale(domain=there, range=[[1, 0], [5, 3]][: len(there)])
    return alt.StrokeDash("convention:N", title=None, scale=scale)


def low_is_alike(focus: Focus) -> bool:
    """Whether low values of the signal speak for zero variance."""
    return BY_NAME[focus.signal].alike == "low"


def largest(values: "pl.Series") -> float:
    """The largest of some numbers; 0 where there is none."""
    return float(values.max() or 0)  # type: ignore[arg-type]


def smallest(values: "pl.Series") -> float:
    """The smallest of some numbers; 0 where there is none."""
    return float(values.min() or 0)  # type: ignore[arg-type]
