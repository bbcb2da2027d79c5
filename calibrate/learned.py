"""The learned rule: logistic regression on all signals, at each of a few steps, with its coefficients laid open."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrate.fit import Found, Search, better, climb_at, columns_spread, found_at
from calibrate.ladder import TIE
from calibrate.rules import Learned, Term
from calibrate.sample import Bools, Sample

# How strongly weights are held back: a prior of this standard deviation on each, with signals in units of their own
# spread. Groups are few and the signals say much the same thing.
_SPREAD_OF_WEIGHTS = 0.5


def find_learned(sample: Sample, search: Search, rows: Bools) -> Found | None:
    """The best learned rule at one of five steps spread over those of the search, on all its signals.

    The weights and the threshold are fitted on the same groups in `rows`, which flatters the rule more than others.
    """
    found = []
    for column in columns_spread(search.columns):
        counted = sample.counted(column, search.convention) & rows
        rule = learn(sample, search.signals, column, counted)
        if rule is None or not (sample.eligible[:, column] & rows).any():
            continue
        likeness = rule.score({name: sample.signals[name][counted, column].astype(np.float64) for name in rule.signals})
        rungs = climb_at(sample, column, counted, likeness, rows)
        if (best := rungs.best(search.target_precision)) is not None:
            threshold = min(1.0, float(rungs.thresholds[best]))
            found.append(found_at(rule.model_copy(update={"threshold": threshold}), rungs, best))
    return better(found)


def learn(sample: Sample, signals: Sequence[str], column: int, rows: Bools) -> Learned | None:
    """The estimate of the chance that a group in `rows` is informative; flags none. None when a class is absent.

    Signals that do not vary there, but for rounding, are left out.
    """
    informative = ~sample.zero_variance[rows]
    if informative.all() or not informative.any():
        return None
    values = {name: sample.signals[name][rows, column].astype(np.float64) for name in signals}
    varying = {name: value for name, value in values.items() if np.ptp(value) > TIE}
    terms = [
        Term(signal=name, mean=float(value.mean()), scale=float(value.std()), weight=0.0)
        for name, value in varying.items()
    ]
    intercept, weights = _logistic([(varying[t.signal] - t.mean) / t.scale for t in terms], informative)
    return Learned(
        step=int(sample.steps[column]),
        threshold=0.0,
        intercept=intercept,
        terms=tuple(t.model_copy(update={"weight": w}) for t, w in zip(terms, weights, strict=True)),
    )


def _logistic(columns: list[NDArray[np.float64]], informative: Bools) -> tuple[float, list[float]]:
    """Intercept and weights of the ridge-penalised logistic regression."""
    from sklearn.linear_model import LogisticRegression

    if not columns:
        share = informative.mean()
        return float(np.log(share / (1 - share))), []
    model = LogisticRegression(C=_SPREAD_OF_WEIGHTS**2, max_iter=1000).fit(np.column_stack(columns), informative)
    return float(model.intercept_[0]), [float(weight) for weight in model.coef_[0]]
