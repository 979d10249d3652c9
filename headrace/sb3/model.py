"""The base class of headrace.sb3's models: learn, predict, save and load, as in Stable-Baselines3's BaseAlgorithm."""

from __future__ import annotations

import platform
import secrets
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from inspect import signature
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from gymnasium.spaces import Space

from headrace.agent_groups.group_policy import check_spaces
from headrace.algorithms.base import Algorithm
from headrace.core.device import resolve
from headrace.core.rng import word
from headrace.core.types import Json
from headrace.data.flat_action import whole
from headrace.policies.base import Policy
from headrace.sb3 import parameters, zip_files
from headrace.sb3.assignment import assign, check_unread
from headrace.sb3.callback_calls import Callbacks
from headrace.sb3.env_argument import Given, changed_since, given, spaces_of
from headrace.sb3.extractors import extracted
from headrace.sb3.learning import Learning, LearnLimits, stepping
from headrace.sb3.logger import Logger, new_folder
from headrace.sb3.members import INSTEAD, member, missing
from headrace.sb3.parameters import explore_from, present, without_replay
from headrace.sb3.replay_buffer import put
from headrace.sb3.schedules import Constant
from headrace.sb3.steps import SteppedEnv
from headrace.sb3.translation import (
    ON_POLICY,
    ArgumentError,
    Translation,
    train_settings,
    trained_as,
    translate,
    warn_of_minibatches,
)
from headrace.sb3.vec_env import VecEnv
from headrace.training.trainer import Trainer


