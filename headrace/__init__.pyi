"""Types of the public names, for editors and type checkers. Written by tests/test_typed_options.py."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.algorithms.a2c import A2C as A2C
from headrace.algorithms.a2c import A2CConfig as A2CConfig
from headrace.algorithms.base import Algorithm
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
from headrace.core.types import EnvArgument, Settings
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
from headrace.envs import register as register
from headrace.envs.compiled.single_env import single as single
from headrace.envs.construct import Wrappers
from headrace.envs.gym.agent_groups import Grouping
from headrace.envs.registry import Source
from headrace.envs.vector.mujoco_task import MujocoTask as MujocoTask
from headrace.envs.vector_env.compiled_vector import Output
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
from headrace.setting_schedules import Schedule
from headrace.training.config import TrainConfig as TrainConfig
from headrace.training.loop import Training as _Training
from headrace.training.trainer import Trainer as _Trainer
from headrace.tuning.tuner import Tuning

class Options(TypedDict, total=False):
    num_envs: int
    registered: bool
    scale: bool
    stagger: bool
    seed: int
    device: torch.device | str
    collect_device: torch.device | str | None
    eval_device: torch.device | str | None
    precision: Literal["float32", "tf32", "bfloat16", "auto"]
    graphs: bool
    backend: str
    workers: Workers | int | Literal["auto"] | None
    actors: Workers | int | Literal["auto"] | None
    collection: Literal["sync", "double_buffered", "overlapped", "async"]
    max_policy_lag: int
    replay_order: Path | str | None
    advantages: Literal["learner", "actor"]
    exchange: Literal["experience", "gradients"]
    learners: int
    shards: int | None
    cluster: str | None
    cluster_open: bool
    drop_slowest: float
    on_error: Literal["raise", "restart"]
    step_timeout: float
    group_by: Literal["spaces", "names", "agents"]
    central_critic: bool
    self_play: bool
    opponents: int | None
    latest_share: float
    best_share: float
    pool_size: int
    snapshot_freq: int
    frame_stack: int
    time_limit: int | None
    info_mask: bool
    reward_scale: float
    params: Mapping[str, Any]
    env_kwargs: Mapping[str, Any]
    wrapper: Sequence[str]
    ignore: Sequence[str]
    policy: type[Policy] | str | None
    init_from: Path | str | None
    replay: Path | str | None
    total_steps: int | None
    max_seconds: float | None
    max_episodes: int | None
    target_return: float | None
    window: int
    log_info: Sequence[str]
    curriculum: Mapping[str, Any]
    eval_freq: int
    eval_episodes: int
    eval_envs: int | None
    parallel_evaluation: bool
    save_freq: int
    track: Literal["wandb"] | None
    log_folder: Path | str
    progress: Literal["auto", "rich", "plain", "none"]
    threads: int | None

class PPOOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    epochs: int
    minibatch_size: int
    gae_lambda: float
    clip: float
    value_clip: float
    entropy_coef: float
    value_coef: float
    target_kl: float
    desired_kl: float
    layer_norm: bool
    shared: bool
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int

class A2COptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    gae_lambda: float
    entropy_coef: float
    value_coef: float
    shared: bool

class APPOOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    clip_rho: float
    clip_c: float
    epochs: int
    minibatch_size: int
    gae_lambda: float
    clip: float
    value_clip: float
    entropy_coef: float
    value_coef: float
    target_kl: float
    desired_kl: float
    layer_norm: bool
    shared: bool
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int

class IMPALAOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    clip_rho: float
    clip_c: float
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    gae_lambda: float
    entropy_coef: float
    value_coef: float
    shared: bool

class ReinforceOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    baseline: bool
    entropy_coef: float
    value_coef: float

class TRPOOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    max_kl: float
    cg_steps: int
    damping: float
    backtracks: int
    backtrack_coef: float
    critic_epochs: int
    minibatch_size: int
    gae_lambda: float

class DDPGOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    critic_hidden: Sequence[int] | None
    noise_autocorrelation: float
    critic_init_scale: float
    norm: Literal["none", "layer", "rms"]
    weight_decay: float
    exploration: float
    exploration_max: float
    invert_gradients: bool
    tau: float

class TD3Options(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    critic_hidden: Sequence[int] | None
    noise_autocorrelation: float
    critic_init_scale: float
    norm: Literal["none", "layer", "rms"]
    weight_decay: float
    exploration: float
    exploration_max: float
    invert_gradients: bool
    tau: float
    num_atoms: int
    v_min: float
    v_max: float
    target_noise: float
    target_noise_clip: float
    policy_delay: int

class SACOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    critic_hidden: Sequence[int] | None
    noise_autocorrelation: float
    critic_init_scale: float
    norm: Literal["none", "layer", "rms"]
    weight_decay: float
    tau: float
    initial_std: float | None
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    use_sde_at_warmup: bool
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    num_atoms: int
    v_min: float
    v_max: float

class TQCOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    critic_hidden: Sequence[int]
    noise_autocorrelation: float
    critic_init_scale: float
    norm: Literal["none", "layer", "rms"]
    weight_decay: float
    tau: float
    initial_std: float | None
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    use_sde_at_warmup: bool
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    critics: int
    quantiles: int
    dropped_quantiles: int

class CrossQOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    critic_hidden: Sequence[int]
    noise_autocorrelation: float
    critic_init_scale: float
    norm: Literal["none", "layer", "rms"]
    weight_decay: float
    initial_std: float | None
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    use_sde_at_warmup: bool
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    policy_delay: int
    renorm_warm_up: int

class DQNOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    exploration_initial: float
    exploration_final: float
    exploration_fraction: float
    prioritized: bool
    priority_alpha: float
    priority_beta: float
    noisy: float
    target_interval: int
    tau: float
    double: bool
    dueling: bool
    exploration_spread: float
    adam_eps: float
    max_grad_norm: float
    layer_norm: bool

class PQNOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    exploration_initial: float
    exploration_final: float
    exploration_fraction: float
    epochs: int
    minibatch_size: int
    q_lambda: float
    layer_norm: bool

class QRDQNOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    exploration_initial: float
    exploration_final: float
    exploration_fraction: float
    noisy: float
    quantiles: int
    target_interval: int
    tau: float
    dueling: bool
    adam_eps: float
    max_grad_norm: float
    layer_norm: bool

class C51Options(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    num_atoms: int
    v_min: float
    v_max: float
    exploration_initial: float
    exploration_final: float
    exploration_fraction: float
    prioritized: bool
    priority_alpha: float
    priority_beta: float
    noisy: float
    target_interval: int
    tau: float
    double: bool
    dueling: bool
    adam_eps: float
    max_grad_norm: float
    layer_norm: bool

class DiscreteSACOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    tau: float
    temperature: float
    learn_temperature: bool
    target_entropy: float
    critic_hidden: Sequence[int] | None

class HybridSACOptions(Options, total=False):
    num_steps: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    gamma: float
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    burn_in: int
    tau: float
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    target_choice_entropy: float
    critic_hidden: Sequence[int] | None

class TD3BCOptions(Options, total=False):
    gradient_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    gamma: float
    tau: float
    critic_hidden: Sequence[int] | None
    alpha: float
    target_noise: float
    target_noise_clip: float
    policy_delay: int

class IQLOptions(Options, total=False):
    gradient_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    gamma: float
    tau: float
    critic_hidden: Sequence[int] | None
    expectile: float
    beta: float
    max_weight: float

class BCOptions(Options, total=False):
    gradient_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    deterministic: bool

class CQLOptions(Options, total=False):
    gradient_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    gamma: float
    tau: float
    critic_hidden: Sequence[int] | None
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    alpha: float
    num_samples: int

class DiscreteCQLOptions(Options, total=False):
    gradient_steps: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    alpha: float
    gamma: float
    tau: float

class SharedOptions(Options, total=False):
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]

class EveryOptions(Options, total=False):
    num_steps: int
    learning_rate: float
    schedule: Schedule
    schedules: Mapping[str, Schedule]
    adam_beta2: float
    gamma: float
    max_grad_norm: float
    hidden: Sequence[int]
    activation: str
    normalize_observation: bool
    images: Literal["auto", "nature", "impala", "small"]
    distribution: Literal["auto", "categorical", "gaussian", "unit_gaussian", "squashed"]
    normalize_advantage: bool
    normalize_return: bool
    recurrent: Literal["none", "gru", "lstm"]
    rnn_size: int
    sequence_length: int
    critic_hidden: Sequence[int] | None
    critic_members: Sequence[str]
    ortho_init: bool
    initial_std: float | None
    state_std: bool
    use_sde: bool
    sde_sample_freq: int
    use_expln: bool
    epochs: int
    minibatch_size: int
    gae_lambda: float
    clip: float
    value_clip: float
    entropy_coef: float
    value_coef: float
    target_kl: float
    desired_kl: float
    layer_norm: bool
    shared: bool
    intrinsic: Literal["none", "rnd", "diayn"]
    intrinsic_coef: float
    extrinsic_coef: float | None
    skills: int
    intrinsic_gamma: float
    intrinsic_share: float
    intrinsic_hidden: Sequence[int]
    intrinsic_features: int
    clip_rho: float
    clip_c: float
    baseline: bool
    max_kl: float
    cg_steps: int
    damping: float
    backtracks: int
    backtrack_coef: float
    critic_epochs: int
    train_freq: int
    buffer_size: int
    learning_starts: int
    batch_size: int
    utd_ratio: float
    gradient_steps: int
    n_steps: int
    hindsight: int
    hindsight_goals: Literal["future", "final", "episode"]
    burn_in: int
    noise_autocorrelation: float
    critic_init_scale: float
    norm: Literal["none", "layer", "rms"]
    weight_decay: float
    exploration: float
    exploration_max: float
    invert_gradients: bool
    tau: float
    num_atoms: int
    v_min: float
    v_max: float
    target_noise: float
    target_noise_clip: float
    policy_delay: int
    use_sde_at_warmup: bool
    temperature: float
    learn_temperature: bool
    target_entropy: float | None
    critics: int
    quantiles: int
    dropped_quantiles: int
    renorm_warm_up: int
    exploration_initial: float
    exploration_final: float
    exploration_fraction: float
    prioritized: bool
    priority_alpha: float
    priority_beta: float
    noisy: float
    target_interval: int
    double: bool
    dueling: bool
    exploration_spread: float
    adam_eps: float
    q_lambda: float
    target_choice_entropy: float
    alpha: float
    expectile: float
    beta: float
    max_weight: float
    deterministic: bool
    num_samples: int

class Trainer(_Trainer):
    @overload
    def __init__(
        self,
        algorithm: Literal["ppo"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[PPOOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["a2c"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[A2COptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["appo"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[APPOOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["impala"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[IMPALAOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["reinforce"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[ReinforceOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["trpo"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[TRPOOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["ddpg"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[DDPGOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["td3"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[TD3Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["sac"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[SACOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["tqc"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[TQCOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["crossq"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[CrossQOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["dqn"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[DQNOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["pqn"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[PQNOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["qrdqn"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[QRDQNOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["c51"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[C51Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["discrete_sac"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[DiscreteSACOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["hybrid_sac"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[HybridSACOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["td3_bc"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[TD3BCOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["iql"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[IQLOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["bc"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[BCOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["cql"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[CQLOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["discrete_cql"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[DiscreteCQLOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: str,
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[SharedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: None = None,
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[EveryOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Algorithm | OnPolicy[Any] | OffPolicy[Any],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        agent_info: Any = None,
        **options: Unpack[Options],
    ) -> None: ...

class Training(_Training):
    @overload
    def __init__(
        self,
        algorithm: Literal["ppo"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[PPOOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["a2c"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[A2COptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["appo"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[APPOOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["impala"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[IMPALAOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["reinforce"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[ReinforceOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["trpo"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[TRPOOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["ddpg"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[DDPGOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["td3"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[TD3Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["sac"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[SACOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["tqc"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[TQCOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["crossq"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[CrossQOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["dqn"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[DQNOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["pqn"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[PQNOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["qrdqn"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[QRDQNOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["c51"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[C51Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["discrete_sac"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[DiscreteSACOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["hybrid_sac"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[HybridSACOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["td3_bc"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[TD3BCOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["iql"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[IQLOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["bc"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[BCOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["cql"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[CQLOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Literal["discrete_cql"],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[DiscreteCQLOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: str,
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[SharedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: None = None,
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[EveryOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        algorithm: Algorithm | OnPolicy[Any] | OffPolicy[Any],
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        zoo: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Unpack[Options],
    ) -> None: ...

@overload
def train(
    algorithm: Literal["ppo"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[PPOOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["a2c"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[A2COptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["appo"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[APPOOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["impala"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[IMPALAOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["reinforce"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[ReinforceOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["trpo"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[TRPOOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["ddpg"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[DDPGOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["td3"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[TD3Options],
) -> Run: ...
@overload
def train(
    algorithm: Literal["sac"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[SACOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["tqc"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[TQCOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["crossq"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[CrossQOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["dqn"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[DQNOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["pqn"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[PQNOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["qrdqn"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[QRDQNOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["c51"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[C51Options],
) -> Run: ...
@overload
def train(
    algorithm: Literal["discrete_sac"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[DiscreteSACOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["hybrid_sac"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[HybridSACOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["td3_bc"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[TD3BCOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["iql"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[IQLOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["bc"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[BCOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["cql"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[CQLOptions],
) -> Run: ...
@overload
def train(
    algorithm: Literal["discrete_cql"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[DiscreteCQLOptions],
) -> Run: ...
@overload
def train(
    algorithm: str,
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[SharedOptions],
) -> Run: ...
@overload
def train(
    algorithm: None = None,
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[EveryOptions],
) -> Run: ...
@overload
def train(
    algorithm: Algorithm | OnPolicy[Any] | OffPolicy[Any],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Unpack[Options],
) -> Run: ...
@overload
def tune(
    algorithm: Literal["ppo"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[PPOOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["a2c"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[A2COptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["appo"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[APPOOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["impala"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[IMPALAOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["reinforce"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[ReinforceOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["trpo"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[TRPOOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["ddpg"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[DDPGOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["td3"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[TD3Options],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["sac"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[SACOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["tqc"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[TQCOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["crossq"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[CrossQOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["dqn"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[DQNOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["pqn"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[PQNOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["qrdqn"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[QRDQNOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["c51"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[C51Options],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["discrete_sac"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[DiscreteSACOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["hybrid_sac"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[HybridSACOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["td3_bc"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[TD3BCOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["iql"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[IQLOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["bc"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[BCOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["cql"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[CQLOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: Literal["discrete_cql"],
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[DiscreteCQLOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: str,
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[SharedOptions],
) -> Tuning: ...
@overload
def tune(
    algorithm: None = None,
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    zoo: str | Path | None = None,
    seconds: float = 120.0,
    by: Literal["return", "steps"] = "return",
    watch: Callable[[str], None] | None = None,
    **options: Unpack[EveryOptions],
) -> Tuning: ...
def make(
    source: Source,
    num_envs: int,
    *,
    backend: str = "auto",
    device: str | torch.device = "cpu",
    threads: int | None = None,
    params: Settings | None = None,
    wrappers: Wrappers = (),
    ignore: Sequence[str] = (),
    workers: int | Workers | Literal["auto"] | None = None,
    on_error: Literal["raise", "restart"] = "raise",
    step_timeout: float = 60.0,
    group_by: Grouping = "spaces",
    frame_stack: int = 1,
    time_limit: int | None = None,
    reward_scale: float = 1.0,
    info_mask: bool = False,
    with_state: bool = False,
    first_env: int = 0,
    env_kwargs: Settings | None = None,
) -> Env: ...
def make_vec(
    source: Source,
    num_envs: int | None = None,
    *,
    autoreset_mode: AutoresetMode | Literal["NextStep", "SameStep", "Disabled"] = ...,
    output: Output = "numpy",
    copy: bool = True,
    episode_statistics: bool = False,
    device: str | torch.device = "cpu",
    backend: str = "auto",
    threads: int | None = None,
    params: Settings | None = None,
    workers: int | Workers | None = None,
    step_timeout: float = 60.0,
    wrappers: Wrappers = (),
    frame_stack: int = 1,
    time_limit: int | None = None,
    env_kwargs: Settings | None = None,
) -> VectorEnv: ...
