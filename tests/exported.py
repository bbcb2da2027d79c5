"""Runs as the paper's authors logged theirs, and back."""

from pathlib import Path
from typing import Any

from collect.import_format import Format
from collect.importer import Imported, import_log
from collect.trajectory import Group

LOG = Path(__file__).with_name("logs") / "rollouts.jsonl"


def exported(group: Group) -> dict[str, Any]:
    """A group as the paper's authors logged theirs."""
    return {
        "task_id": group.game.id,
        "game_file": str(group.game.path),
        "group_size": len(group.trajectories),
        "max_steps": group.horizon,
        "wall_time_sec": group.seconds,
        "trajectories": [
            {
                "total_reward": trajectory.reward,
                "won": trajectory.won,
                "terminated_at": len(trajectory.steps),
                "steps": [
                    {
                        "obs": step.observation,
                        "thought": "",
                        "action": step.action,
                        "raw_completion": step.reply,
                        "reward": step.reward,
                        "done": number == len(trajectory.steps),
                        "won": trajectory.won and number == len(trajectory.steps),
                    }
                    for number, step in enumerate(trajectory.steps, start=1)
                ],
            }
            for trajectory in group.trajectories
        ],
    }


def brought(log: Path, run: Path) -> Imported:
    """Import a rollouts.jsonl."""
    return import_log(log, Format.SELECTIVE_ROLLOUT, {}, run, lambda done, total: None)
