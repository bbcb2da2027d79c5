"""A gate to begin with, whose parts a test may change."""

from typing import Any

from calibrate.convention import Convention
from calibrate.gate import Evidence, Gate, versions
from calibrate.rules import Threshold

D = "prefix_edit_distance_mean"
EVIDENCE = Evidence(
    groups=100,
    tasks=100,
    zero_variance=39,
    population=94,
    taken=17,
    cut=17,
    true_positives=13,
    false_positives=4,
    precision=13 / 17,
    precision_low=0.5,
    precision_high=0.93,
    recall=13 / 33,
    recall_of_all=13 / 39,
    saving_unit="tokens",
    saving=0.119,
    saving_low=0.06,
    saving_high=0.16,
    net_saving=0.057,
    net_saving_low=None,
    net_saving_high=None,
    break_even_precision=0.6,
    advantage_l2_kept=0.9667,
)


def make_gate(**changes: Any) -> Gate:
    rule: dict[str, Any] = {"signal": D, "step": 3, "threshold": 0.1 + 0.2}
    rule |= {name: changes.pop(name) for name in tuple(rule) if name in changes}
    fields: dict[str, Any] = {
        "rule": Threshold(**rule),
        "group_size": 3,
        "horizon": 30,
        "model": "SmolLM2-135M-Instruct",
        "adapter": None,
        "prompt": "act",
        "convention": Convention.ELIGIBLE,
        "target_precision": 0.75,
        "evidence": EVIDENCE,
        "data": "0" * 64,
        "versions": versions(),
    }
    return Gate(**(fields | changes))
