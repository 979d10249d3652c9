"""Names of Stable-Baselines3, and members of its models, policies and logger: their counterparts here, or what to use
instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.runs.sb3_scalars import sb3_scalars
from headrace.sb3 import replay_buffer
from headrace.sb3.replay_buffer import ReplayBuffer
from headrace.sb3.steps import observations
from headrace.sb3.zip_files import File

LOOP = "learn() is a loop on headrace.Trainer: for one of your own see docs/own-loop.md"
ROLLOUT = "rollouts are Headrace's own: headrace.Trainer.iterate() gives each, see docs/own-loop.md"
LAYERS = "model.policy is Headrace's own: model.policy.predict(observation) acts, and its layers are "

NO_BATCH_NORM = "networks have no batch normalisation; CrossQ's have: headrace.train('crossq', ...)"
KINDS = ("", "actor_", "critic_")

INSTEAD = {  # members of models -> what to use instead
    **dict.fromkeys(("rollout_buffer",), ROLLOUT),
    **dict.fromkeys(("collect_rollouts", "train", "_setup_learn", "_setup_model", "_sample_action"), LOOP),
    **dict.fromkeys(("_store_transition", "_update_info_buffer", "_on_step", "_wrap_env", "_init_callback"), LOOP),
    **dict.fromkeys(("_update_learning_rate", "_update_current_progress_remaining", "_n_calls"), LOOP),
    **dict.fromkeys(("_get_policy_from_name", "policy_aliases"), "policies are MlpPolicy, CnnPolicy, MultiInputPolicy"),
    **dict.fromkeys(("_create_aliases", "_convert_train_freq", "_maybe_recommend_cpu"), "nothing here calls it"),
    **dict.fromkeys(("_excluded_save_params", "_get_torch_save_params"), "save(path, exclude, include) takes names"),
    **dict.fromkeys((f"{kind}batch_norm_stats{which}" for kind in KINDS for which in ("", "_target")), NO_BATCH_NORM),
    **dict.fromkeys(("actor", "actor_target"), LAYERS + "model.policy.actor and model.policy.actor_out"),
    **dict.fromkeys(("critic", "critic_target"), LAYERS + "model.policy.critics, or model.policy.critic of PPO"),
    **dict.fromkeys(
        ("q_net", "q_net_target"), LAYERS + "model.policy.trunk and out; model.policy(tensor) has Q [A, N]"
    ),
    "ent_coef_optimizer": "the optimizers are model.algorithm.optimizers",
    "log_ent_coef": "the logarithm of the temperature is model.algorithm.log_temperature",
    "exploration_schedule": "model.exploration_rate is the present one",
}
OF_LOGGER = {
    **dict.fromkeys(("level", "set_level"), "verbose=1 of the model prints what is logged, and 0 does not"),
    "output_formats": "tables go to standard output where verbose=1, and scalars for TensorBoard to logger.folder",
}

KEEP = "keep `from stable_baselines3.common.{} import {}`, which works with models of headrace.sb3"
MASKS = 'headrace.train("ppo", env) learns masks that are a member action_mask of Dict observations'
BUFFERS = "buffers are Headrace's own; model.replay_buffer shows one"
NETWORKS = (
    "policy_kwargs with features_extractor_class, net_arch and activation_fn, or docs/own-policy.md, make networks"
)

KEPT = {  # modules of stable_baselines3.common -> their names that models of headrace.sb3 work with
    "vec_env": "DummyVecEnv SubprocVecEnv VecCheckNan VecExtractDictObs VecFrameStack VecMonitor VecNormalize "
    "VecTransposeImage VecVideoRecorder VecEnvWrapper is_vecenv_wrapped sync_envs_normalization unwrap_vec_normalize "
    "unwrap_vec_wrapper",
    "callbacks": "BaseCallback CallbackList CheckpointCallback ConvertCallback EvalCallback EventCallback "
    "EveryNTimesteps LogEveryNTimesteps ProgressBarCallback StopTrainingOnMaxEpisodes "
    "StopTrainingOnNoModelImprovement StopTrainingOnRewardThreshold",
    "noise": "NormalActionNoise OrnsteinUhlenbeckActionNoise",
    "evaluation": "evaluate_policy",
    "monitor": "Monitor load_results get_monitor_files",
    "env_util": "is_wrapped unwrap_wrapper",
    "env_checker": "check_env",
    "atari_wrappers": "AtariWrapper ClipRewardEnv EpisodicLifeEnv FireResetEnv MaxAndSkipEnv NoopResetEnv WarpFrame",
    "results_plotter": "plot_results ts2xy",
    "utils": "set_random_seed LinearSchedule get_linear_fn ConstantSchedule",
    "logger": "configure HParam",
}
OF_PACKAGE = {  # names of stable_baselines3 and sb3_contrib that headrace.sb3 does not have
    **{name: KEEP.format(module, name) for module, names in KEPT.items() for name in names.split()},
    "VecNormalize": f"{KEEP.format('vec_env', 'VecNormalize')}, which has a file of its own; "
    "or headrace.train(..., normalize_observation=True), whose policy has the statistics",
    "HerReplayBuffer": "keep `from stable_baselines3 import HerReplayBuffer`: as replay_buffer_class it stands for "
    "Headrace's hindsight",
    "make_atari_env": 'make_vec_env("ALE/Pong-v5") has the usual preprocessing',
    **dict.fromkeys(("MaskablePPO", "ActionMasker", "MaskableEvalCallback", "get_action_masks"), MASKS),
    "ARS": 'it has no counterpart: headrace.train("ppo", env) learns with gradients',
    "HER": "SAC, TD3, DDPG and DQN take replay_buffer_class=HerReplayBuffer",
    **dict.fromkeys(("MlpPolicy", "CnnPolicy", "MultiInputPolicy"), 'a model takes the name in quotes: "{}"'),
    **dict.fromkeys(
        ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"), 'RecurrentPPO takes it in quotes: "{}"'
    ),
    **dict.fromkeys(("ActorCriticPolicy", "BasePolicy", "BaseModel", "MlpExtractor", "create_mlp"), NETWORKS),
    **dict.fromkeys(("NatureCNN", "CombinedExtractor", "FlattenExtractor"), NETWORKS),
    **dict.fromkeys(
        ("ReplayBuffer", "RolloutBuffer", "DictReplayBuffer", "DictRolloutBuffer", "NStepReplayBuffer"), BUFFERS
    ),
    **dict.fromkeys(
        ("BaseAlgorithm", "OnPolicyAlgorithm", "OffPolicyAlgorithm"), "docs/own-algorithm.md has the form of one"
    ),
    "TimeFeatureWrapper": "keep `from sb3_contrib.common.wrappers import TimeFeatureWrapper`: it is stepped as it is",
    "get_system_info": "python -m headrace --version prints Headrace's version",
}


def _replay(model: Any) -> Any:
    """The replay buffer of a model, or None without environments. Raises AttributeError for algorithms without one."""
    if not hasattr(model.algorithm, "replay"):
        kind = type(model).__name__
        raise AttributeError(f"{kind} has no replay buffer: it learns from each rollout once, and keeps none")
    return model.algorithm.replay


def _replay_buffer(model: Any) -> ReplayBuffer | None:
    replay = _replay(model)
    return None if replay is None else ReplayBuffer(replay, model.algorithm.config.gamma)


def _save_replay_buffer(model: Any) -> Callable[[File], None]:
    """Write the replay buffer: see replay_buffer.save()."""
    replay = _replay(model)

    def save_replay_buffer(path: File) -> None:
        if replay is None:
            raise ValueError("this model has no environments, and so no replay buffer: call set_env(env) first")
        replay_buffer.save(path, replay)

    return save_replay_buffer


def _load_replay_buffer(model: Any) -> Callable[..., None]:
    """Read the replay buffer: see replay_buffer.read(). A model without environments takes it with set_env()."""
    replay = _replay(model)

    def load_replay_buffer(path: File, truncate_last_traj: bool = True) -> None:
        if not truncate_last_traj:
            raise ValueError("truncate_last_traj=False has no counterpart: training begins new episodes")
        state = replay_buffer.read(path)
        if replay is None:
            model._waiting_replay = state
        else:
            replay_buffer.put(replay, state)

    return load_replay_buffer


def _last_observations(model: Any) -> Any:
    """Observations [N, ...] that the next step begins from; None before the first."""
    trainer = model._trainer
    if trainer is None or not trainer.steps:
        return None
    return observations(trainer.env.observation_space, trainer.collector.rollout.observation[-1])


def _original_observations(model: Any) -> Any:
    """_last_obs before normalisation by a VecNormalize; None without one, and before the first step."""
    normalize = model.get_vec_normalize_env()
    return None if normalize is None or model._last_obs is None else normalize.get_original_obs()


def _last_episode_starts(model: Any) -> Any:
    """Mask of environments that begin an episode with the next step; None before the first step."""
    trainer = model._trainer
    return None if trainer is None or not trainer.steps else ~trainer.collector.rollout.valid[-1].numpy(force=True)


def _n_updates(model: Any) -> int:
    """Gradient steps of an algorithm with a replay buffer, or epochs of another one, so far."""
    scalars = sb3_scalars(model.algorithm)
    return int(scalars.get("train/n_updates", getattr(model.algorithm, "updates", 0)))


def _lr_schedule(model: Any) -> Callable[[float], float]:
    """The learning rate, as a function of the remaining fraction of the training."""
    rate = model.arguments["learning_rate"]
    return lambda remaining: float(rate(remaining) if callable(rate) else rate)


GIVEN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("use_sde", "use_sde_at_warmup"), lambda _: False),  # of models without these arguments
    "sde_sample_freq": lambda _: -1,
    "action_noise": lambda _: None,  # of models without that argument
    "_dump_logs": lambda model: model.dump_logs,
    "_setup_lr_schedule": lambda _: lambda: None,  # setting learning_rate is enough
    "_stats_window_size": lambda model: model.stats_window_size,
    "_num_timesteps_at_start": lambda model: model._steps_at_start,
    "_last_original_obs": _original_observations,
    "replay_buffer": _replay_buffer,
    "save_replay_buffer": _save_replay_buffer,
    "load_replay_buffer": _load_replay_buffer,
    "_last_obs": _last_observations,
    "_last_episode_starts": _last_episode_starts,
    "_vec_normalize_env": lambda model: model.get_vec_normalize_env(),
    "lr_schedule": _lr_schedule,
    "_n_updates": _n_updates,
    "policy_class": lambda model: type(model.policy),
    "_episode_num": lambda model: model.episodes,
}


def member(model: Any, name: str) -> Any:
    """A member of Stable-Baselines3's models that is neither an attribute of Model nor an argument. Raises
    AttributeError, which says what to use instead."""
    if name in GIVEN:
        return GIVEN[name](model)
    raise AttributeError(missing(type(model).__name__, name, INSTEAD))


def missing(owner: str, name: str, instead: dict[str, str]) -> str:
    """The message about a missing member."""
    return f"{owner} has no attribute {name!r}" + (f": {instead[name]}" if name in instead else "")


def not_offered(name: str) -> Exception:
    """The error about a name that headrace.sb3 does not have: an ImportError, which `from headrace.sb3 import name`
    shows, for one of Stable-Baselines3; AttributeError for another."""
    if name not in OF_PACKAGE:
        return AttributeError(f"module 'headrace.sb3' has no attribute {name!r}")
    return ImportError(f"headrace.sb3 has no {name}: {OF_PACKAGE[name].format(name)}", name=name)
