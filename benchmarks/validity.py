"""Whether calibration keeps its promises, where the truth is known: `python benchmarks/validity.py`.

Draws many calibration sets from populations whose precision at every threshold is a formula, and counts: how often a
certificate is wrong, what the certified gates are worth beside Bonferroni's procedure on the same grid and beside the
population's best gate; how far the precision out of sample is from that of gates fitted on as many groups; how often
intervals cover. A cut at K saves (30 - K) / 30 of a group. In all but the last population every group is of its own
task and eligible at every step; in the last, groups of a task are alike, and many are over before the horizon.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr
from scipy.stats import beta

from calibrate.certificate import Attempt, certify
from calibrate.convention import Convention
from calibrate.fit import Search, apply, find
from calibrate.folds import out_of_sample
from calibrate.kinds import GateKind
from calibrate.rules import Rule, Threshold
from calibrate.sample import Cost, Sample

SIGNAL = "prefix_edit_distance_mean"
HORIZON = 30
STEPS = np.arange(1, HORIZON)

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Scores of zero-variance groups and of informative ones: how they are drawn, and their distribution functions.

    `draw(rng, informative, task)` gives (N, S); `under(step, threshold, informative)` the chance of a score under it.
    Tasks have `groups_a_task` groups each. Where that is more than one, the chance that a group is zero-variance is a
    task's own, of mean `zero_variance`, and the outcomes of its groups correlate by a third. `over` is the share of the
    zero-variance groups and of the informative ones that are over at the horizon; they end at an even pace.
    """

    name: str
    zero_variance: float
    target: float
    draw: Callable[[np.random.Generator, Bools, NDArray[np.int64]], Floats]
    under: Callable[[Floats, Floats, bool], Floats]
    groups_a_task: int = 1
    over: tuple[float, float] = (0.0, 0.0)

    def sample(self, rng: np.random.Generator, groups: int) -> Sample:
        """A calibration set."""
        task = np.arange(groups) // self.groups_a_task
        chance = np.full(groups, self.zero_variance)
        if self.groups_a_task > 1:
            chance = rng.beta(2 * self.zero_variance, 2 - 2 * self.zero_variance, groups)[task]
        informative = rng.random(groups) >= chance
        lasts = rng.random(groups) / np.maximum(np.where(informative, self.over[1], self.over[0]), 1e-300)
        ids = pl.Series([f"g{g:06}" for g in range(groups)])
        after = np.broadcast_to(HORIZON - STEPS, (groups, len(STEPS)))
        return Sample(
            group_size=8,
            horizon=HORIZON,
            steps=STEPS,
            group_ids=ids,
            tasks=ids.gather(task * self.groups_a_task),
            task_types=None,
            outcomes=np.where(informative, "mixed", "all_fail"),
            reward_variance=np.where(informative, 0.25, 0.0),
            signals={SIGNAL: self.draw(rng, informative, task)},
            eligible=lasts[:, None] > STEPS / HORIZON,
            eligible_exactly=True,
            cost=Cost("budget", after, np.full(groups, HORIZON)),
        )

    def rates(self, steps: Floats, thresholds: Floats) -> tuple[Floats, Floats, Floats]:
        """True precision, share of groups cut, and net saving of gates."""
        hit = self.zero_variance * self.under(steps, thresholds, False) * (1 - self.over[0] * steps / HORIZON)
        lost = self.under(steps, thresholds, True) * (1 - self.over[1] * steps / HORIZON)
        cut = hit + (1 - self.zero_variance) * lost
        saved = cut * (HORIZON - steps) / HORIZON
        return hit / np.maximum(cut, 1e-300), cut, 1 - (1 - saved) / (1 - lost)

    def truth(self, rule: Rule) -> tuple[float, float, float]:
        """The same of one gate."""
        assert isinstance(rule, Threshold)
        rates = self.rates(np.array(float(rule.step)), np.array(rule.threshold))
        return float(rates[0]), float(rates[1]), float(rates[2])

    def gate(self, step: int, share: float) -> Threshold:
        """A gate at a step K that cuts about this share of the groups."""
        levels = np.linspace(0.001, 0.999, 999)
        _, cut, _ = self.rates(np.full(999, float(step)), levels)
        return Threshold(signal=SIGNAL, step=step, threshold=float(levels[np.argmin(np.abs(cut - share))]))

    @cached_property
    def best(self) -> float:
        """The net saving of the best gate that has the target precision; 0 where there is none."""
        steps, thresholds = np.meshgrid(STEPS.astype(float), np.linspace(0.001, 0.999, 999), indexing="ij")
        precision, _, net = self.rates(steps, thresholds)
        return float(np.max(np.where(precision >= self.target, net, 0.0)))