class Model:
    """A training with the methods of Stable-Baselines3, on headrace.Trainer. See docs/from_sb3.md for what differs.

    arguments: those of a subclass's constructor, by name.
    Attributes: policy, env, n_envs, num_timesteps, observation_space, action_space, logger, ep_info_buffer, verbose.
    """

    algorithm_name: ClassVar[str]
    log_interval: ClassVar[int] = 1  # of learn(): rollouts, or episodes with a replay buffer, between two tables

    def __init__(self, policy: Any, env: Any, arguments: Mapping[str, Any]) -> None:
        self.arguments = {k: x for k, x in arguments.items() if k not in ("self", "policy", "env", "__class__")}
        self.arguments.setdefault("stats_window_size", 100)  # DDPG does not have it
        self.arguments["device"] = present(self.arguments["device"])
        self.policy_argument = policy
        self.verbose: int = self.arguments["verbose"]
        self.tensorboard_log: str | None = self.arguments["tensorboard_log"]
        seed = self.arguments["seed"]
        self.seed: int = secrets.randbits(32) if seed is None else seed
        self._generator = torch.Generator().manual_seed(word(self.seed))  # of predict()
        self.num_timesteps = self.episodes = self._steps_at_start = 0
        self._current_progress_remaining = 1.0
        self.ep_info_buffer: deque[Json] = deque(maxlen=self.arguments["stats_window_size"])
        self.ep_success_buffer: deque[float] = deque(maxlen=self.arguments["stats_window_size"])
        self.start_time = time.time_ns()
        self._logger: Any = Logger(self.verbose > 0, None)
        self._custom_logger = False
        self._trainer: Trainer | None = None
        self.said: set[str] = set()  # lines about files, which are printed once
        self._waiting_replay: Json | None = None  # from load_replay_buffer(), until there are environments
        self._vec_env: Any = None
        self._given = Given("", 0, {}, None)
        if env is not None:
            self.set_env(env)
            if seed is not None:
                self.get_env().seed(seed)

    def __getattr__(self, name: str) -> Any:
        """Return an argument of the constructor as an attribute, as SB3's models do; for other names see members."""
        if name != "arguments" and name in self.__dict__.get("arguments", {}):
            value = self.arguments[name]
            return Constant(value) if name == "clip_range" and isinstance(value, int | float) else value
        if name == "arguments":  # it is not set yet
            raise AttributeError(name)
        return member(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an argument of the constructor, which takes effect from the next rollout on: see assignment."""
        if not assign(self, name, value):
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the object itself; for others see members."""
        if name not in vars(self):
            raise AttributeError(missing(type(self).__name__, name, INSTEAD))
        object.__delattr__(self, name)

    # ---------------------------------------------------------------- environments

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Train in these environments from now on, beginning new episodes. Networks and optimizers stay, and so does
        the replay buffer, unless the number of environments changes.

        force_reset: False continues episodes if env is get_env() of this model. Other environments begin new ones, and
        a line says so. Raises ValueError for environments with other spaces.
        """
        if not force_reset:
            if env is not None and env is self.get_env():
                return
            print("force_reset=False: new episodes begin, as these environments are others", file=sys.stderr)
        found = given(env)
        before: Algorithm | None = getattr(self, "algorithm", None)
        if self._trainer is None and self.arguments["seed"] is not None:
            found.vec_env.action_space.seed(self.seed)  # some environments draw from it, in their first reset() too
        trainer = self._make_trainer(found)
        if before is not None:
            try:
                check_spaces(before.policy, trainer.env.spaces, trainer.env.name)
            except ValueError:
                trainer.close()
                raise
            trainer.algorithm.load_state_dict(without_replay(before))
            self._keep_replay(before, trainer.algorithm)
        if self._trainer is not None:
            self._trainer.close()
        self._trainer, self._vec_env, self._given = trainer, found.vec_env, found
        if isinstance(found.vec_env, VecEnv):
            found.vec_env.train(trainer.env)
        self._take(trainer.algorithm, trainer.env.num_envs)

    def _keep_replay(self, before: Any, after: Any) -> None:
        """Give an algorithm the previous or loaded replay buffer if its size is right; otherwise a line says so."""
        kept, own = getattr(before, "replay", None), getattr(after, "replay", None)
        state = self._waiting_replay if kept is None else kept.state_dict()
        if own is None or state is None:
            return
        if kept is not None and (kept.num_envs, kept.length) != (own.num_envs, own.length):
            print("the replay buffer begins empty: there is another number of environments", file=sys.stderr)
            return
        put(own, state)
        self._waiting_replay = None

    def _make_trainer(self, found: Given) -> Trainer:
        """Make a Trainer for these environments, with the settings for the model's arguments."""
        env, vec_env = found.source, found.vec_env
        self.translation = self._translate((vec_env.observation_space, vec_env.action_space), found.num_envs)
        warn_of_minibatches(self.arguments, found.num_envs)
        own = {name: getattr(self.translation.config, name) for name in self.translation.config.__dataclass_fields__}
        own |= train_settings(
            **{"seed": self.seed, "total_steps": 1, "progress": "none", "device": str(self.arguments["device"])},
            **{"window": self.arguments["stats_window_size"], **found.settings},
            num_envs=found.num_envs,
        )
        try:
            return extracted(self, Trainer, trained_as(self.algorithm_name), env, **own)
        except (ValueError, TypeError) as error:
            raise ArgumentError(str(error)) from error

    def _translate(self, spaces: tuple[Space, Space], num_envs: int) -> Translation:
        parameters = signature(type(self).__init__).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        arguments = (self.policy_argument, self.arguments, defaults, spaces, num_envs)
        return translate(self.algorithm_name, *arguments)

    def _take(self, algorithm: Algorithm, num_envs: int) -> None:
        self.algorithm, self.n_envs = algorithm, num_envs
        for optimizer in parameters.optimizers(algorithm):
            for name, value in self.translation.optimizer.items():
                setattr(optimizer, name, value)
        self.policy: Policy = algorithm.policy
        self.device = next(self.policy.parameters()).device
        self.observation_space, self.action_space = self.policy.observation_space, whole(self.policy.action_space)

    def get_env(self) -> Any:
        """The VecEnv that was given, or one made of the given env; None for a model without environments. If
        environments are compiled or in workers, its episodes are separate from those of the training."""
        return self._vec_env

    @property
    def env(self) -> Any:
        """get_env()."""
        return self.get_env()

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed predict() and the next reset() of get_env(). The training has the seed of the constructor."""
        if seed is not None:
            self._generator.manual_seed(word(seed))
            if self._vec_env is not None:
                self._vec_env.seed(seed)
                self._vec_env.action_space.seed(seed)

    def _follow_objects(self) -> None:
        """Step the user's own environments, if they have changed since compiled ones replaced them."""
        env = changed_since(self._given, self.seed)
        if env is None:
            return
        trainer = self._ready()
        collector = stepping(trainer)
        stepped = collector.env if isinstance(collector.env, SteppedEnv) else collector
        trainer.env = stepped.env = env
        self._given = self._given._replace(objects=())

    def get_vec_normalize_env(self) -> Any:
        """The VecNormalize of Stable-Baselines3 around the environments, or None."""
        env = self.get_env()
        while env is not None and type(env).__name__ != "VecNormalize":
            env = getattr(env, "venv", None)
        return env

    # ---------------------------------------------------------------- learning

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = None,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for total_timesteps steps of all environments, rounded up to whole rollouts: see LearnLimits.

        callback: see callback_calls.Callbacks. log_interval: rollouts between two tables, by default 1; for algorithms
        with a replay buffer episodes, by default 4. reset_num_timesteps: False continues the count of steps, and the
        schedules. progress_bar: whether to show a line on standard error that is updated.
        """
        trainer = self._ready()
        check_unread(self.policy)
        if trainer.env.backend == "inline" and trainer.steps:  # get_env() may have stepped them
            trainer.env.load_state_dict({})
        if reset_num_timesteps:
            self.num_timesteps = self.episodes = 0
            self.ep_info_buffer.clear()
            self.ep_success_buffer.clear()
        limits = LearnLimits(trainer, self.num_timesteps, total_timesteps)
        trainer.limits = limits
        self._total_timesteps = limits.total
        explore_from(self.algorithm, limits.progress(0, 0, 0.0))
        self.start_time, self._steps_at_start = time.time_ns(), self.num_timesteps
        self._renew_logger(tb_log_name or type(self).__name__, not reset_num_timesteps)
        callbacks = Callbacks(callback, self)
        callbacks.start({"self": self, "total_timesteps": limits.total, "log_interval": log_interval})
        Learning(self, trainer, limits, callbacks, log_interval or self.log_interval).run(progress_bar)
        callbacks.end()
        return self

    def _ready(self) -> Trainer:
        if self._trainer is None:
            raise ValueError("this model has no environments to train in: call set_env(env) first")
        return self._trainer

    def _apply_schedules(self, remaining: float) -> None:
        """Set the learning rate and PPO's clipping by their schedules."""
        self._current_progress_remaining = remaining
        if self.translation.learning_rate is not None:
            rate = float(self.translation.learning_rate(remaining))
            for optimizer in parameters.optimizers(self.algorithm):
                optimizer.learning_rate.fill_(rate)
        if self.translation.clip is not None:
            self.algorithm.config = replace(self.algorithm.config, clip=float(self.translation.clip(remaining)))

    # ---------------------------------------------------------------- logs

    @property
    def logger(self) -> Logger:
        """Logger that records values."""
        return self._logger

    def set_logger(self, logger: Any) -> None:
        """Record into another logger: an object with record() and dump()."""
        self._logger, self._custom_logger = logger, True

    def _renew_logger(self, name: str, same: bool) -> None:
        """Make learn()'s logger, unless set_logger() was called. name, same: see new_folder()."""
        if self._custom_logger:
            return
        if self.tensorboard_log is not None:
            self._logger = Logger(self.verbose > 0, new_folder(self.tensorboard_log, name, same))
        self._logger.prints = self.verbose > 0

    def dump_logs(self, count: int = 0) -> None:
        """Write the values recorded since the last call, and means over the last episodes. count: number of rollouts so
        far, or of episodes for algorithms with a replay buffer; 0 leaves it out."""
        record, seconds = self.logger.record, max((time.time_ns() - self.start_time) / 1e9, 1e-9)
        if self.ep_info_buffer:
            for name, key in (("ep_rew_mean", "r"), ("ep_len_mean", "l")):
                record(f"rollout/{name}", float(np.mean([info[key] for info in self.ep_info_buffer])))
        if self.ep_success_buffer:
            record("rollout/success_rate", float(np.mean(self.ep_success_buffer)))
        record("time/fps", int((self.num_timesteps - self._steps_at_start) / seconds))
        if count:
            record("time/iterations" if self.algorithm_name in ON_POLICY else "time/episodes", count)
        record("time/time_elapsed", int(seconds), exclude="tensorboard")
        record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)

    # ---------------------------------------------------------------- acting

    def predict(
        self, observation: Any, state: Any = None, episode_start: np.ndarray | None = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Predict actions for one observation or a batch. Returns them and the next recurrent state, None for a policy
        that is not recurrent.

        state: the state of the previous call. episode_start: bool [N], True where the state starts again from zeros.
        Raises ValueError for the pair that Gymnasium's reset() returns.
        """
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise ValueError("(observation, info) is given: mixing Gym API and VecEnv API? Write obs, _ = env.reset()")
        how: Json = {"deterministic": deterministic, "generator": self._generator, "episode_start": episode_start}
        action, state = self.policy.predict(observation, state, **how)
        return np.asarray(action), state  # a single discrete action would be a number

    # ---------------------------------------------------------------- parameters and files

    def get_parameters(self) -> dict[str, dict[str, Any]]:
        """Copies of the policy's tensors, and of the optimizers'."""
        return parameters.get_parameters(self.algorithm)

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto") -> None:
        """Load the tensors of get_parameters(), or of a file of save(). exact_match: False allows a part of them.

        Raises what parameters.set_parameters() raises.
        """
        if isinstance(load_path_or_dict, Mapping):
            parameters.set_parameters(self.algorithm, load_path_or_dict, exact_match)
        else:
            saved = zip_files.read(load_path_or_dict)
            parameters.set_parameters(self.algorithm, {"policy": saved.policy_for(self.policy)}, exact_match=False)

    def save(
        self,
        path: zip_files.File,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        format: Literal["headrace", "sb3"] = "headrace",
    ) -> None:
        """Write arguments, spaces, networks and optimizers to PATH.zip, or to an open file. Nothing is pickled, except
        with format="sb3", which writes a file that Stable-Baselines3 loads. The replay buffer has a file of its own.

        exclude: names of arguments that are not written, except those in include. Arguments that are functions or
        classes are written by name or left out: give them to load() again.
        """
        left_out = set(exclude or ()) - set(include or ())
        file = zip_files.with_suffix(path)
        if format == "sb3":
            return zip_files.write_foreign(file, self, left_out)
        zip_files.write(file, self, without_replay(self.algorithm), left_out, format)

    @classmethod
    def load(
        cls,
        path: zip_files.File,
        env: Any = None,
        device: Any = "auto",
        custom_objects: Json | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Load a model from a path or an open file of save(), also of Stable-Baselines3, whose pickled parts are not
        read.

        env: needed to continue learning, but not for predict(). custom_objects, kwargs: arguments of the constructor
        that replace the saved ones. print_system_info: whether to print the versions in use. Raises FileNotFoundError,
        and ValueError for a file of another algorithm or one that cannot be read.
        """
        if print_system_info:
            print(f"Headrace {version('headrace')}, torch {torch.__version__}, Python {platform.python_version()}")
        saved = zip_files.read(path).of(cls.algorithm_name, path)
        known = signature(cls.__init__).parameters.keys() - {"self", "policy", "env"}
        given = {name: value for name, value in (custom_objects or {}).items() if name in known} | kwargs
        model = cls(saved.policy, None, **saved.arguments_with(given, known) | {"device": device})
        spaces = saved.spaces() if env is None or saved.state is not None else spaces_of(env)
        model.translation = model._translate(spaces, 1)
        where = resolve("cpu" if str(device) == "auto" else str(model.arguments["device"]))
        model._take(extracted(model, saved.make, model.translation.config, spaces, model.seed, where), saved.n_envs)
        model.num_timesteps = saved.num_timesteps
        if env is not None:
            model.set_env(env, force_reset)
        return model

    def close(self) -> None:
        """Free the training's resources, such as worker processes."""
        if self._trainer is not None:
            self._trainer.close()
        if self._given.made:
            self._vec_env.close()
