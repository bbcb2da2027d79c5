"""Command: sr train."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collect.errors import InputError
from collect.options import RUNS, Debug, Quiet

if TYPE_CHECKING:
    from train.session import Plan


def train(
    ctx: typer.Context,
    out: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of the run; by default a new one in runs/.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Options from a TOML file, or the run.json of an earlier run; flags override it."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with RUN where it stopped.")] = False,
    games: Annotated[
        str | None, typer.Option(help="train (the default), valid_seen, valid_unseen, or a folder of games.")
    ] = None,
    from_run: Annotated[
        str | None, typer.Option("--from", help="Learn from the groups of this run instead of rolling out.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations: 60, or 12 with the small model.")] = None,
    groups: Annotated[int | None, typer.Option(help="Groups an iteration: 10, or 4 with the small model.")] = None,
    group_size: Annotated[int | None, typer.Option(help="G, trajectories a group; 8 by default.")] = None,
    horizon: Annotated[
        int | None, typer.Option("--max-steps", help="The horizon: most steps of a trajectory; 30 by default.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same games and requests; 7 by default.")
    ] = None,
    eval_on: Annotated[
        str | None, typer.Option(help="Games to judge on, as --games names them; valid_unseen by default.")
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(help="Evaluate before the first, after every so many and after the last iteration; 0 for never."),
    ] = None,
    eval_games: Annotated[
        int | None, typer.Option(help="Games of an evaluation: 50, or 16 with the small model.")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="auto (the default): a gate given or found, else one calibrated on the first iterations. A number: "
            "that threshold. off: no gate."
        ),
    ] = None,
    gate: Annotated[str | None, typer.Option(help="A gate.json; by default the latest in runs/.")] = None,
    gate_mode: Annotated[
        str | None, typer.Option(help="on (the default), shadow: it decides and cuts nothing, or off.")
    ] = None,
    signal: Annotated[
        str | None, typer.Option(help="What a gate reads that is not read from a file, as in sr calibrate.")
    ] = None,
    at_step: Annotated[
        int | None, typer.Option(help="The step K of such a gate; by default any, or a third of --max-steps.")
    ] = None,
    target_precision: Annotated[
        float | None, typer.Option(help="Precision that such a gate should have; 0.9 by default.")
    ] = None,
    warmup_iterations: Annotated[
        int | None, typer.Option(help="Ungated iterations that a gate is calibrated on where there is none; 6.")
    ] = None,
    audit: Annotated[
        float | None,
        typer.Option(help="Share of the groups to be cut that are let run, to measure the gate; 0.2 by default."),
    ] = None,
    on_drift: Annotated[
        str | None,
        typer.Option(help="When the precision proves too low: warn (the default), tighten the threshold, or off."),
    ] = None,
    skip_prompts: Annotated[
        bool | None,
        typer.Option("--skip-prompts/--no-skip-prompts", help="Pass over prompts that lately taught nothing."),
    ] = None,
    exploration: Annotated[
        float | None, typer.Option(help="Least chance of a prompt not to be passed over; 0.1 by default.")
    ] = None,
    drop_zero_variance: Annotated[
        bool | None,
        typer.Option("--drop-zero-variance/--keep-zero-variance", help="Leave zero-variance groups out of the batch."),
    ] = None,
    refill: Annotated[
        int | None,
        typer.Option(help="Most fresh groups an iteration in the place of cut and zero-variance ones; 0 by default."),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of AdamW, constant; 1e-4 by default.")] = None,
    rank: Annotated[int | None, typer.Option(help="LoRA rank; by default that of the adapter, or 16.")] = None,
    alpha: Annotated[int | None, typer.Option(help="LoRA alpha; by default that of the adapter, or 32.")] = None,
    target_modules: Annotated[
        str | None,
        typer.Option(help="Linear layers that LoRA adapts, separated by commas; by default the adapter's, or all."),
    ] = None,
    max_gradient_norm: Annotated[
        float | None, typer.Option(help="The gradient is clipped to this norm; 1 by default.")
    ] = None,
    normalisation: Annotated[
        str | None, typer.Option(help="What the loss is divided by: trajectory (the default), token, or constant.")
    ] = None,
    constant: Annotated[float | None, typer.Option(help="With --normalisation constant: the constant.")] = None,
    importance_cap: Annotated[
        float | None, typer.Option(help="Bound of the importance weights; 0 for none of them; 2 by default.")
    ] = None,
    micro_batch_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a forward pass; bounds memory; 2048 by default.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool | None,
        typer.Option("--gradient-checkpointing/--no-gradient-checkpointing", help="Less memory, a third slower."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the learner's model: bf16, or fp32, the default under --deterministic.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name; by default a small one, on a GPU Qwen2.5-7B-Instruct.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="Folder of the LoRA adapter to begin with, or none; the small model has one.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm or transformers; auto is vllm where it runs, but under --deterministic.")
    ] = None,
    environment: Annotated[str | None, typer.Option(help="compiled (the default) or stock, which is slower.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature, 0.7 by default; top-p is 1.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a reply; by default 24 for act, 96 for react.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="act or react; by default what suits the model.")] = None,
    show_commands: Annotated[
        bool | None,
        typer.Option("--show-commands/--no-show-commands", help="List the commands admitted; by default for react."),
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option("--deterministic/--not-deterministic", help="The same adapter to the last bit; slower."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Groups in flight, this many times G trajectories; 4 by default.")
    ] = None,
    log_steps: Annotated[
        str | None, typer.Option(help="all (the default), or groups: without the table of steps, most of a run.")
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard/--no-tensorboard", help="Write RUN/tensorboard too.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Send the numbers to this project of Weights & Biases too.")
    ] = None,
    arms: Annotated[str | None, typer.Option(help="Matched runs RUN/ARM-SEED, by gate mode: such as off,on.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="The seeds of these runs, such as 7,13; by default --seed alone.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a language model on games by GRPO, with the gate cutting groups that will teach nothing.

    Every iteration rolls groups out, cuts those that the gate flags, takes one step on the others, and goes on with the
    new adapter. Ctrl-C and kills lose nothing that --resume does not make up for. docs/training.md explains it all.
    """
    from collect.store import new_run_folder
    from train.arms import are_settled, arms_of, settle, settled
    from train.session import check_new, plan, planned_again
    from train.settings import Settings

    quiet = quiet or _follows()
    say = (lambda line: None) if quiet else typer.echo
    flags = {name: value for name, value in ctx.params.items() if name in Settings.model_fields and value is not None}
    if resume and config is not None:
        raise InputError(f"--config {config}: a resumed run keeps its settings; drop it")
    if resume and out is None:
        raise InputError("--resume: name the RUN to go on with")
    folder = out or new_run_folder(RUNS, "train")
    if resume:
        whole = settled(folder, flags) if are_settled(folder) else planned_again(folder, flags)
    else:
        whole = plan(config, flags, say)
        if not _follows():
            check_new(folder)
            if whole.settings.arms is not None:
                settle(whole, folder)
    runs = arms_of(whole, folder)
    for folder, one in runs:
        _train(folder, one, say, quiet)


def _train(run: Path, one: "Plan", say: Any, quiet: bool) -> None:
    from collect.progress import counted
    from train.screen import Terminal
    from train.session import train as learn

    policy, iterations = one.policy, one.settings.iterations or 0
    say(f"policy: {policy.name}, {f'adapter {policy.adapter}' if policy.adapter else 'no adapter'}")
    say(f"run: {run}")
    try:
        source = f"on {one.settings.from_run}" if one.settings.from_run else f"with the {one.settings.engine} engine"
        with counted(f"training {source}", "iterations", quiet=quiet) as update:
            learn(one, run, Terminal(iterations, update, quiet))
    except KeyboardInterrupt:
        typer.echo(f"interrupted: go on with sr train {run} --resume", err=True)
        raise typer.Exit(130) from None
    say(f"see it: sr report {run}")


def _follows() -> bool:
    """Whether torchrun started this process to help another one, which does the talking."""
    return os.environ.get("RANK", "0") != "0"
