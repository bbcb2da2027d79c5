"""A training run on the terminal: a bar that counts groups, and a line for every iteration and evaluation."""

import sys

import typer

from collect.progress import Update
from collect.rows import Row


class Terminal:
    """Says what happens on standard output, and shows on stderr how far it is."""

    def __init__(self, iterations: int, update: Update, quiet: bool) -> None:
        self._iterations = iterations
        self._update = update
        self._quiet = quiet

    def say(self, line: str) -> None:
        """See `train.loop.Screen`."""
        if not self._quiet:
            typer.echo(line)
            sys.stdout.flush()

    def show(self, iteration: int, groups: int, asked: int) -> None:
        """See `train.loop.Screen`."""
        self._update(iteration - 1, self._iterations, f"iteration {iteration}: {groups} of {asked} groups")

    def iteration(self, row: Row) -> None:
        """See `train.loop.Screen`."""
        self._update(row["iteration"], self._iterations)
        self.say(", ".join(part for part in _parts(row) if part))

    def evaluation(self, row: Row) -> None:
        """See `train.loop.Screen`."""
        if row["success"] is None:
            self.say(f"evaluation after iteration {row['iteration']}: every game failed")
            return
        rate = _rate(row["success"], row["success_low"], row["success_high"])
        failed = f", {row['games_failed']} failed" if row["games_failed"] else ""
        self.say(
            f"evaluation after iteration {row['iteration']}: success {rate} of {row['games']} games{failed}, "
            f"{row['mean_steps']:.1f} steps, {row['seconds']:.0f} s"
        )


def _parts(row: Row) -> list[str]:
    """What one line says of an iteration."""
    success = "no whole group"
    if row["success"] is not None:
        uncut = row["groups"] - row["groups_cut"]
        success = f"success {_rate(row['success'], row['success_low'], row['success_high'])} of {uncut} groups"
    flagged = row["groups_flagged"]
    gate = f"{flagged} flagged, {row['groups_cut']} cut, {row['groups_audited']} audited" if row["gate_step"] else ""
    precision = ""
    if row["gate_precision"] is not None:
        rate = _rate(row["gate_precision"], row["gate_precision_low"], row["gate_precision_high"])
        precision = f"gate precision {rate} of {row['audit_runs']}"
    update = "no update: nothing to learn from"
    if row["updated"]:
        update = f"loss {row['loss']:.4f}, gradient norm {row['gradient_norm']:.3f}"
    return [
        f"iteration {row['iteration']}: {success}",
        f"{row['groups_failed']} failed" if row["groups_failed"] else "",
        f"{row['prompts_skipped']} prompts skipped" if row["prompts_skipped"] else "",
        f"{row['groups_refilled']} fresh" if row["groups_refilled"] else "",
        f"{row['groups_zero_variance']} zero-variance",
        gate,
        precision,
        update,
        f"{row['tokens_sampled']} tokens, {row['seconds']:.0f} s",
    ]


def _rate(value: float, low: float, high: float) -> str:
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
