"""Headrace: reinforcement learning at hardware speed. The public names, each loaded when it is first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.core.cores import let_threads_sleep

let_threads_sleep()  # before torch is loaded
if TYPE_CHECKING:
    from headrace.algorithms.a2c import A2C as A2C
    from headrace.algorithms.a2c import A2CConfig as A2CConfig
    from headrace.algorithms.config_bases import OffPolicyConfig as OffPolicyConfig
    from headrace.algorithms.config_bases import OnPolicyConfig as OnPolicyConfig
    from headrace.algorithms.crossq import CrossQ as CrossQ
    from headrace.algorithms.crossq import CrossQConfig as CrossQConfig
    from headrace.algorithms.ddpg import DDPG as DDPG
    from headrace.algorithms.ddpg import DDPGConfig as DDPGConfig
    from headrace.algorithms.discrete.c51 import C51 as C51
    from headrace.algorithms.discrete.c51 import C51Config as C51Config
    from headrace.algorithms.discrete.discrete_sac import DiscreteSAC as DiscreteSAC
    from headrace.algorithms.discrete.discrete_sac import DiscreteSACConfig as DiscreteSACConfig
    from headrace.algorithms.discrete.hybrid_sac import HybridSAC as HybridSAC
    from headrace.algorithms.discrete.hybrid_sac import HybridSACConfig as HybridSACConfig
    from headrace.algorithms.discrete.qrdqn import QRDQN as QRDQN
    from headrace.algorithms.discrete.qrdqn import QRDQNConfig as QRDQNConfig
    from headrace.algorithms.dqn import DQN as DQN
    from headrace.algorithms.dqn import DQNConfig as DQNConfig
    from headrace.algorithms.off_policy import OffPolicy as OffPolicy
    from headrace.algorithms.offline.bc import BC as BC
    from headrace.algorithms.offline.bc import BCConfig as BCConfig
    from headrace.algorithms.offline.cql import CQL as CQL
    from headrace.algorithms.offline.cql import CQLConfig as CQLConfig
    from headrace.algorithms.offline.discrete_cql import DiscreteCQL as DiscreteCQL
    from headrace.algorithms.offline.discrete_cql import DiscreteCQLConfig as DiscreteCQLConfig
    from headrace.algorithms.offline.iql import IQL as IQL
    from headrace.algorithms.offline.iql import IQLConfig as IQLConfig
    from headrace.algorithms.offline.td3_bc import TD3BC as TD3BC
    from headrace.algorithms.offline.td3_bc import TD3BCConfig as TD3BCConfig
    from headrace.algorithms.on_policy import OnPolicy as OnPolicy
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
    from headrace.algorithms.tqc import TQC as TQC
    from headrace.algorithms.tqc import TQCConfig as TQCConfig
    from headrace.algorithms.trpo import TRPO as TRPO
    from headrace.algorithms.trpo import TRPOConfig as TRPOConfig
    from headrace.algorithms.vtrace.appo import APPO as APPO
    from headrace.algorithms.vtrace.appo import APPOConfig as APPOConfig
    from headrace.algorithms.vtrace.impala import IMPALA as IMPALA
    from headrace.algorithms.vtrace.impala import IMPALAConfig as IMPALAConfig
    from headrace.bindings.compiled.compiled_losses import CompiledLoss as CompiledLoss
    from headrace.bindings.compiled.compiled_losses import compile as compile
    from headrace.checks.tensor_devices import CheckDevice as CheckDevice
    from headrace.data.rollout import Rollout as Rollout
    from headrace.data.spaces import Box as Box
    from headrace.data.spaces import Dict as Dict
    from headrace.data.spaces import Discrete as Discrete
    from headrace.data.spaces import MultiBinary as MultiBinary
    from headrace.data.spaces import MultiDiscrete as MultiDiscrete
    from headrace.data.spaces import Tuple as Tuple
    from headrace.deploy.exporter import export as export
    from headrace.envs import Env as Env
    from headrace.envs import KernelEnv as KernelEnv
    from headrace.envs import make as make
    from headrace.envs import register as register
    from headrace.envs.compiled.single_env import single as single
    from headrace.envs.vector.mujoco_task import MujocoTask as MujocoTask
    from headrace.envs.vector_env.construct_vector import make_vec as make_vec
    from headrace.envs.vector_env.vector_wrappers import Gymnasium029Infos as Gymnasium029Infos
    from headrace.envs.workers.process import Workers as Workers
    from headrace.envs.wrappers.device_env import DeviceEnv as DeviceEnv
    from headrace.evaluation.curves import plot as plot
    from headrace.evaluation.evaluator import evaluate as evaluate
    from headrace.evaluation.playing import Evaluation as Evaluation
    from headrace.evaluation.video import play as play
    from headrace.kernels.language import ops as ops
    from headrace.kernels.language.errors import EnvError as EnvError
    from headrace.parallel.own_loop import Actors as Actors
    from headrace.policies.actor_critic import ActorCritic as ActorCritic
    from headrace.policies.actor_critic import AsymmetricActorCritic as AsymmetricActorCritic
    from headrace.policies.actor_q import ActorQ as ActorQ
    from headrace.policies.base import Policy as Policy
    from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ as DiscreteActorQ
    from headrace.policies.discrete.hybrid_actor_q import HybridActorQ as HybridActorQ
    from headrace.policies.fused_mlp import FusedMLP as FusedMLP
    from headrace.policies.q_network import QNetwork as QNetwork
    from headrace.policies.recurrent import RecurrentActorCritic as RecurrentActorCritic
    from headrace.populations.train_population import Population as Population
    from headrace.populations.train_population import population as population
    from headrace.runs.hub import pull_from_hub as pull_from_hub
    from headrace.runs.hub import push_to_hub as push_to_hub
    from headrace.runs.run import Run as Run
    from headrace.runs.run import load as load
    from headrace.runs.run import save as save
    from headrace.training.config import TrainConfig as TrainConfig
    from headrace.training.loop import Training as Training
    from headrace.training.loop import train as train
    from headrace.training.trainer import Trainer as Trainer
    from headrace.tuning.tuner import tune as tune

_ALGORITHMS = ("PPO", "A2C", "Reinforce", "TRPO", "DQN", "PQN", "SAC", "TQC", "CrossQ", "TD3", "DDPG")
_NAMES = {  # module -> its public names
    **{f"algorithms.{algorithm.lower()}": (algorithm, f"{algorithm}Config") for algorithm in _ALGORITHMS},
    "algorithms.discrete.c51": ("C51", "C51Config"),
    "algorithms.discrete.discrete_sac": ("DiscreteSAC", "DiscreteSACConfig"),
    "algorithms.discrete.hybrid_sac": ("HybridSAC", "HybridSACConfig"),
    "algorithms.discrete.qrdqn": ("QRDQN", "QRDQNConfig"),
    "algorithms.offline.bc": ("BC", "BCConfig"),
    "algorithms.offline.cql": ("CQL", "CQLConfig"),
    "algorithms.offline.discrete_cql": ("DiscreteCQL", "DiscreteCQLConfig"),
    "algorithms.offline.iql": ("IQL", "IQLConfig"),
    "algorithms.offline.td3_bc": ("TD3BC", "TD3BCConfig"),
    "algorithms.vtrace.appo": ("APPO", "APPOConfig"),
    "algorithms.vtrace.impala": ("IMPALA", "IMPALAConfig"),
    "training.config": ("TrainConfig",),
    "checks.tensor_devices": ("CheckDevice",),
    "bindings.compiled.compiled_losses": ("CompiledLoss", "compile"),
    "deploy.exporter": ("export",),
    "envs.wrappers.device_env": ("DeviceEnv",),
    "envs": ("Env", "KernelEnv", "make", "register"),
    "envs.compiled.single_env": ("single",),
    "envs.workers.process": ("Workers",),
    "envs.vector.mujoco_task": ("MujocoTask",),
    "envs.vector_env.construct_vector": ("make_vec",),
    "envs.vector_env.vector_wrappers": ("Gymnasium029Infos",),
    "parallel.own_loop": ("Actors",),
    "kernels.language.errors": ("EnvError",),
    "evaluation.evaluator": ("evaluate",),
    "evaluation.playing": ("Evaluation",),
    "kernels.language": ("ops",),
    "evaluation.video": ("play",),
    "evaluation.curves": ("plot",),
    "algorithms.config_bases": ("OnPolicyConfig", "OffPolicyConfig"),
    "algorithms.on_policy": ("OnPolicy",),
    "algorithms.off_policy": ("OffPolicy",),
    "populations.train_population": ("Population", "population"),
    "policies.actor_critic": ("ActorCritic", "AsymmetricActorCritic"),
    "policies.actor_q": ("ActorQ",),
    "policies.fused_mlp": ("FusedMLP",),
    "policies.discrete.discrete_actor_q": ("DiscreteActorQ",),
    "policies.discrete.hybrid_actor_q": ("HybridActorQ",),
    "policies.q_network": ("QNetwork",),
    "policies.recurrent": ("RecurrentActorCritic",),
    "policies.base": ("Policy",),
    "data.rollout": ("Rollout",),
    "runs.hub": ("pull_from_hub", "push_to_hub"),
    "runs.run": ("Run", "load", "save"),
    "data.spaces": ("Box", "Dict", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple"),
    "training.trainer": ("Trainer",),
    "training.loop": ("Training", "train"),
    "tuning.tuner": ("tune",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headrace has no {name!r}; it has {', '.join(sorted(_HOMES))}")
    home = import_module(f"headrace.{_HOMES[name]}")
    value = import_module(f"headrace.{_HOMES[name]}.{name}") if name == "ops" else getattr(home, name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext headrace` in a notebook."""
    import_module("headrace.diagnose.notebook").register(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


if "gymnasium" in sys.modules:  # which is not imported for this: it takes a quarter of a second
    import_module("headrace.gym")
