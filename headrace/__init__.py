"""Headrace: reinforcement learning at hardware speed. The public names, each loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.algorithms.a2c import A2C as A2C
    from headrace.algorithms.a2c import A2CConfig as A2CConfig
    from headrace.algorithms.ddpg import DDPG as DDPG
    from headrace.algorithms.ddpg import DDPGConfig as DDPGConfig
    from headrace.algorithms.dqn import DQN as DQN
    from headrace.algorithms.dqn import DQNConfig as DQNConfig
    from headrace.algorithms.ppo import PPO as PPO
    from headrace.algorithms.ppo import PPOConfig as PPOConfig
    from headrace.algorithms.pqn import PQN as PQN
    from headrace.algorithms.pqn import PQNConfig as PQNConfig
    from headrace.algorithms.reinforce import Reinforce as Reinforce
    from headrace.algorithms.reinforce import ReinforceConfig as ReinforceConfig
    from headrace.algorithms.sac import SAC as SAC
    from headrace.algorithms.sac import SACConfig as SACConfig
    from headrace.algorithms.td3 import TD3 as TD3
    from headrace.algorithms.td3 import TD3Config as TD3Config
    from headrace.algorithms.trpo import TRPO as TRPO
    from headrace.algorithms.trpo import TRPOConfig as TRPOConfig
    from headrace.checks.tensor_devices import CheckDevice as CheckDevice
    from headrace.data.rollout import Rollout as Rollout
    from headrace.data.spaces import Box as Box
    from headrace.data.spaces import Dict as Dict
    from headrace.data.spaces import Discrete as Discrete
    from headrace.data.spaces import MultiBinary as MultiBinary
    from headrace.data.spaces import MultiDiscrete as MultiDiscrete
    from headrace.data.spaces import Tuple as Tuple
    from headrace.envs import Env as Env
    from headrace.envs import KernelEnv as KernelEnv
    from headrace.envs import make as make
    from headrace.envs import register as register
    from headrace.envs.compiled.single_env import single as single
    from headrace.envs.workers.process import Workers as Workers
    from headrace.envs.wrappers.device_env import DeviceEnv as DeviceEnv
    from headrace.evaluation.curves import plot as plot
    from headrace.evaluation.evaluator import Evaluation as Evaluation
    from headrace.evaluation.evaluator import evaluate as evaluate
    from headrace.evaluation.video import play as play
    from headrace.kernels.language import ops as ops
    from headrace.kernels.language.errors import EnvError as EnvError
    from headrace.policies.actor_critic import ActorCritic as ActorCritic
    from headrace.policies.base import Policy as Policy
    from headrace.policies.fused_mlp import FusedMLP as FusedMLP
    from headrace.runs.run import Run as Run
    from headrace.runs.run import load as load
    from headrace.training.config import TrainConfig as TrainConfig
    from headrace.training.loop import train as train
    from headrace.training.trainer import Trainer as Trainer

_HOMES = {  # name -> the module it lives in
    **{
        name: f"algorithms.{algorithm.lower()}"
        for algorithm in ("PPO", "A2C", "Reinforce", "TRPO", "DQN", "PQN", "SAC", "TD3", "DDPG")
        for name in (algorithm, f"{algorithm}Config")
    },
    "TrainConfig": "training.config",
    "CheckDevice": "checks.tensor_devices",
    "DeviceEnv": "envs.wrappers.device_env",
    "Env": "envs",
    "KernelEnv": "envs",
    "make": "envs",
    "register": "envs",
    "single": "envs.compiled.single_env",
    "Workers": "envs.workers.process",
    "EnvError": "kernels.language.errors",
    "Evaluation": "evaluation.evaluator",
    "evaluate": "evaluation.evaluator",
    "ops": "kernels.language",
    "play": "evaluation.video",
    "plot": "evaluation.curves",
    "ActorCritic": "policies.actor_critic",
    "FusedMLP": "policies.fused_mlp",
    "Policy": "policies.base",
    "Rollout": "data.rollout",
    "Run": "runs.run",
    "load": "runs.run",
    "Box": "data.spaces",
    "Dict": "data.spaces",
    "Discrete": "data.spaces",
    "MultiBinary": "data.spaces",
    "MultiDiscrete": "data.spaces",
    "Tuple": "data.spaces",
    "Trainer": "training.trainer",
    "train": "training.loop",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headrace has no {name!r}; it has {', '.join(sorted(_HOMES))}")
    home = import_module(f"headrace.{_HOMES[name]}")
    value = import_module(f"headrace.{_HOMES[name]}.{name}") if name == "ops" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
