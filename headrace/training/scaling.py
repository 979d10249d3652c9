"""Settings that follow from the number of environments. Each algorithm has its own rule: see PPOConfig.scaled."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.core.types import Settings
from headrace.training.config import merge_settings


def derived(algorithm_config: type | None, defaults: Settings, given: Settings) -> Settings:
    """Settings that replace an environment's `defaults`, which were chosen for the num_envs they name; without one, for
    TrainConfig's, whose algorithms' defaults change for more environments alone.

    given: settings given by the user, which are never replaced. Empty where num_envs is not among `given`, or is
    the same; with scale=False; for an algorithm without a rule. Raises TypeError, ValueError as merge_settings() does.
    """
    if not hasattr(algorithm_config, "scaled"):
        return {}
    base_run, base = merge_settings(algorithm_config, defaults, {}, {})
    run, asked = merge_settings(algorithm_config, defaults, {}, given)
    growth = run.num_envs / base_run.num_envs
    if growth == 1 or not run.scale or (growth < 1 and "num_envs" not in defaults):
        return {}
    fixed = {name: value for name, value in asdict(asked).items() if name in given}
    fitting = asdict(base.scaled(base_run.num_envs, run.num_envs, **fixed))
    values = {name: value for name, value in fitting.items() if value != getattr(base, name)}
    if growth > 1 and not base_run.stagger:
        values["stagger"] = True
    rows = growth * fitting["num_steps"] / base.num_steps
    if rows > 1 and run.total_steps is not None:
        values["total_steps"] = round(run.total_steps * rows)  # as many iterations as before
    return {name: value for name, value in values.items() if name not in given}


def scaling_message(num_envs: int, settings: Settings) -> str:
    """A message: which settings follow from a number of environments."""
    parts = [f"{name} {_number(value)}" for name, value in settings.items()]
    return f"for {num_envs:,} envs: {', '.join(parts)} (--no-scale keeps the settings as they were)"


def registered_message(env: str, settings: Settings, assumed: bool = False) -> str:
    """A message: which settings are registered for an environment; assumed: none are, and these are taken."""
    parts = [f"{name} {_number(value)}" for name, value in settings.items()]
    where = f"nothing is registered for {env}, stepped in Python" if assumed else f"registered for {env}"
    return f"{where}: {', '.join(parts)} (--no-registered leaves these out)"


def _number(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
