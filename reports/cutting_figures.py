"""The figures about what cutting groups does, from `reports.calibration_tables`."""

from typing import TYPE_CHECKING, Any

from reports.drawing import COLOURS, Figure
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
    import polars as pl


def sweep_precision(data: Sheet, focus: Focus) -> Figure:
    """Precision of each threshold at K, on both conventions."""
    import altair as alt

    x = _threshold_axis(focus)
    rows = distinct(_taken(data), focus)
    base = alt.Chart(rows).encode(color=convention_colour(rows))
    scale = alt.Scale(domain=[0, 1])
    title = "precision [95 %]"
    band = base.mark_area(opacity=0.16, interpolate="step-after").encode(
        x=x, y=alt.Y("precision_low:Q", title=title, scale=scale), y2="precision_high:Q"
    )
    line = base.mark_line(interpolate="step-after", strokeWidth=2).encode(
        x=x, y=alt.Y("precision:Q", scale=scale), strokeDash=convention_dash(rows)
    )
    return Figure(
        "sweep_precision",
        "Precision of each threshold",
        f"{focus.signal} at K = {focus.step}, {_most(data)}",
        "Of the groups that a threshold cuts (eligible) or flags (paper), the share that has zero variance, with its "
        f"interval by task.{_dashed(focus)}",
        _with_rule(alt.layer(band, line), focus).properties(width=WIDTH, height=HEIGHT),
        data,
    )


def sweep_counts(data: Sheet, focus: Focus) -> Figure:
    """What each threshold at K cuts: true and false positives."""
    import altair as alt
    import polars as pl

    names = {"true_positives": "zero-variance (true positives)", "false_positives": "informative (false positives)"}
    rows = (
        data.rows.filter(pl.col("convention") == "eligible")
        .unpivot(list(names), index="threshold", variable_name="kind", value_name="cuts")
        .with_columns(pl.col("kind").replace_strict(names))
    )
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(names.values()), range=[COLOURS["blue"], COLOURS["orange"]]),
        legend=alt.Legend(direction="vertical"),
    )
    area = (
        alt.Chart(rows)
        .mark_area(interpolate="step-after", opacity=0.75)
        .encode(x=_threshold_axis(focus), y=alt.Y("cuts:Q", title="groups cut", stack="zero"), color=colour)
    )
    return Figure(
        "sweep_counts",
        "What each threshold cuts",
        f"{focus.signal} at K = {focus.step}, {_most(data)}",
        f"Cut groups, stacked.{_dashed(focus)}",
        _with_rule(alt.layer(area), focus).properties(width=WIDTH, height=HEIGHT),
        data,
    )


def sweep_savings(data: Sheet, focus: Focus, unit: str) -> Figure:
    """What each threshold at K saves and loses."""
    import altair as alt
    import polars as pl

    names = {"saving": f"{unit} saved", "net_saving": "net saving", "advantage_l2_kept": "advantage L2 kept"}
    eligible = data.rows.filter(pl.col("convention") == "eligible")
    rows = pl.concat(
        [
            eligible.select(
                "threshold",
                pl.lit(title).alias("kind"),
                pl.col(name).alias("share"),
                (pl.col(f"{name}_low") if name != "advantage_l2_kept" else pl.lit(None, pl.Float64)).alias("low"),
                (pl.col(f"{name}_high") if name != "advantage_l2_kept" else pl.lit(None, pl.Float64)).alias("high"),
            ).cast({"share": pl.Float64, "low": pl.Float64, "high": pl.Float64})
            for name, title in names.items()
        ]
    ).filter(pl.col("share").is_not_null())
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(names.values()), range=[COLOURS["blue"], COLOURS["orange"], COLOURS["green"]]),
        legend=alt.Legend(symbolOpacity=1),
    )
    # A net saving that loses everything is minus infinity; its neighbours would squeeze all else into a line.
    scale = alt.Scale(domain=[-0.5, 1], clamp=True, nice=False)
    x = _threshold_axis(focus)
    base = alt.Chart(rows).encode(color=colour)
    band = base.mark_area(opacity=0.14, interpolate="step-after", clip=True).encode(
        x=x, y=alt.Y("low:Q", title="share", scale=scale, axis=alt.Axis(format="%")), y2="high:Q"
    )
    line = base.mark_line(interpolate="step-after", strokeWidth=2, clip=True).encode(
        x=x, y=alt.Y("share:Q", scale=scale)
    )
    zero = alt.Chart(pl.DataFrame({"y": [0.0]})).mark_rule(color=COLOURS["muted"], strokeWidth=1).encode(y="y:Q")
    return Figure(
        "sweep_savings",
        "What each threshold saves and loses",
        f"{focus.signal} at K = {focus.step}, {_most(data)}",
        "Net saving: the fall in the cost of an informative group; under zero a gate costs more than it saves (cut off "
        f"at -50 %). Bands: 95 %, by task.{_dashed(focus)}",
        _with_rule(alt.layer(zero, band, line), focus).properties(width=WIDTH, height=HEIGHT),
        data,
    )


