"""Stable-Baselines3's PPO in the same environments, with the settings of its zoo (rl-baselines3-zoo, ppo.yml)."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize, VecTransposeImage

from benchmarks.peers.ppo_sb3 import _After, _falling
from benchmarks.returns.any_env_tasks import Judge

BUDGET = 1_000_000  # steps over which schedules fall
ZOO: dict[str, dict[str, Any]] = {
    "LunarLander-v3": {
        "num_envs": 16,
        "n_steps": 1024,
        "batch_size": 64,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "n_epochs": 4,
        "ent_coef": 0.01,
    },
    "HalfCheetah-v5": {
        "num_envs": 1,
        "normalize": True,
        "n_steps": 512,
        "batch_size": 64,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
        "policy_kwargs": {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    },
    "ALE/Pong-v5": {
        "num_envs": 8,
        "n_steps": 128,
        "n_epochs": 4,
        "batch_size": 256,
        "learning_rate": _falling(2.5e-4),
        "clip_range": _falling(0.1),
        "vf_coef": 0.5,
        "ent_coef": 0.01,
    },
}


def train(options: Any) -> dict[str, Any]:
    """The judge's row."""
    atari = options.env.startswith("ALE/")
    judge = Judge(options.env, options.seconds, options.throughput, lambda: _one(options.env))
    settings = dict(ZOO[options.env])
    worlds: Any = _worlds(options.env, settings.pop("num_envs"), options.seed)
    if settings.pop("normalize", False):
        worlds = VecNormalize(worlds)
    policy = "CnnPolicy" if atari else "MlpPolicy"
    model = PPO(policy, worlds, seed=options.seed, device="cpu", **settings)

    def seen(observation: Any) -> Any:
        return worlds.normalize_obs(observation) if isinstance(worlds, VecNormalize) else observation

    def over(steps: int, act: Any) -> bool:
        return judge.over(steps, lambda observation: act(seen(observation)))

    model.learn(10**7 if atari else BUDGET, callback=_After(over))
    return judge.row


def _worlds(env: str, num_envs: int, seed: int) -> Any:
    if not env.startswith("ALE/"):
        return make_vec_env(env, n_envs=num_envs, seed=seed)
    _register_atari()
    games = make_vec_env(env, n_envs=num_envs, seed=seed, env_kwargs={"frameskip": 1}, wrapper_class=AtariWrapper)
    return VecTransposeImage(VecFrameStack(games, 4))


def _one(env: str) -> gymnasium.Env:
    """An environment to evaluate in; of a game, with its own rewards."""
    if not env.startswith("ALE/"):
        return gymnasium.make(env)
    _register_atari()
    game = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(env, frameskip=1))
    return gymnasium.wrappers.FrameStackObservation(game, 4)


def _register_atari() -> None:
    import ale_py

    gymnasium.register_envs(ale_py)
