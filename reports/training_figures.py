"""The figures of training runs, drawn from the tables of `reports.training_tables`."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from reports.drawing import COLOURS, SERIES, Figure
from reports.encoding import largest, smallest
from reports.tables import Sheet
from reports.training_log import UNGATED
from reports.training_tables import PHASES

_WIDTH, _HEIGHT = 380, 230
_WINDOW = 5  # iterations that a running mean spans
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 3]]


def success(data: Sheet) -> Figure:
    """Held-out success over iterations, with bands."""
    import altair as alt

    base = _base(data.rows)
    x, y = _iteration(), alt.Y("success:Q", title="held-out success", scale=alt.Scale(domain=[0, 1]), axis=_percent())
    band = base.mark_area(opacity=0.14).encode(
        x=x, y=alt.Y("success_low:Q", title="held-out success"), y2="success_high:Q"
    )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=25)).encode(
        x=x, y=y, strokeDash=_dash(data.rows)
    )
    games = largest(data.rows["games"])
    return _figure(
        "held_out_success",
        "Held-out success",
        f"greedy, ungated, n = {games:g} games an evaluation",
        "Bands: 95 %, Clopper-Pearson.",
        band + line,
        data,
    )


def wall_clock(data: Sheet) -> Figure:
    """Hours so far, by iteration."""
    hours = pl.col("seconds_so_far") / 3600
    return _running(
        data, "wall_clock", "Wall-clock", "hours so far", hours, "Summed over iterations, evaluations left out."
    )


def tokens(data: Sheet) -> Figure:
    """Tokens so far, by iteration."""
    millions = pl.col("tokens_so_far") / 1e6
    return _running(data, "tokens", "Sampled tokens", "million tokens so far", millions, "Summed over iterations.")


def _running(data: Sheet, name: str, title: str, axis: str, value: pl.Expr, caption: str) -> Figure:
    import altair as alt

    rows = data.rows.select("arm", "seed", "iteration", value.alias("value"))
    line = (
        _base(rows)
        .mark_line(strokeWidth=2)
        .encode(x=_iteration(), y=alt.Y("value:Q", title=axis), strokeDash=_dash(rows))
    )
    return _figure(name, title, _runs(rows), caption, line, data)


def cuts(data: Sheet) -> Figure:
    """Groups that were cut, and those that turned out to have zero variance, by iteration and run."""
    import altair as alt

    names = {
        "groups_cut": "cut by the gate",
        "groups_zero_variance": "zero-variance, not cut",
        "informative": "informative",
    }
    rows = data.rows.with_columns(
        informative=pl.col("groups") - pl.col("groups_cut") - pl.col("groups_zero_variance"),
        run=pl.format("{}, seed {}", "arm", "seed"),
    )
    long = rows.unpivot(list(names), index=["run", "iteration"], variable_name="kind", value_name="count").with_columns(
        rank=pl.col("kind").replace_strict({name: place for place, name in enumerate(names)}),
        kind=pl.col("kind").replace_strict(names),
    )
    runs = rows["run"].unique(maintain_order=True).to_list()
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=list(names.values()), range=[COLOURS["blue"], COLOURS["orange"], COLOURS["grey"]]),
    )
    last = largest(rows["iteration"])
    panels = []
    for run in runs:
        here = rows.filter(pl.col("run") == run)
        told = f"{run}: {int(here['groups_cut'].sum())} of {int(here['groups'].sum())} groups cut"
        panels.append(
            alt.Chart(
                long.filter(pl.col("run") == run), title=alt.Title(told, fontSize=11, fontWeight="normal", offset=4)
            )
            .mark_bar(width=max(1.0, min(12.0, 0.85 * 560 / last)))
            .encode(
                x=alt.X(
                    "iteration:Q",
                    title="iteration" if run == runs[-1] else None,
                    scale=alt.Scale(domain=[0.5, last + 0.5], nice=False),
                    axis=alt.Axis(tickMinStep=1, grid=False),
                ),
                y=alt.Y("count:Q", title="groups", axis=alt.Axis(tickCount=3)),
                color=colour,
                order="rank:Q",
            )
            .properties(width=560, height=64)
        )
    return _figure(
        "cuts",
        "Cut groups and zero-variance groups",
        _runs(rows),
        "Groups of each iteration. Of the groups that were cut it is not known how they would have ended.",
        alt.vconcat(*panels, spacing=8),
        data,
        wide=True,
    )


def gradient_norm(data: Sheet) -> Figure:
    """The gradient norm, as a running mean over the single iterations."""
    return _noisy(data, "gradient_norm", "Gradient norm", "gradient norm before clipping")


def zero_advantage(data: Sheet) -> Figure:
    """The share of the batch that has no advantage, as a running mean over the single iterations."""
    return _noisy(data, "zero_advantage_share", "Dilution", "share of the batch with advantage 0", share=True)


def reward(data: Sheet) -> Figure:
    """The mean reward in training, as a running mean over the single iterations."""
    return _noisy(data, "reward_mean", "Reward in training", "mean reward of an iteration")


def _noisy(data: Sheet, name: str, title: str, axis: str, *, share: bool = False) -> Figure:
    import altair as alt

    rows = (
        data.rows.select("arm", "seed", "iteration", pl.col(name).cast(pl.Float64).alias("value"))
        .drop_nulls()
        .with_columns(
            mean=pl.col("value")
            .rolling_mean(_WINDOW, min_samples=1, center=True)
            .over("arm", "seed", order_by="iteration")
        )
    )
    base = _base(rows)
    y = alt.Y("value:Q", title=axis, axis=_percent() if share else alt.Axis())
    points = base.mark_point(filled=True, size=10, opacity=0.35).encode(x=_iteration(), y=y)
    line = base.mark_line(strokeWidth=2).encode(x=_iteration(), y=alt.Y("mean:Q"), strokeDash=_dash(rows))
    return _figure(
        name,
        title,
        _runs(rows),
        f"Dots: single iterations; lines: their running mean over {_WINDOW}.",
        points + line,
        data,
    )


def live_precision(data: Sheet) -> Figure:
    """The gate's precision on audited groups, with its interval."""
    import altair as alt

    rows = data.rows.filter(pl.col("gate_precision").is_not_null())
    base = _base(rows)
    scale, title = alt.Scale(domain=[0, 1]), "precision of the gate, live"
    band = base.mark_area(opacity=0.16).encode(
        x=_iteration(), y=alt.Y("gate_precision_low:Q", title=title, scale=scale), y2="gate_precision_high:Q"
    )
    line = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14)).encode(
        x=_iteration(), y=alt.Y("gate_precision:Q", scale=scale), strokeDash=_dash(rows)
    )
    audited = int(rows.group_by("arm", "seed").agg(pl.col("audit_runs").last())["audit_runs"].sum())
    return _figure(
        "live_precision",
        "The gate's precision while it cuts",
        f"n = {audited} audited groups in all",
        "Of the flagged groups that an audit let run, the share that had zero variance, counted since the audit began. "
        "Bands: 95 %, Clopper-Pearson.",
        band + line,
        data,
    )


