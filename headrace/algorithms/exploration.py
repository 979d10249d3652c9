"""How often algorithms that act by values act at random instead."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def random_share(config: Any, progress: Any) -> Any:
    """Linear from exploration_initial to exploration_final over the share exploration_fraction of the training.

    progress: share of the training done, 0 .. 1; a number, or a scalar tensor, as what is given then is too.
    """
    done = progress / config.exploration_fraction if config.exploration_fraction else 1.0
    done = done.clamp(max=1.0) if isinstance(done, Tensor) else min(done, 1.0)
    return config.exploration_initial + done * (config.exploration_final - config.exploration_initial)


def check_exploration(config: Any) -> None:
    """Raise ValueError for a share or a fraction out of range."""
    for name in ("exploration_initial", "exploration_final"):
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {getattr(config, name)}")
    if config.exploration_fraction < 0:
        raise ValueError(f"exploration_fraction must be 0 or more, got {config.exploration_fraction}")
