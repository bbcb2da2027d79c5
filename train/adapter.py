"""The model that learns: a frozen base with a LoRA adapter, and that adapter as a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

from collect.errors import InputError
from collect.policy import Policy, load_model
from train.packing import ATTENTION

RANK, ALPHA = 16, 32  # of a fresh adapter, unless told otherwise; on all linear layers


def load_adapted(
    policy: Policy,
    dtype: torch.dtype,
    device: str,
    *,
    rank: int | None,
    alpha: int | None,
    target_modules: tuple[str, ...] | None,
    seed: int,
) -> Any:
    """The policy's base model with its adapter, or a fresh one drawn by `seed`, ready to be trained; dropout is off.

    Everything is in `dtype`, the adapter too: so it computes what an engine does that serves it.

    Raises:
        InputError: the model cannot be loaded; its adapter has another rank, alpha or targets than asked for, or is not
            plain LoRA; it is a model that `train.packing` does not know how to run.
    """
    model = load_model(replace(policy, adapter=None), dtype, device, ATTENTION)
    try:
        _check_runs(policy, model)
        if policy.adapter is None:
            config = LoraConfig(
                r=rank or RANK,
                lora_alpha=alpha or ALPHA,
                target_modules=list(target_modules) if target_modules else _linear_layers(model),
                task_type="CAUSAL_LM",
            )
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
        else:
            _check_same(policy.adapter, rank, alpha, target_modules)
            adapted = PeftModel.from_pretrained(model, policy.adapter, is_trainable=True, autocast_adapter_dtype=False)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        told = str(error).strip().partition("\n")[0]
        raise InputError(f"--model {policy.name}: cannot be trained ({told})") from error
    if not isinstance(head_of(adapted), torch.nn.Linear):
        raise InputError(f"--model {policy.name}: an adapter on its last layer, {_head_name(model)}, cannot be trained")
    return adapted.eval()


def checkpoint_layers(adapted: Any) -> None:
    """Have each layer compute its activations anew in the backward pass instead of keeping them."""
    base = adapted.get_base_model()
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in base.modules():
        # transformers does it only in training, which would turn dropout on as well.
        if hasattr(module, "gradient_checkpointing"):
            module.training = True


def decoder_of(adapted: Any) -> Any:
    """The part that makes hidden states of token ids."""
    return adapted.get_base_model().get_decoder()


def head_of(adapted: Any) -> Any:
    """The part that makes logits of hidden states."""
    return adapted.get_base_model().get_output_embeddings()


def write_adapter(adapted: Any, base: str, folder: Path) -> None:
    """Write the adapter into the folder as PEFT does, naming its base model `base`: same weights, same bytes."""
    config = adapted.peft_config["default"].to_dict()
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    text = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    text["target_modules"] = sorted(text["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")
    weights = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    tensors = {name: weight.detach().to("cpu").contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _check_same(adapter: Path, rank: int | None, alpha: int | None, target_modules: tuple[str, ...] | None) -> None:
    """Refuse an adapter that is not what the flags ask for, or that the engines could not serve after training."""
    there = json.loads((adapter / "adapter_config.json").read_text())
    targets = there.get("target_modules")
    asked = {
        "--rank": (rank, there.get("r")),
        "--alpha": (alpha, there.get("lora_alpha")),
        "--target-modules": (
            target_modules and sorted(target_modules),
            sorted(targets) if isinstance(targets, list) else targets,
        ),
    }
    for flag, (here, was) in asked.items():
        if here is not None and here != was:
            raise InputError(f"{flag} {_text(here)}: --adapter {adapter} has {_text(was)}; leave the flag out")
    odd = [name for name in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern") if there.get(name)]
    if there.get("peft_type") != "LORA" or there.get("bias", "none") != "none" or odd:
        raise InputError(f"--adapter {adapter}: is not plain LoRA, which is all that can be trained; give another")


def _check_runs(policy: Policy, model: Any) -> None:
    """Refuse a model that does more to its logits than its last layer does, or mixes tokens other than by attention."""
    device = next(model.parameters()).device
    ids = [37 * i % model.config.vocab_size for i in range(1, 10)]
    with torch.inference_mode():
        packed = {
            "input_ids": torch.tensor([ids[:4] + ids], device=device),
            "position_ids": torch.tensor([[*range(4), *range(len(ids))]], device=device),
            "lengths": [4, len(ids)],
            "use_cache": False,
        }
        by_parts = model.get_output_embeddings()(model.get_decoder()(**packed).last_hidden_state)[0, 4:]
        whole = model(**packed).logits[0, 4:]
        model.set_attn_implementation("eager")
        alone = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
        model.set_attn_implementation(ATTENTION)
    scale = alone.float().std()
    # Rounding to bf16 alone may come to 5 % of the scale between two kernels for attention; another token's influence
    # comes to all of it.
    for other, tolerance in ((whole, 1e-3), (alone, 0.3)):
        if not (by_parts.float() - other.float()).abs().mean() <= tolerance * scale:
            raise InputError(f"--model {policy.name}: the learner does not know how it is built; give another model")


def _linear_layers(model: Any) -> list[str]:
    """The names of all linear layers but the head, without the paths to them, sorted."""
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return sorted({name.rpartition(".")[2] for name in linear - {_head_name(model)}})


def _head_name(model: Any) -> str:
    head = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if module is head), "the head")


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)