def normal(
    name: str,
    target: float,
    apart: float,
    shift: float = 0.0,
    groups_a_task: int = 1,
    over: tuple[float, float] = (0.0, 0.0),
) -> Population:
    """Scores whose logits are normal, those of informative groups higher by `apart`, all by `shift`.

    Half of their variance is that of tasks, where tasks have several groups.
    """

    def draw(rng: np.random.Generator, informative: Bools, task: NDArray[np.int64]) -> Floats:
        noise = rng.normal(size=(len(informative), len(STEPS)))
        if groups_a_task > 1:
            of_task = rng.normal(size=(int(task[-1]) + 1, len(STEPS)))
            noise = np.sqrt(0.5) * (noise + of_task[task])
        return np.asarray(expit(noise + shift + apart * informative[:, None]))

    def under(steps: Floats, thresholds: Floats, informative: bool) -> Floats:
        return np.asarray(ndtr(logit(np.clip(thresholds, 1e-12, 1 - 1e-12)) - shift - apart * informative))

    return Population(name, 0.4, target, draw, under, groups_a_task, over)


def not_monotone() -> Population:
    """The lowest scores are informative, those a little higher are not: precision rises and then falls."""
    low, high, zero = beta(1, 30), beta(6, 4), beta(4, 16)

    def draw(rng: np.random.Generator, informative: Bools, task: NDArray[np.int64]) -> Floats:
        shape = (len(informative), len(STEPS))
        scores = np.where(rng.random(shape) < 0.1, low.rvs(shape, rng), high.rvs(shape, rng))
        return np.asarray(np.where(informative[:, None], scores, zero.rvs(shape, rng)))

    def under(steps: Floats, thresholds: Floats, informative: bool) -> Floats:
        if not informative:
            return np.asarray(zero.cdf(thresholds))
        return np.asarray(0.1 * low.cdf(thresholds) + 0.9 * high.cdf(thresholds))

    return Population("not monotone", 0.4, 0.8, draw, under)


POPULATIONS = (
    normal("informative", 0.8, 2.0),
    normal("useless", 0.401, 0.0),  # a hair over what any threshold has: where a wrong certificate is likeliest
    not_monotone(),
    normal("shifted", 0.8, 2.0, 2.5),
    normal("clustered", 0.8, 2.0, groups_a_task=4, over=(0.3, 0.6)),
)


@dataclass(frozen=True)
class Certificates:
    """Of so many calibration sets: how many got a gate, how many a wrong one; and the mean net saving of valid ones
    (none counts 0), also of Bonferroni's.
    """

    sets: int
    found: int
    wrong: int
    worth: float
    worth_by_bonferroni: float

    @property
    def wrong_rate(self) -> float:
        """Share of the sets with a wrong gate."""
        return self.wrong / self.sets


def certificates(population: Population, groups: int, sets: int, confidence: float, seed: int = 0) -> Certificates:
    """Certify on many calibration sets."""
    rng, found, wrong = np.random.default_rng(seed), 0, 0
    worth, by_bonferroni = np.zeros(sets), np.zeros(sets)
    search = Search(population.target, Convention.ELIGIBLE, tuple(range(len(STEPS))), (SIGNAL,))
    for place in range(sets):
        sample = population.sample(rng, groups)
        attempt = certify(sample, search, GateKind.THRESHOLD, confidence)
        if attempt.rule is not None:
            precision, _, net = population.truth(attempt.rule)
            found, wrong = found + 1, wrong + (precision < population.target)
            worth[place] = net if precision >= population.target else 0.0
        rule = bonferroni(sample, attempt, confidence)
        if rule is not None and population.truth(rule)[0] >= population.target:
            by_bonferroni[place] = population.truth(rule)[2]
    return Certificates(sets, found, wrong, float(worth.mean()), float(by_bonferroni.mean()))


def bonferroni(sample: Sample, attempt: Attempt, confidence: float) -> Rule | None:
    """The best of the grid's candidates whose p-value passes Bonferroni's level."""
    level = (1 - confidence) / max(1, len(attempt.cells))
    passing = [cell.rule for cell in attempt.cells if cell.p_value <= level]
    worth = [apply(sample, rule, Convention.ELIGIBLE).net_saving.value for rule in passing]
    return passing[int(np.argmax(worth))] if passing else None