def phases(data: Sheet) -> Figure:
    """Mean seconds of each phase of an iteration, by run."""
    import altair as alt

    rows = data.rows.with_columns(
        run=pl.format("{}, seed {}", "arm", "seed"),
        rank=pl.col("phase").replace_strict({name: place for place, name in enumerate(PHASES)}),
    )
    there = [name for name in PHASES if name in rows["phase"]]
    runs = rows["run"].unique(maintain_order=True).to_list()
    chart = (
        alt.Chart(rows)
        .mark_bar(height={"band": 0.7})
        .encode(
            y=alt.Y("run:N", sort=runs, title=None, axis=alt.Axis(labelLimit=220)),
            x=alt.X("seconds:Q", title="mean seconds an iteration"),
            color=alt.Color(
                "phase:N", title=None, sort=there, scale=alt.Scale(domain=there, range=list(SERIES[: len(there)]))
            ),
            order="rank:Q",
        )
        .properties(width=_WIDTH, height=28 * len(runs))
    )
    return Figure(
        "phases",
        "Where the time of an iteration goes",
        f"means over n = {smallest(rows['n']):g} iterations or more",
        "rollout: without the gate's decisions; swap: saving the adapter and giving it to the engine.",
        chart,
        data,
    )


def paired(data: Sheet) -> Figure:
    """Matched arms: each measure with its interval, seed by seed and over all."""
    import altair as alt

    rows = data.rows.with_columns(
        row=pl.when(data.rows["arm"].n_unique() > 1).then(pl.format("{}, {}", "arm", "seed")).otherwise(pl.col("seed"))
    )
    order = rows["row"].unique(maintain_order=True).to_list()
    panels: list[Any] = []
    for measure in rows["measure"].unique(maintain_order=True):
        here = rows.filter(pl.col("measure") == measure)
        form = ".2f" if "ratio" in measure else "+.1%" if "change" in measure else ".2%"
        base = alt.Chart(here).encode(
            y=alt.Y("row:N", sort=order, title=None),
            color=alt.condition("datum.seed == 'all seeds'", alt.value(COLOURS["ink"]), alt.value(COLOURS["blue"])),
        )
        none = 1.0 if "ratio" in measure else 0.0
        axis = alt.Axis(format=".2f" if "ratio" in measure else "%", tickCount=5)
        scale = alt.Scale(zero=False)
        x = alt.X("value_low:Q", title=f"{measure} [95 %]", axis=axis, scale=scale)
        zero = (
            alt.Chart(pl.DataFrame({"x": [none]})).mark_rule(color=COLOURS["muted"]).encode(x=alt.X("x:Q", scale=scale))
        )
        rule = base.mark_rule(strokeWidth=2).encode(x=x, x2="value_high:Q")
        point = base.mark_point(filled=True, size=55, opacity=1).encode(x=alt.X("value:Q", scale=scale))
        text = base.mark_text(dy=-9, fontSize=10).encode(
            x=alt.X("value:Q", scale=scale), text=alt.Text("value:Q", format=form)
        )
        panels.append(alt.layer(zero, rule, point, text).properties(width=230, height=34 * len(order)))
    rowed = [alt.hconcat(*panels[first : first + 3], spacing=24) for first in range(0, len(panels), 3)]
    most = largest(rows["pairs"])
    return Figure(
        "paired_differences",
        "Matched arms against the ungated run of the same seed",
        f"n = {most:g} pairs at most",
        "The same games in the same order. Intervals: bootstrap of pairs of iterations, in blocks of neighbours; the "
        "vertical line is no difference. How far other seeds would differ shows only in how far these seeds do.",
        alt.vconcat(*rowed, spacing=18),
        data,
        wide=True,
    )


