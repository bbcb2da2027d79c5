"""Where the project keeps what it makes once for a user: converted models, generated games."""

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """The folder `parts` below `$XDG_CACHE_HOME/selective-rollout` (default `~/.cache`); it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "selective-rollout", *parts)
