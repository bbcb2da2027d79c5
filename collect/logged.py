"""What other trainers logged of a group: steps, trajectories, groups in which much may be unknown.

They become rows of the ordinary tables; what is None here is null there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from collect.rows import GroupRows, Row, action_symbols


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One exchange; `logprobs` are those of the tokens that the policy sampled."""

    action: str
    observation: str | None = None
    reply: str | None = None
    reward: float | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class LoggedTrajectory:
    """One rollout, to its end."""

    reward: float
    steps: tuple[LoggedStep, ...]
    won: bool | None = None

    @property
    def actions(self) -> tuple[str, ...]:
        """One a step."""
        return tuple(step.action for step in self.steps)


@dataclass(frozen=True, slots=True)
class LoggedGroup:
    """The rollouts of one task. Without a `horizon` the log does not say how many steps were allowed."""

    game_id: str
    trajectories: tuple[LoggedTrajectory, ...]
    horizon: int | None = None
    split: str | None = None
    task_type: str | None = None
    policy_version: int | None = None
    seconds: float | None = None

    def rows(self, visit: int, horizon: int) -> GroupRows:
        """Its rows; `horizon` is its own, or what stands for it."""
        group_id = f"{self.game_id}#{visit}"
        group: Row = {
            "group_id": group_id,
            "game_id": self.game_id,
            "split": self.split,
            "task_type": self.task_type,
            "visit": visit,
            "group_size": len(self.trajectories),
            "horizon": horizon,
            "policy_version": self.policy_version,
            "seed": None,
            "rewards": [trajectory.reward for trajectory in self.trajectories],
            "started": None,
            "seconds": self.seconds,
            "gate_evaluated": False,
            **dict.fromkeys(_OF_A_GATE),
        }
        return GroupRows(group, tuple(self._trajectory_rows(group_id)), tuple(self._step_rows(group_id)))

    def _trajectory_rows(self, group_id: str) -> Iterator[Row]:
        symbols = action_symbols([trajectory.actions for trajectory in self.trajectories])
        for index, trajectory in enumerate(self.trajectories):
            logprobs = [step.logprobs for step in trajectory.steps]
            known = [some for some in logprobs if some is not None]
            counted = len(known) == len(logprobs) > 0
            yield {
                "group_id": group_id,
                "trajectory": index,
                "reward": trajectory.reward,
                "won": trajectory.won,
                "length": len(trajectory.steps),
                "ending": self._ending(trajectory),
                "actions": trajectory.actions,
                "action_symbols": symbols[index],
                "reply_tokens": [len(some) for some in known] if counted else None,
                "token_ids": None,
                "policy_mask": None,
                "logprobs": [value for some in known for value in some] if counted else None,
                "final_observation": None,
            }

    def _ending(self, trajectory: LoggedTrajectory) -> Literal["won", "horizon"] | None:
        if trajectory.won:
            return "won"
        return "horizon" if len(trajectory.steps) == self.horizon else None

    def _step_rows(self, group_id: str) -> Iterator[Row]:
        for index, trajectory in enumerate(self.trajectories):
            for number, step in enumerate(trajectory.steps, start=1):
                yield {
                    "group_id": group_id,
                    "trajectory": index,
                    "step": number,
                    "observation": step.observation,
                    "admissible_commands": None,
                    "reply": step.reply,
                    "action": step.action,
                    "match": None,
                    "reward": step.reward,
                    "prompt_tokens": None,
                    "reply_tokens": None if step.logprobs is None else len(step.logprobs),
                    "reply_logprob": None if step.logprobs is None else sum(step.logprobs),
                    "engine_seconds": None,
                    "environment_seconds": None,
                }


_OF_A_GATE = ("gate_step", "gate_score", "gate_threshold", "gate_flagged", "gate_enforced", "gate_audited")