def _figure(
    name: str, title: str, subtitle: str, caption: str, chart: Any, data: Sheet, *, wide: bool = False
) -> Figure:
    sized = chart if wide else chart.properties(width=_WIDTH, height=_HEIGHT)
    return Figure(name, title, subtitle, caption, sized, data, wide)


def _base(rows: pl.DataFrame) -> Any:
    import altair as alt

    arms = sorted(rows["arm"].unique().to_list(), key=lambda arm: (arm not in UNGATED, arm))
    colours = [COLOURS["grey"] if arm in UNGATED else None for arm in arms]
    rest = iter(SERIES)
    scale = alt.Scale(domain=arms, range=[colour or next(rest) for colour in colours])
    return alt.Chart(rows).encode(
        color=alt.Color("arm:N", title="arm", scale=scale, legend=alt.Legend(symbolOpacity=1)), detail="seed:N"
    )


def _dash(rows: pl.DataFrame) -> Any:
    import altair as alt

    seeds = sorted(rows["seed"].unique().to_list())
    scale = alt.Scale(domain=seeds, range=[_DASHES[place % len(_DASHES)] for place in range(len(seeds))])
    return alt.StrokeDash("seed:O", title="seed", scale=scale)


def _iteration() -> Any:
    import altair as alt

    return alt.X("iteration:Q", title="iteration", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))


def _percent() -> Any:
    import altair as alt

    return alt.Axis(format="%", tickCount=5)


def _runs(rows: pl.DataFrame) -> str:
    """How many iterations of how many runs."""
    iterations: Sequence[int] = rows.group_by("arm", "seed").len()["len"].to_list()
    span = f"{min(iterations)} to {max(iterations)}" if len(set(iterations)) > 1 else f"{iterations[0]}"
    return f"n = {span} iterations of {len(iterations)} run{'s' * (len(iterations) != 1)}"
