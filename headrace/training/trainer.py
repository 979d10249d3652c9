"""A training that is stepped one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from headrace.algorithms.base import Algorithm, counted_steps, past_warm_up
from headrace.algorithms.reduce import all_agree
from headrace.bindings.compiled.loss_tries import RunTries
from headrace.core.cores import spinning
from headrace.core.device import numbers
from headrace.core.precision import torch_settings
from headrace.core.processes.state import ProcessState, held
from headrace.core.stopping import Stopped
from headrace.core.terminal import tell
from headrace.core.trust import code_of, run_of
from headrace.core.types import EnvArgument, Json, StateDict, staying
from headrace.data import finite
from headrace.data.rollout import Rollout
from headrace.envs.gym.change_params import loaded_params, saved_params
from headrace.envs.sources import short_name
from headrace.envs.wrappers.conditioning import GIVEN, InformedEnv
from headrace.evaluation.wrapper_statistics import WrapperStatistics
from headrace.parallel.actor_env import ActorEnv
from headrace.parallel.actors import Actors
from headrace.policies.base import Policy
from headrace.training.actor_speed import ActorSpeed
from headrace.training.build import build
from headrace.training.episodes import episodes_of
from headrace.training.iteration import IterationResult
from headrace.training.limits import Limits
from headrace.training.multi_agent import GroupEpisodes
from headrace.training.plan import TrainPlan, nameless_settings, saved_settings
from headrace.training.ranks import COMPARED_EVERY, Collected, Leader, Ranks, iteration
from headrace.training.shards import room_of
from headrace.training.torchrun import torchrun_ranks
from headrace.training.warm_up import prepare, warm_up_collector
from headrace.tuning.auto import settled


class Trainer:
    """A training that the caller steps: `trainer.iterate()` collects one rollout and learns from it. Writes no files.

    algorithm: "ppo", `file.py:Class`, or an Algorithm made by you. env: what make() takes, or environments made by you:
    an Env, a gymnasium.vector.VectorEnv, a simulator. config: a TOML file. zoo: a YAML file of rl_zoo3, whose entry for
    env is used. options: fields of TrainConfig or of the algorithm's config; workers may be Workers, which stay open.
    agent_info: a conditioning input for each agent, see envs.wrappers.conditioning. Raises TypeError, ValueError for
    wrong settings.
    """

    __setattr__ = staying("policy", "algorithm", "collector", "plan")

    def __init__(
        self,
        algorithm: str | Algorithm | None = None,
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        agent_info: Any = None,
        **options: Any,
    ) -> None:
        with held(), code_of(run_of(config)):
            self._build(settled(algorithm, env, config, agent_info, options, Trainer.of))

    @classmethod
    def of(cls, plan: TrainPlan, ranks: Ranks | None = None) -> Trainer:
        """Make the trainer of a plan. ranks: with several learners, the Ranks of one of them; the plan is rank 0's."""
        trainer = cls.__new__(cls)
        trainer._build(plan, ranks)
        return trainer

    def _build(self, plan: TrainPlan, ranks: Ranks | None = None) -> None:
        self.process_state = ProcessState.now()  # other processes take part in the training with it
        with ExitStack() as stack:
            if ranks is None and plan.config.learners > 1:
                ranks = torchrun_ranks(plan.config) or Leader(plan.config, partial(Trainer.of, plan))
                stack.callback(ranks.close)
            self._ranks: Any = ranks  # Ranks of several learners; None for one
            self._leads = ranks is not None and ranks.rank == 0
            parts = build(plan, stack, ranks)
            self.plan = parts.plan
            self.config, self.placement, self.timer = parts.config, parts.placement, parts.timer
            self.env, self.algorithm, self.collector = parts.env, parts.algorithm, parts.collector
            if ranks is not None:
                self.env.fixed_params = f"learners={self.config.learners} have theirs in a process each"
            self._stagger, self._graph, self._learner = parts.stagger, parts.graph, parts.learner
            self._tries = RunTries()  # of compiled losses
            self.limits, self.episodes = Limits(self.config), episodes_of(self.config, self.env)
            self._group_episodes = GroupEpisodes(self.env, self.config.window)
            self.steps, self.seconds = 0, 0.0  # valid steps so far, and s spent in iterate()
            self._steps_before, self._seconds_before = 0, 0.0  # of the resumed run
            self._iteration_began, self._collected, self._learned = 0.0, 0.0, 0  # the last: updates that learned
            self._speed = ActorSpeed(self.collector, ranks)
            self._before: StateDict | None = None  # the collector's state before the present iteration
            self._workers_before = {"restarts": 0, "dropped_steps": 0}
            self._all: Collected | None = None  # what all ranks collected in the last iteration
            with self._torch_settings():
                replay = prepare(parts)
                warm_up_collector(self.collector, self.policy)
                self.resources = "\n".join(filter(None, (self.env.plan(), replay)))  # to print before the start
                if ranks is not None and (self._leads or self.follows):
                    ranks.join(room_of(self.algorithm))
                    self.begin()
            self.timer.seconds.clear()
            threads = self.config.threads or torch.get_num_threads()
            if self.placement.learn.type == "cpu" and (line := spinning(threads)):
                tell(line)
            self._learned_by_wrappers = WrapperStatistics(self.env, self.config.collection == "sync" and ranks is None)
            self._stack = stack.pop_all()

    def begin(self) -> None:
        """Begin as one of several learners. Does nothing for a single one."""
        self._ranks.begin_with(self.algorithm)
        if not all_agree(self._graph is not None, self._ranks.sum):
            self._graph = None
        if isinstance(self.env, ActorEnv):
            self.resources = self._ranks.plan(len(self.env.parts), self.resources)

    @property
    def policy(self) -> Policy:
        """The policy that is learning."""
        return self.algorithm.policy

    def iterate(self, stop: Callable[[], bool] | None = None) -> IterationResult:
        """Collect one rollout and learn from it.

        stop: called before each step of environments that are not compiled. If it returns True the rollout is given up:
        iterate() raises Stopped, and state_dict() is the state before the rollout. Save and close the trainer then.
        Raises NotFinite.
        """
        progress = self.progress()
        with iteration(self._ranks, progress, stop is not None, self._speed.wanted) if self._leads else nullcontext():
            metrics, ended = self._whole_iteration(progress, stop, stop is not None)
        self._learned_by_wrappers.follow(self.policy)
        notes = self._forecast() + self.episodes.note(self.env, self.collector.steps, progress)
        return self.result(metrics, *ended, notes=notes)

    def follow(self, progress: float, may_stop: bool, speed: bool) -> None:
        """Take part as another rank than 0. may_stop, speed: whether rank 0 may stop, and wants the actors' speed."""
        self._speed.wanted = speed
        with suppress(Stopped):
            self._whole_iteration(progress, None, may_stop)

    def _whole_iteration(
        self, progress: float, stop: Callable[[], bool] | None, may_stop: bool
    ) -> tuple[dict[str, float], tuple[list[float], list[int]]]:
        """Run an iteration. If it is stopped, the state before it stays available."""
        self._iteration_began = perf_counter()
        if self._ranks is not None:
            # actors may have begun the next rollout already, and a graph cannot be stopped within an iteration
            may_stop = may_stop and not self.collector.atomic and self._graph is None
            stop = self._ranks.stop_asking(stop, may_stop)
        if stop is not None and self.env.backend not in ("cpu", "cuda"):
            self._before = deepcopy(self.collector.state_dict()) if may_stop and not self.collector.atomic else None
            self.collector.stop = stop
        try:
            with self._torch_settings():
                metrics, ended = self._iterate(progress)
        except Stopped:
            self._before = self._before or self.collector.state_dict()
            raise
        finally:
            self.seconds += perf_counter() - self._iteration_began
            self.collector.stop = None
        self._before = None
        return metrics, ended

    def _forecast(self) -> tuple[str, ...]:
        """Report the actors' speed, once, after some updates during which they have collected the next rollouts."""
        if not self._speed.wanted or self._learned < 2:
            return ()
        now = perf_counter()
        return self._speed.forecast(now - self._collected, now - self._iteration_began, self.seconds)

    def _iterate(self, progress: float) -> tuple[dict[str, float], tuple[list[float], list[int]]]:
        self._stagger.before(taken := self.collector.steps)
        learned = self._graph.iterate(progress) if self._graph else None
        rollout = self._collect() if learned is None else self._captured()
        self._collected = perf_counter()
        self._learned += past_warm_up(self.algorithm)
        finite.check_rollout(rollout, taken, self.steps)
        ended = self._count(rollout)
        with self.timer("learning"):
            update = self._learner.update(rollout, progress) if learned is None else learned
            if self._ranks is not None:
                self._ranks.wait()
        self.collector.publish()
        with self.timer("learning"):
            metrics = numbers(update, self.placement.learn)
        finite.check_metrics(metrics, self.steps, rollout)
        if self._ranks is not None and self.algorithm.iteration % COMPARED_EVERY == 0:
            self._ranks.compare(self.algorithm)
        return metrics, ended

    def _captured(self) -> Rollout:
        """The rollout of an iteration that a graph has replayed."""
        self._stagger.after()
        if self._ranks is not None:
            self._ranks.wait()
            self._share(stopped=False)
        return self.collector.rollout

    def _share(self, stopped: bool) -> None:
        """Gather what all learners have collected. Raises Stopped if one gave up its rollout."""
        self._all = self._ranks.collected(stopped, self.collector.rollout, self.env.restarts, self._of_actors())
        if self._all.stopped:
            raise Stopped

    def _collect(self) -> Rollout:
        """Collect the next rollout. Raises Stopped if this or another rank gives it up."""
        stopped, rollout = False, self.collector.rollout
        try:
            rollout = self.collector.collect()
        except Stopped:
            stopped = True
            if self._ranks is None:
                raise
        self._stagger.after()
        if self._ranks is not None:
            self._share(stopped)
            self._speed.gather()
        return rollout

    def _count(self, rollout: Rollout) -> tuple[list[float], list[int]]:
        """Count a rollout's steps and episodes. Returns the returns and lengths of episodes that ended."""
        if self._all is not None:
            self.steps += self._all.steps
            return self.episodes.extend(self._all.ended[:, 2].tolist(), self._all.ended[:, 3].long().tolist())
        self._group_episodes.add(rollout)
        self.steps += counted_steps(self.algorithm, rollout)
        return self.episodes.add(rollout)

    def _torch_settings(self) -> AbstractContextManager[None]:
        """Use the config's threads and precision, and the run's record of compiled losses, within this block."""
        others = self.env.computing if isinstance(self.env, ActorEnv) else tuple
        precision, device = self.config.precision, self.placement.learn
        return self._tries.active(torch_settings(self.config.threads, others, precision, device))

    def progress(self) -> float:
        """Fraction of the training done, 0 .. 1."""
        return self.limits.progress(self.steps, self.episodes.count, self.seconds)

    def reason_to_stop(self) -> str:
        """The name of a limit that is reached; empty while there is none."""
        return self.limits.reached(self.steps, self.episodes, self.seconds)

    def out_of_time(self) -> bool:
        """Tell whether max_seconds has passed, counting the iteration that is running."""
        limit = self.config.max_seconds
        return limit is not None and self.seconds + perf_counter() - self._iteration_began >= limit

    @property
    def follows(self) -> bool:
        """True if torchrun started this process as a rank other than 0, which carries out rank 0's orders."""
        return self._ranks is not None and self._ranks.of_torchrun and not self._leads

    def follow_orders(self) -> None:
        """Carry out rank 0's orders until it ends the training."""
        self._ranks.follow(self)

    @property
    def caught(self) -> str:
        """The name of a signal that another learner's process has received; empty if none has."""
        return str(self._ranks.caught) if self._leads else ""

    @property
    def gave_up(self) -> bool:
        """True if the last iterate() gave up its rollout."""
        return self._before is not None

    def result(
        self,
        metrics: Mapping[str, float] | None = None,
        returns: Sequence[float] = (),
        lengths: Sequence[int] = (),
        notes: tuple[str, ...] = (),
    ) -> IterationResult:
        """The state of the training now. metrics, returns, lengths, notes: of the last iteration."""
        seconds = max(self.seconds - self._seconds_before, 1e-9)
        fractions = {part: spent / seconds for part, spent in self.timer.seconds.items()}
        elsewhere = {part: spent / seconds for part, spent in self.timer.elsewhere.items()}
        progress = self.progress()
        return IterationResult(
            steps=self.steps,
            iteration=self.algorithm.iteration,
            metrics=metrics or {},
            returns=returns,
            lengths=lengths,
            infos=self.episodes.last_infos if returns else {},
            episodes=self.episodes.count,
            window=len(self.episodes.returns),
            window_full=self.episodes.full,
            mean_return=self.episodes.mean_return(),
            mean_length=self.episodes.mean_length(),
            details=self._group_episodes.row() | self.episodes.mean_infos() | self._details(),
            seconds=self.seconds,
            steps_per_second=(self.steps - self._steps_before) / seconds,
            seconds_left=self.seconds * (1 - progress) / progress if progress else None,
            fractions=fractions | {"other": max(0.0, 1.0 - sum(fractions.values()))} | elsewhere,
            notes=notes,
            fragments=self.collector.made_of,
        )

    def _details(self) -> dict[str, float]:
        """Restarts and dropped steps if they can occur, the last rollout's lag, metrics of actors and collector."""
        counts, lag = self._workers(), self.collector.rollout.lag
        shown = {"restarts": counts["restarts"] > 0, "dropped_steps": self.config.drop_slowest > 0}
        lags = {} if lag is None else {"lag": lag.mean().item(), "lag_max": lag.max().item()}
        of_actors = self._of_actors() if self._all is None else self._all.details
        return {n: count for n, count in counts.items() if shown[n]} | lags | of_actors | self.collector.metrics()

    def _of_actors(self) -> dict[str, float]:
        """Metrics of this rank's actors to log."""
        return self.collector.details() if isinstance(self.collector, Actors) else {}

    def _workers(self) -> dict[str, int]:
        """Number of environments made again after a failure, and of dropped steps, since the run began."""
        restarts = self.env.restarts if self._all is None else self._all.restarts
        before, dropped = self._workers_before, self.collector.dropped_steps
        return {"restarts": before["restarts"] + restarts, "dropped_steps": before["dropped_steps"] + dropped}

    def state_dict(self) -> StateDict:
        """State for load_state_dict(), which continues bit for bit on the CPU if the environment can be saved."""
        collector, algorithm = self.own_state()
        others = self._ranks.states() if self._leads else []
        learner = {
            "algorithm": self.algorithm.state_dict() if algorithm is None else algorithm,
            "episodes": self.episodes.state_dict(),
            "group_episodes": self._group_episodes.state_dict(),
            "steps": self.steps,
            "seconds": self.seconds,
        }
        if others and algorithm is not None:
            learner["ranks"] = [state for _, state in others]
        changed = saved_params(self.env.changed_params)
        return {
            **({"params": changed} if changed else {}),
            "learner": learner,
            "collectors": [collector, *(state for state, _ in others)],
            "workers": self._workers(),
            "compiled": self._tries.state_dict(),
            **self._learned_by_wrappers.state_dict(),
        }

    def own_state(self) -> tuple[StateDict, StateDict | None]:
        """State of this rank's collector, and of its algorithm if that has a replay buffer, else None."""
        collector = self.collector.state_dict() if self._before is None else self._before
        return collector, self.algorithm.state_dict() if hasattr(self.algorithm, "replay") else None

    def load_own_state(self, collector: StateDict, algorithm: Any, tries: StateDict) -> None:
        """Continue from this rank's own state. tries: the record of compiled losses, which all ranks share."""
        self._tries.load_state_dict(tries)
        self.algorithm.load_state_dict(algorithm)
        self.collector.load_state_dict(collector)

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict()."""
        learner, (collector, *others) = state["learner"], state["collectors"]
        if changed := state.get("params"):
            self.env.set_params(**loaded_params(changed))
        self._learned_by_wrappers.load_state_dict(state, self.policy)
        algorithm, tries = learner["algorithm"], state.get("compiled", {})
        algorithms = learner.get("ranks", [algorithm] * len(others))
        if self._leads:
            self._ranks.load([(*each, tries) for each in zip(others, algorithms, strict=True)])
        self.load_own_state(collector, algorithm, tries)
        self.episodes.load_state_dict(learner["episodes"])
        self._group_episodes.load_state_dict(learner["group_episodes"])
        self.steps = self._steps_before = learner["steps"]
        self.seconds = self._seconds_before = learner["seconds"]
        self._workers_before = dict(state["workers"])

    @property
    def short_name(self) -> str:
        """The environment's name without its file or module."""
        return short_name(self.env.name, self.plan.source)

    def settings(self) -> Json:
        """Settings from which train(resume=...) makes this trainer again, in JSON's types."""
        agent_info = GIVEN if isinstance(self.env, InformedEnv) else None
        return saved_settings(self.plan, self.config, self.algorithm.config, agent_info)

    def needed_to_resume(self) -> tuple[str, ...]:
        """Names of arguments that settings() cannot hold, and that train(resume=...) needs."""
        settings = self.settings()
        own = {"algorithm": not isinstance(self.plan.algorithm, str), "env": settings["env"] is None}
        own |= {"agent_info": "agent_info" in settings}
        return (*(name for name, given in own.items() if given), *nameless_settings(settings))

    def close(self) -> None:
        """Free the collector and environments that this trainer has made. Objects that were passed in stay open."""
        self._stack.close()
