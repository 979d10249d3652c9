"""The loop of learn(): rollouts and updates, with callbacks, schedules, statistics of episodes, logs and a limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.algorithms.on_policy import OnPolicy
from headrace.core.stopping import Stopped
from headrace.data.rollout import Rollout, each_column
from headrace.runs.sb3_scalars import sb3_scalars
from headrace.sb3.callback_calls import COST, Callbacks
from headrace.sb3.steps import SteppedEnv, Steps, successes
from headrace.sb3.translation import ON_POLICY
from headrace.training.episodes import Episodes
from headrace.training.limits import Limits
from headrace.training.trainer import Trainer

TRAIN = (  # metrics that are recorded, under Stable-Baselines3's names
    {"entropy_loss", "policy_gradient_loss", "value_loss", "approx_kl", "clip_fraction", "loss", "n_updates"}
    | {"explained_variance", "learning_rate", "actor_loss", "critic_loss", "ent_coef", "ent_coef_loss", "policy_loss"}
)


class LearnLimits(Limits):
    """Ends a training after `more` further steps. num_timesteps: the model's count of steps so far. It begins again
    with each learn(), unless reset_num_timesteps is False; the trainer's own count never does.

    With algorithms that learn from rollouts, the end and the schedules go by rows, resets included: Stable-Baselines3
    has no rows that only reset, and `k` rollouts there are `k` here. Others take all steps. Raises TypeError for text.
    """

    def __init__(self, trainer: Trainer, num_timesteps: int, more: float) -> None:
        super().__init__(trainer.config)
        if isinstance(more, str):
            raise TypeError(f"total_timesteps must be a number of steps, got the text {more!r}")
        self._trainer, self._taken, self._before = trainer, trainer.collector.steps, num_timesteps
        self.by_rows = isinstance(trainer.algorithm, OnPolicy)
        self._difference = trainer.steps - num_timesteps
        self.total = num_timesteps + int(more)

    def counted(self, steps: int) -> int:
        """The model's count of steps for a count of the trainer's."""
        return steps - self._difference

    def remaining(self) -> float:
        """The fraction of the training that remains, for schedules: 1 .. 0, and below after the last rollout."""
        rows = self._trainer.collector.steps - self._taken
        done = self._before + rows * self._trainer.env.num_envs if self.by_rows else self.counted(self._trainer.steps)
        return 1.0 - done / max(self.total, 1)

    def progress(self, steps: int, episodes: int, seconds: float) -> float:
        """Fraction of the training done, 0 .. 1."""
        return min(1.0 - self.remaining(), 1.0)

    def reached(self, steps: int, episodes: Episodes, seconds: float) -> str:
        """The name of the limit if it is reached."""
        return "total_steps" if self.remaining() <= 0 or self.total <= 0 else ""


class Learning:
    """Runs learn(). Callbacks are called in Stable-Baselines3's order: after steps of the environments, and at the end
    of a rollout before the update.

    model: a headrace.sb3.model.Model. log_interval: as of learn().
    """

    def __init__(
        self, model: Any, trainer: Trainer, limits: LearnLimits, callbacks: Callbacks, log_interval: int
    ) -> None:
        self.model, self.trainer, self.limits = model, trainer, limits
        self.callbacks, self.log_interval = callbacks, log_interval
        self._collector = stepping(trainer)
        self._ended = Episodes(1)
        self._iterations = self._episodes = self._logged = 0
        self._seen = False  # whether callbacks were called for the present rollout
        self._before = 0  # steps before it

    def run(self, progress_bar: bool) -> None:
        """Train until the limit is reached, or a callback ends it. progress_bar: a line on standard error."""
        collector: Any = self.trainer.collector
        if self.callbacks.each_step:
            self._call_each_step()
        if self.callbacks.all:
            collector.collect = partial(self._collect, collector.collect)
        try:
            while not self.trainer.reason_to_stop() and self._iterate():
                if progress_bar:
                    steps = f"\r{self.model.num_timesteps:,} of {self.limits.total:,} steps"
                    print(steps, end="", file=sys.stderr)
        finally:
            vars(collector).pop("collect", None)
            if isinstance(self._collector.env, SteppedEnv):
                self._collector.env = self._collector.env.env
        if progress_bar:
            print(file=sys.stderr)

    def _iterate(self) -> bool:
        """Collect a rollout and update. Returns whether to go on."""
        model, trainer = self.model, self.trainer
        model._apply_schedules(self.limits.remaining())
        model._follow_objects()
        self.callbacks.rollout_start()
        self._seen, self._before = False, model.num_timesteps
        try:
            result = trainer.iterate()
            if not self.callbacks.all:
                self._add(result.returns, result.lengths)
            elif not self._seen:  # a CUDA graph has collected and learned
                self._see(trainer.collector.rollout)
        except Stopped:
            return False
        model.num_timesteps = self.limits.counted(trainer.steps)
        model._current_progress_remaining = self.limits.remaining()
        model.ep_success_buffer.extend(successes(trainer.env))
        self._iterations += 1
        count = self._iterations if model.algorithm_name in ON_POLICY else self._episodes
        if count >= self._logged + self.log_interval:
            self._logged = count
            model.dump_logs(count)
        # after the table of this rollout, as there: callbacks and the next table see the last update's values
        named = {f"train/{name}": float(result.metrics[name]) for name in TRAIN & result.metrics.keys()}
        for name, value in (sb3_scalars(trainer.algorithm) | named).items():
            model.logger.record(name, int(value) if name == "train/n_updates" else value)
        return True

    def _collect(self, collect: Callable[[], Rollout]) -> Rollout:
        """Collect a rollout, and call the callbacks for it. Raises Stopped if one of them ends the training."""
        rollout = collect()
        self._see(rollout)
        return rollout

    def _see(self, rollout: Rollout) -> None:
        model, self._seen = self.model, True
        if not self.callbacks.each_step:  # otherwise they were added after their steps
            self._add(*self._ended.add(rollout))
        model.ep_success_buffer.extend(successes(self.trainer.env))
        counts, steps = [], self._before
        for stepped in rollout.valid[: rollout.num_steps].sum(1).tolist():
            steps += stepped
            if stepped or self.limits.by_rows:  # a row that only resets is a call, so that all n_steps are
                counts.append(steps)
        if not self.callbacks.rollout_end(counts):
            raise Stopped

    def _add(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Add finished episodes."""
        model = self.model
        self._episodes += len(returns)
        model.episodes += len(returns)
        for value, length in zip(returns, lengths, strict=True):
            model.ep_info_buffer.append({"r": value, "l": length, "t": (time.time_ns() - model.start_time) / 1e9})

    def _call_each_step(self) -> None:
        """Arrange for callbacks to be called after each step of the environments, and report the cost."""
        model, trainer, callbacks = self.model, self.trainer, self.callbacks
        print(COST.format(names=callbacks.names, num_envs=model.n_envs, s="s"[: model.n_envs - 1]), file=sys.stderr)
        env = self._collector.env
        steps = Steps(env, begins=env.backend == "inline" or not trainer.steps)

        def after(rollout: Rollout, t: int) -> bool:
            found = steps.locals_of(rollout, t)
            stepped = int(rollout.valid[t].sum())
            model.num_timesteps += stepped
            ended = [info["episode"] for info in found["infos"] if "episode" in info]
            self._add([float(each["r"]) for each in ended], [int(each["l"]) for each in ended])
            model._follow_objects()
            goes_on = not stepped or callbacks.step({"self": model, "env": model.get_env(), **found})
            if not goes_on:
                self._end_at(rollout, t + 1)
            return goes_on

        trainer._graph = None  # a captured iteration cannot call Python after each step
        self._collector.env = SteppedEnv(env, after)

    def _end_at(self, rollout: Rollout, row: int) -> None:
        """Give up this rollout at a row, from which the next rollout begins."""
        for column, values in each_column(rollout.columns, rollout):
            if column.bootstrap:
                values[-1].copy_(values[row])
        self._collector.steps += row


def stepping(trainer: Trainer) -> Any:
    """The collector that steps the environments, which may be inside the one that copies to the learner's device."""
    return getattr(trainer.collector, "inside", trainer.collector)