@dataclass(frozen=True)
class Estimates:
    """Precision in sample and out of sample, over all sets, beside the true precision of gates fitted on as many groups
    as a fold's; all weighted by cuts. And how often the intervals of a gate fixed beforehand cover: one that cuts a
    fifth of the groups at K = 5, and a `late` one that cuts a twelfth at K = 28, hardly an informative one among them.
    """

    in_sample: float
    out_of_sample: float
    truth_in_sample: float
    truth_at_fold_size: float
    cuts_out_of_sample: int
    precision_covered: float
    net_saving_covered: float
    late_net_saving_covered: float


def estimates(population: Population, groups: int, sets: int, seed: int = 0) -> Estimates:
    """Fit and judge on many calibration sets."""
    rng = np.random.default_rng(seed)
    search = Search(population.target, Convention.ELIGIBLE, (4, 9, 14), (SIGNAL,))
    fixed, late = population.gate(5, 0.2), population.gate(28, 1 / 12)
    precision, _, net = population.truth(fixed)
    _, _, net_of_late = population.truth(late)
    inside, outside, truth, at_fold, covered = np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(3)
    for _ in range(sets):
        sample = population.sample(rng, groups)
        chosen, judged = find(sample, search), out_of_sample(sample, search)
        if chosen is not None:
            inside += chosen.precision * chosen.taken, chosen.taken
            truth += _weighted(population, chosen.rule)
        if judged is not None:
            outside += judged.tally.true_positives, judged.tally.taken
        smaller = find(population.sample(rng, groups * 4 // 5), search)
        at_fold += (0, 0) if smaller is None else _weighted(population, smaller.rule)
        counts, of_late = (apply(sample, rule, Convention.ELIGIBLE) for rule in (fixed, late))
        covered += (
            counts.precision.low <= precision <= counts.precision.high,
            counts.net_saving.low <= net <= counts.net_saving.high,
            of_late.net_saving.low <= net_of_late <= of_late.net_saving.high,
        )
    shares = [float(hits / cuts) if cuts else float("nan") for hits, cuts in (inside, outside, truth, at_fold)]
    return Estimates(
        in_sample=shares[0],
        out_of_sample=shares[1],
        truth_in_sample=shares[2],
        truth_at_fold_size=shares[3],
        cuts_out_of_sample=int(outside[1]),
        precision_covered=float(covered[0] / sets),
        net_saving_covered=float(covered[1] / sets),
        late_net_saving_covered=float(covered[2] / sets),
    )


def _weighted(population: Population, rule: Rule) -> tuple[float, float]:
    precision, cut, _ = population.truth(rule)
    return precision * cut, cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--groups", type=int, nargs="+", default=[50, 200, 800, 3000])
    parser.add_argument("--confidence", type=float, default=0.95)
    options = parser.parse_args()
    print(f"certificates at confidence {options.confidence:g}; {options.sets} calibration sets a row")
    print("population     target  groups  found   wrong [allowed]  net saving  Bonferroni  best gate")
    for population in POPULATIONS:
        for groups in options.groups:
            got = certificates(population, groups, options.sets, options.confidence)
            print(
                f"{population.name:14} {population.target:6.2f}  {groups:6}  {got.found / got.sets:5.3f}  "
                f"{got.wrong_rate:6.4f} [{1 - options.confidence:.4f}]  {got.worth:10.4f}  "
                f"{got.worth_by_bonferroni:10.4f}  {population.best:9.4f}",
                flush=True,
            )
    sets = max(1, options.sets // 5)
    print(f"precision of the chosen gate, weighted by cuts; {sets} calibration sets a row")
    covered = "covered: precision  net saving  of a late gate"
    print(f"population     groups  in sample  its truth  out of sample  truth at 4/5  {covered}")
    for population in POPULATIONS:
        for groups in (400, 1000):
            got_of = estimates(population, groups, sets)
            print(
                f"{population.name:14} {groups:6}  {got_of.in_sample:9.4f}  {got_of.truth_in_sample:9.4f}  "
                f"{got_of.out_of_sample:13.4f}  {got_of.truth_at_fold_size:12.4f}  {got_of.precision_covered:18.3f}  "
                f"{got_of.net_saving_covered:10.3f}  {got_of.late_net_saving_covered:14.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
