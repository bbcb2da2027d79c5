import warnings
from typing import Any

import numpy as np
import pytest
from gates import D, make_gate
from pydantic import ValidationError
from samples import make_sample

from calibrate.prefixes import Prefix
from calibrate.rules import Either, Learned, Term

LARGEST = 1e100


@pytest.mark.parametrize(
    ("signal", "threshold"),
    [(D, -1e9), (D, 0.0), (D, 1 + 1e-12), ("repetition", 1e9), ("repetition", -1e-12), ("mean_logprob", 1e9)],
)
def test_the_threshold_of_the_or_rule_may_lie_beyond_all_values_where_it_flags_none(
    signal: str, threshold: float
) -> None:
    assert Either(signal=signal, step=3, threshold=threshold, ended=0.5).threshold == threshold


@pytest.mark.parametrize(("signal", "threshold"), [(D, 1e9), (D, 1.00001), ("repetition", -1e9), ("repetition", -1e-5)])
def test_an_or_rule_whose_threshold_flags_every_group_is_refused(signal: str, threshold: float) -> None:
    with pytest.raises(ValidationError, match=f"is outside the range of {signal}, 0 to 1"):
        Either(signal=signal, step=3, threshold=threshold, ended=0.5)


@pytest.mark.parametrize(
    "change",
    [{"scale": 5e-324}, {"scale": 0.0}, {"scale": -0.5}, {"weight": 1e308}, {"weight": -1e308}, {"mean": 1e308}],
)
def test_a_coefficient_with_which_a_score_would_overflow_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(change))}\n.* with which scores overflow"):
        Term.model_validate({"signal": D, "mean": 0.1, "scale": 0.5, "weight": 2.0} | change)


def test_an_intercept_with_which_a_score_would_overflow_is_refused() -> None:
    with pytest.raises(ValidationError, match="intercept"):
        Learned(step=1, threshold=0.5, intercept=-1e308, terms=())


@pytest.mark.filterwarnings("error")
def test_the_largest_coefficients_that_a_rule_may_have_give_a_score() -> None:
    largest: dict[str, Any] = {"mean": -LARGEST, "scale": 1 / LARGEST}
    terms = (
        Term(signal=D, weight=LARGEST, **largest),
        Term(signal="mean_logprob", weight=-LARGEST, **(largest | {"mean": LARGEST})),
        Term(signal="repetition", weight=-LARGEST, **largest),
    )
    rule = Learned(step=2, threshold=0.5, intercept=0.0, terms=terms)
    group = [Prefix(["a", "b"], ["x", "x"], logprobs=[-1e100, -1.0], tokens=[1, 1])] * 3
    # The three terms are about 1e300, 1.5e300 and -1e300: certainly informative.
    assert make_gate(rule=rule).decide(group, eligible=True).score == pytest.approx(1)


def test_a_log_probability_of_a_table_that_is_beyond_all_sense_warns_of_nothing() -> None:
    sample = make_sample([[0.0]] * 2, ["all_fail", "mixed"], signals={"mean_logprob": [[-1e308], [-0.5]]})
    term = Term(signal="mean_logprob", mean=-1.0, scale=0.01, weight=2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at = Learned(step=1, threshold=0.5, intercept=0.0, terms=(term,)).flags(sample)
    np.testing.assert_array_equal(at, [0, -1])
