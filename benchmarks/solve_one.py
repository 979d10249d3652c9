"""One library solving one environment with one seed: started by solve.py in a fresh process for each."""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable
from typing import Any

from common import process_start, versions
from judge import Judge

START = process_start()


def headrace(options: argparse.Namespace) -> Judge:
    """Headrace's PPO with its defaults for the environment, and what --set says otherwise."""
    import numba  # noqa: F401  loaded when first used, but an import all the same

    from headrace import Trainer

    judge = Judge(options.env, START, options.max_steps)
    trainer = Trainer("ppo", options.env, seed=options.seed, **dict(map(setting, options.set)))
    while True:
        trainer.iterate()
        if judge.check(trainer.steps, lambda observation: trainer.policy.act(observation, deterministic=True)):
            return judge


def setting(text: str) -> tuple[str, Any]:
    """'learning_rate=1e-3' -> ('learning_rate', 0.001)."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def sb3(options: argparse.Namespace) -> Judge:
    """Stable-Baselines3's PPO: the settings its zoo tuned for CartPole, or the same work as a large batch."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Check(BaseCallback):
        """Asks the judge before each rollout."""

        over = False

        def _on_step(self) -> bool:
            return not self.over

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                self.over = judge.check(self.num_timesteps, act)

    def act(observation: Any) -> Any:
        return model.predict(observation, deterministic=True)[0]

    if (options.config, options.env) not in SB3_SETTINGS:
        raise SystemExit(f"no settings {options.config!r} for {options.env}: there are {list(SB3_SETTINGS)}")
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one loads modules, which is importing
    num_envs, budget, settings = SB3_SETTINGS[options.config, options.env]
    judge = Judge(options.env, START, options.max_steps)
    worlds = make_vec_env(options.env, n_envs=num_envs, seed=options.seed)
    model = PPO("MlpPolicy", worlds, seed=options.seed, device="cpu", **settings)
    model.learn(budget, callback=Check())
    return judge


def falling(start: float) -> Callable[[float], float]:
    """SB3's linear schedule: from `start` to 0 over the training."""
    return lambda remaining: remaining * start


ZOO = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "ent_coef": 0.0,
    "learning_rate": falling(1e-3),
    "clip_range": falling(0.2),
}
LARGE = {"n_steps": 32, "batch_size": 2048, "n_epochs": 4, "learning_rate": 1e-3, "ent_coef": 0.01}
SB3_SETTINGS: dict[tuple[str, str], tuple[int, int, dict[str, Any]]] = {  # worlds, environment steps, PPO's arguments
    ("zoo", "CartPole-v1"): (8, 100_000, ZOO),
    ("large", "CartPole-v1"): (256, 500_000, LARGE),
}
LIBRARIES = {"headrace": headrace, "sb3": sb3}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=LIBRARIES)
    flags.add_argument("--env", required=True)
    flags.add_argument("--seed", type=int, required=True)
    flags.add_argument("--config")
    flags.add_argument("--set", nargs="*", default=[])
    flags.add_argument("--max-steps", type=int)
    options = flags.parse_args()
    judge = LIBRARIES[options.library](options)
    about = {"library": options.library, "algorithm": "ppo", "config": options.config, "env": options.env}
    print(json.dumps({**about, "seed": options.seed, **judge.row(), "versions": versions()}))


if __name__ == "__main__":
    main()