def trade_off(data: Sheet, focus: Focus, unit: str) -> Figure:
    """Savings against precision over all steps and thresholds."""
    import altair as alt
    import polars as pl

    rows = data.rows
    points = rows.filter(pl.col("policy") == "threshold")
    least = smallest(pl.concat([rows["precision"], rows["precision_low"].filter(rows["policy"] == "gate")]))
    x = alt.X("precision:Q", title="precision", scale=alt.Scale(domain=[max(0.0, least - 0.05), 1], nice=False))
    y = alt.Y("saving:Q", title=f"{unit} saved", axis=alt.Axis(format="%"))
    cloud = (
        alt.Chart(points)
        .mark_point(filled=True, size=16, opacity=0.6)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "step:Q",
                scale=alt.Scale(scheme="viridis"),
                legend=alt.Legend(title="step K", gradientLength=140, orient="right"),
            ),
        )
    )
    front = (
        alt.Chart(points.filter("on_front").sort("precision"))
        .mark_line(color=COLOURS["muted"], strokeWidth=1.5, interpolate="step-before")
        .encode(x=x, y=y)
    )
    layers: list[Any] = [front, cloud]
    marks = rows.filter(pl.col("policy") != "threshold")
    if marks.height:
        layers += _landmark_layers(marks, focus)
    return Figure(
        "trade_off",
        "Savings against precision",
        f"every step and threshold on {focus.signal}, n = {largest(rows['groups']):g} groups",
        f"Each dot is a threshold on {focus.signal} with at least 10 cuts; the line joins those that no other beats. "
        "Cross hairs: 95 %, by task. All thresholds are chosen and measured on these groups, which flatters the line.",
        alt.layer(*layers).resolve_scale(color="independent").properties(width=WIDTH, height=300),
        data,
        wide=True,
    )


def _landmark_layers(marks: "pl.DataFrame", focus: Focus) -> list[Any]:
    import altair as alt
    import polars as pl

    names = {
        "gate": f"{focus.label}, K = {focus.step}",
        "random": "random cuts, same rate",
        "oracle": f"oracle, K = {focus.step}",
    }
    rows = marks.with_columns(_name=pl.col("policy").replace_strict(names))
    base = alt.Chart(rows)
    ink = COLOURS["ink"]
    points = base.mark_point(size=110, filled=True, opacity=1, color=ink).encode(
        x="precision:Q",
        y="saving:Q",
        shape=alt.Shape(
            "_name:N",
            title=None,
            scale=alt.Scale(
                domain=[names[k] for k in ("gate", "random", "oracle")], range=["diamond", "cross", "triangle-up"]
            ),
            legend=alt.Legend(orient="top", direction="horizontal"),
        ),
    )
    gate = alt.Chart(rows.filter(pl.col("policy") == "gate"))
    across = gate.mark_rule(color=ink).encode(x="precision_low:Q", x2="precision_high:Q", y="saving:Q")
    along = gate.mark_rule(color=ink).encode(x="precision:Q", y="saving_low:Q", y2="saving_high:Q")
    return [across, along, points]


