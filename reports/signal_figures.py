"""The figures about how groups end and how well signals tell them apart, from `reports.calibration_tables`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports.calibration_tables import ALL, OUTCOMES
from reports.drawing import COLOURS, OF_OUTCOME, Figure
from reports.encoding import (
    HEIGHT,
    QUARTERS,
    WIDTH,
    convention_colour,
    convention_dash,
    distinct,
    largest,
    low_is_alike,
    smallest,
    threshold_rule,
)
from reports.focus import Focus
from reports.tables import Sheet

if TYPE_CHECKING:
    import altair as alt

_WORDS = {"all_fail": "all fail", "mixed": "mixed", "all_succeed": "all succeed", "uniform": "uniform"}
_RANK = {name: rank for rank, name in enumerate(OUTCOMES)}


def composition(data: Sheet) -> Figure:
    """How groups end, by task type: shares, and the share of zero variance with its interval."""
    import altair as alt
    import polars as pl

    rows = data.rows.with_columns(_label=pl.format("{} (n = {})", "task_type", "groups"))
    order = rows["_label"].to_list()
    long = (
        rows.unpivot([k for k in OUTCOMES if rows[k].sum()], index=["_label", "groups"], variable_name="outcome")
        .with_columns(share=pl.col("value") / pl.col("groups"), rank=pl.col("outcome").replace_strict(_RANK))
        .with_columns(pl.col("outcome").replace_strict(_WORDS))
    )
    y = alt.Y("_label:N", sort=order, title=None, axis=alt.Axis(labelLimit=320))
    shares = (
        alt.Chart(long)
        .mark_bar(height={"band": 0.72})
        .encode(
            y=y,
            x=alt.X(
                "share:Q",
                title="share of groups",
                axis=alt.Axis(format="%", values=QUARTERS),
                scale=alt.Scale(domain=[0, 1]),
            ),
            color=_outcome_colour(long["outcome"].unique().to_list()),
            order="rank:Q",
        )
        .properties(width=300, height=26 * len(order))
    )
    base = alt.Chart(rows).encode(y=alt.Y("_label:N", sort=order, title=None, axis=None))
    domain = alt.Scale(domain=[0, 1])
    rule = base.mark_rule(color=COLOURS["ink"], strokeWidth=1.5).encode(
        x=alt.X(
            "zero_variance_low:Q",
            title="zero-variance share [95 %]",
            axis=alt.Axis(format="%", values=QUARTERS),
            scale=domain,
        ),
        x2="zero_variance_high:Q",
    )
    point = base.mark_point(color=COLOURS["ink"], filled=True, size=45, opacity=1).encode(
        x=alt.X("zero_variance:Q", scale=domain)
    )
    chart = alt.hconcat(shares, (rule + point).properties(width=200, height=26 * len(order)), spacing=16)
    total = rows.filter(pl.col("task_type") == ALL)["groups"][0]
    return Figure(
        "composition",
        "How groups end" + (", by task type" if rows.height > 1 else ""),
        f"n = {total} groups",
        "A group whose trajectories all fail or all succeed has zero variance and teaches nothing. Right: its share "
        "with the 95 % interval (Clopper-Pearson, by task).",
        chart,
        data,
        wide=True,
    )


def distribution(data: Sheet, focus: Focus) -> Figure:
    """The signal at K by outcome, with the threshold."""
    import altair as alt
    import polars as pl

    rows = data.rows
    there = [kind for kind in OUTCOMES if kind in rows["outcome"].unique()]
    panels = []
    for place, kind in enumerate(there):
        here = rows.filter(pl.col("outcome") == kind)
        counts = {state: int(here.filter(pl.col("state") == state)["groups"].sum()) for state in ("running", "over")}
        last = place == len(there) - 1
        over = f", {counts['over']} of them over already (pale)" if counts["over"] else ""
        bars = (
            alt.Chart(here.filter(pl.col("groups") > 0))
            .mark_bar(color=OF_OUTCOME[kind], binSpacing=1)
            .encode(
                x=alt.X(
                    "from:Q",
                    bin="binned",
                    title=f"{focus.signal} at K = {focus.step}" if last else None,
                    scale=alt.Scale(domain=[smallest(rows["from"]), largest(rows["to"])], nice=False),
                    axis=alt.Axis(labels=last, tickCount=8, grid=False),
                ),
                x2="to:Q",
                y=alt.Y("groups:Q", title="groups", axis=alt.Axis(tickCount=3, tickMinStep=1)),
                opacity=alt.Opacity(
                    "state:N", scale=alt.Scale(domain=["running", "over"], range=[1, 0.35]), legend=None
                ),
                order="state:N",
            )
        )
        rules = threshold_rule(focus)
        title = alt.Title(
            f"{_WORDS[kind]} (n = {sum(counts.values())}{over})", fontSize=11, fontWeight="normal", offset=4
        )
        panels.append((bars + rules if rules else bars).properties(width=WIDTH, height=66, title=title))
    caption = (
        "Groups that look alike lie to the left" if low_is_alike(focus) else "Groups that look alike lie to the right"
    )
    told = f"; the dashed line is the threshold {focus.threshold:.4g} ({focus.origin})" if focus.threshold else ""
    return Figure(
        "signal_by_outcome",
        "The signal by outcome",
        f"{focus.signal} at K = {focus.step}, n = {data.rows['groups'].sum()} groups",
        f"{caption}{told}. Pale: groups that were over by then, where nothing is left to cut.",
        alt.vconcat(*panels, spacing=10),
        data,
    )


def roc(data: Sheet, focus: Focus) -> Figure:
    """The ROC curve with its band, on both conventions."""
    return _curve(
        data,
        focus,
        "roc",
        "ROC",
        ("share of informative groups cut", "share of zero-variance groups cut"),
        "Up and to the left is better; the dotted diagonal is chance.",
        [(0.0, 0.0), (1.0, 1.0)],
    )


def precision_recall(data: Sheet, focus: Focus, rate: float) -> Figure:
    """The precision-recall curve with its band, on both conventions."""
    return _curve(
        data,
        focus,
        "precision_recall",
        "Precision and recall",
        ("recall: share of zero-variance groups cut", "precision: zero-variance share of the cuts"),
        f"The dotted line is what random cuts would have: the zero-variance share of the eligible groups, {rate:.2f}.",
        [(0.0, rate), (1.0, rate)],
    )


def _curve(
    data: Sheet,
    focus: Focus,
    name: str,
    title: str,
    axes: tuple[str, str],
    reading: str,
    chance: list[tuple[float, float]],
) -> Figure:
    import altair as alt
    import polars as pl

    rows = distinct(data.rows.filter(pl.col("curve") == name), focus)
    x = alt.X("x:Q", title=axes[0], scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5))
    y = alt.Y("y:Q", title=axes[1], scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5))
    base = alt.Chart(rows).encode(color=convention_colour(rows))
    band = base.mark_area(opacity=0.18).encode(x=x, y=alt.Y("y_low:Q", title=axes[1]), y2="y_high:Q")
    line = base.mark_line(strokeWidth=2).encode(x=x, y=y, strokeDash=convention_dash(rows))
    straight = alt.Chart(pl.DataFrame(chance, schema=["x", "y"], orient="row"))
    reference = straight.mark_line(strokeDash=[2, 3], color=COLOURS["muted"], strokeWidth=1.2).encode(x=x, y=y)
    return Figure(
        name,
        title,
        f"{focus.signal} at K = {focus.step}, n = {focus.eligible} eligible groups",
        f"{reading} Bands: pointwise 95 %, bootstrap by task. Eligible: groups still running at K, which "
        "are all that a gate can cut. Paper: all groups, as published tables count.",
        alt.layer(band, reference, line).properties(width=300, height=300),
        data,
    )


def auroc_by_step(data: Sheet, focus: Focus) -> Figure:
    """AUROC of the signal over K, on both conventions."""
    import altair as alt
    import polars as pl

    rows = data.rows.filter((pl.col("signal") == focus.signal) & pl.col("auroc").is_not_null())
    if rows.group_by("step").agg(pl.col("groups").n_unique())["groups"].max() == 1:  # no group is over at any step
        rows = rows.filter(pl.col("convention") == "eligible")
    x = alt.X("step:Q", title="step K", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))
    scale = alt.Scale(domain=[0, 1])
    base = alt.Chart(rows).encode(color=convention_colour(rows))
    band = base.mark_area(opacity=0.16).encode(
        x=x, y=alt.Y("auroc_low:Q", title="AUROC", scale=scale), y2="auroc_high:Q"
    )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=18)).encode(
        x=x, y=alt.Y("auroc:Q", scale=scale), strokeDash=convention_dash(rows)
    )
    chance = alt.Chart(pl.DataFrame({"y": [0.5]})).mark_rule(strokeDash=[2, 3], color=COLOURS["muted"]).encode(y="y:Q")
    eligible = rows.filter(pl.col("convention") == "eligible")["groups"]
    most, fewest = largest(eligible), smallest(eligible)
    span = f"n = {most:g}{f' to {fewest:g}' * (fewest < most)} eligible groups"
    return Figure(
        "auroc_by_step",
        "AUROC by step K",
        f"{focus.signal}, {span}",
        "Bands: 95 %, bootstrap by task. Where the two conventions part, the signal comes from groups that are over "
        "already, which no gate can cut.",
        alt.layer(chance, band, line).properties(width=WIDTH, height=HEIGHT),
        data,
    )


def auroc_map(data: Sheet) -> Figure:
    """AUROC of every signal at every step."""
    return _map(
        data,
        "auroc",
        "AUROC, signal by step K",
        "Blue: the signal tells zero-variance groups apart as it should; orange: it speaks against its own direction. "
        "A dot marks cells whose 95 % interval (bootstrap by task) does not hold 0.5. Blank: one class is absent.",
        (0.0, 0.5, 1.0),
        "(datum.auroc_low > 0.5 || datum.auroc_high < 0.5) && isValid(datum.auroc_low)",
    )


def correlation_map(data: Sheet) -> Figure:
    """Rank correlation of every signal and the reward variance at every step."""
    return _map(
        data,
        "rho",
        "Rank correlation with the reward variance, signal by step K",
        "Spearman's rho. Signals that speak for zero variance by high values (termination_fraction, repetition, "
        "refused_share, mean_logprob) should be negative. A dot marks p < 0.05, with the groups taken as independent. "
        "Blank: one of the two does not vary.",
        (-1.0, 0.0, 1.0),
        "datum.p_value < 0.05 && isValid(datum.p_value)",
    )


def _map(data: Sheet, value: str, title: str, caption: str, domain: tuple[float, float, float], marked: str) -> Figure:
    import altair as alt
    import polars as pl

    rows = data.rows.filter((pl.col("convention") == "eligible") & pl.col(value).is_not_null())
    signals = data.rows["signal"].unique(maintain_order=True).to_list()
    steps = sorted(data.rows["step"].unique().to_list())
    shown = [step for step in steps if step == steps[0] or step % 5 == 0] if len(steps) > 12 else steps
    base = alt.Chart(rows).encode(
        x=alt.X("step:O", title="step K", scale=alt.Scale(domain=steps), axis=alt.Axis(values=shown, labelAngle=0)),
        y=alt.Y("signal:N", title=None, scale=alt.Scale(domain=signals), axis=alt.Axis(labelLimit=260)),
    )
    colour = alt.Color(
        f"{value}:Q",
        scale=alt.Scale(domain=list(domain), range=[COLOURS["orange"], "#f4f4f2", COLOURS["blue"]], interpolate="rgb"),
        legend=alt.Legend(title=None, gradientLength=180, orient="top"),
    )
    cells = base.mark_rect().encode(color=colour)
    dots = base.transform_filter(marked).mark_point(filled=True, size=9, color="#111418", opacity=1)
    width = max(12, min(60, 480 // len(steps)))
    chart = (cells + dots).properties(width=width * len(steps), height=19 * len(signals))
    name = {"auroc": "auroc_map", "rho": "rank_correlation_map"}[value]
    most = largest(rows["groups"])
    return Figure(name, title, f"n = up to {most:g} eligible groups", caption, chart, data)


def _outcome_colour(words: Sequence[str]) -> "alt.Color":
    import altair as alt

    there = [kind for kind in OUTCOMES if _WORDS[kind] in words]
    scale = alt.Scale(domain=[_WORDS[kind] for kind in there], range=[OF_OUTCOME[kind] for kind in there])
    return alt.Color("outcome:N", title=None, scale=scale)