def in_and_out(data: Sheet) -> Figure:
    """Every kind of gate in sample and out of sample: precision and net saving."""
    import altair as alt
    import polars as pl

    kinds = ["threshold", "either", "sequential", "learned"]
    rows = data.rows.with_columns(
        pl.col("net_saving", "net_saving_low", "net_saving_high").clip(-0.5, 1),
        taken=pl.when(pl.col("taken").is_null())
        .then(pl.lit("no gate"))
        .otherwise(pl.format("{} cuts", pl.col("taken").cast(pl.Int64))),
    )
    colour = alt.Color(
        "judged:N",
        title=None,
        scale=alt.Scale(domain=["in sample", "out of sample"], range=[COLOURS["grey"], COLOURS["blue"]]),
    )

    def panel(name: str, title: str, ticks: list[float], labels: bool) -> Any:
        domain = [ticks[0], ticks[-1]]
        base = alt.Chart(rows).encode(
            y=alt.Y("gate:N", title=None, scale=alt.Scale(domain=kinds), axis=alt.Axis() if labels else None),
            yOffset=alt.YOffset("judged:N", scale=alt.Scale(domain=["in sample", "out of sample"])),
            color=colour,
        )
        x = alt.X(
            f"{name}_low:Q",
            title=title,
            scale=alt.Scale(domain=domain),
            axis=alt.Axis(format="%", values=ticks),
        )
        rule = base.mark_rule(strokeWidth=2, clip=True).encode(x=x, x2=f"{name}_high:Q")
        point = base.mark_point(filled=True, size=60, opacity=1, clip=True).encode(x=f"{name}:Q")
        layers = [rule, point]
        if labels:
            layers.append(
                base.mark_text(align="left", dx=4, fontSize=10).encode(x=alt.datum(domain[1]), text="taken:N")
            )
        return alt.layer(*layers).properties(width=230, height=44 * len(kinds))

    most = largest(data.rows["groups"])
    chart = alt.hconcat(
        panel("precision", "precision [95 %]", QUARTERS, True),
        panel("net_saving", "net saving [95 %]", [-0.5, -0.25, 0, 0.25, 0.5], False),
        spacing=64,
    )
    return Figure(
        "in_and_out_of_sample",
        "In sample and out of sample",
        f"every kind of gate, n = {most:g} groups",
        "Out of sample, everything that is chosen was chosen anew in folds by task and measured on the groups left "
        "out. No gate: none of the kind reaches the target on all groups. Net saving is cut off at -50 %.",
        chart,
        data,
        wide=True,
    )


def policies(data: Sheet, unit: str) -> Figure:
    """What each policy of cutting saves."""
    import altair as alt
    import polars as pl

    rows = data.rows.filter(pl.col("net_saving").is_not_null())
    order = rows["policy"].to_list()

    def panel(name: str, title: str, axis: Any) -> Any:
        base = alt.Chart(rows).encode(y=alt.Y("policy:N", sort=order, title=None, axis=axis))
        x = alt.X(f"{name}_low:Q", title=f"{title} [95 %]", axis=alt.Axis(format="%", tickCount=5))
        rule = base.mark_rule(strokeWidth=2, color=COLOURS["blue"]).encode(x=x, x2=f"{name}_high:Q")
        point = base.mark_point(filled=True, size=60, opacity=1, color=COLOURS["blue"]).encode(x=f"{name}:Q")
        zero = alt.Chart(pl.DataFrame({"x": [0.0]})).mark_rule(color=COLOURS["muted"]).encode(x="x:Q")
        return alt.layer(zero, rule, point).properties(width=240, height=28 * len(order))

    saved = panel("saving", f"{unit} saved", alt.Axis(labelLimit=260))
    chart = alt.hconcat(saved, panel("net_saving", "net saving", None), spacing=24)
    return Figure(
        "policies",
        "What each policy of cutting would have done",
        f"n = {largest(rows['groups']):g} groups",
        "Net saving: the fall in the cost of an informative group, against rolling everything out. The oracle cuts "
        "exactly the zero-variance groups at the step of the rule; the post-filter drops them after the rollout and "
        "saves nothing.",
        chart,
        data,
        wide=True,
    )


def _threshold_axis(focus: Focus) -> "alt.X":
    import altair as alt

    side = "<" if low_is_alike(focus) else ">"
    return alt.X("threshold:Q", title=f"threshold: cut when {focus.signal} {side}", scale=alt.Scale(nice=False))


def _taken(data: Sheet) -> "pl.DataFrame":
    import polars as pl

    return data.rows.filter(pl.col("precision").is_not_null())


def _with_rule(chart: Any, focus: Focus) -> Any:
    rule = threshold_rule(focus)
    return chart if rule is None else chart + rule


def _dashed(focus: Focus) -> str:
    return f" Dashed: {focus.threshold:.4g}, {focus.origin}." if focus.threshold is not None else ""


def _most(data: Sheet) -> str:
    import polars as pl

    eligible = data.rows.filter(pl.col("convention") == "eligible")
    most = largest(eligible["taken"])
    return f"n = {most:g} eligible groups"
