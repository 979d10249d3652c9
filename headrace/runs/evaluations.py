"""Evaluations of a run, in the training's process, while training waits, or in a process of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import torch

from headrace.core.looking import users_code
from headrace.core.processes.state import held
from headrace.core.stopping import Stopped
from headrace.core.types import Json, Settings, StateDict
from headrace.envs.base import Env
from headrace.evaluation.evaluator import Evaluator
from headrace.evaluation.playing import Evaluation, played
from headrace.evaluation.recipe import can_be_made, is_port, recipe_of
from headrace.policies.base import Policy
from headrace.runs.progress import Progress
from headrace.runs.signals import Interrupts
from headrace.training.config import TrainConfig
from headrace.training.trainer import Trainer

if TYPE_CHECKING:
    from headrace.evaluation.parallel import EvaluationProcess

MOST_QUEUED = 4  # evaluations, each with a copy of the weights; training waits if there are more
LOOK = 0.1  # s between two checks for a signal while waiting


class Queued(NamedTuple):
    """An evaluation that has no result yet."""

    counters: Json  # counters in the row of metrics at that step
    weights: StateDict  # as they were at that step, on the CPU
    statistics: Sequence[Json] = ()  # likewise, of wrappers of the environments: see envs.gym.learned


class Evaluations:
    """Evaluates a trainer's policy, in the order of requests, with the weights at the time of each request.

    In this process all evaluations use the same environments, which are made at once if eval_freq is given. If a
    process can have the environments only once, those of the training are used, and their episodes begin again
    afterwards.
    queue: evaluations without a result. With parallel_evaluation these are requested or running, otherwise a signal has
    ended them. Checkpoints contain them, so that a resumed run carries them out.
    Raises TypeError if the environments or the policy cannot be made in another process.
    """

    def __init__(self, trainer: Trainer, progress: Progress, interrupts: Interrupts) -> None:
        self.trainer, self._progress, self._interrupts = trainer, progress, interrupts
        self.queue: deque[Queued] = deque()
        self.env_kwargs = _env_kwargs(trainer.config, trainer.plan.agent_info)
        self._waited = False
        self._policy = trainer.policy  # that is evaluated in this process
        self.shared = trainer.env if trainer.env.single else None  # environments of the training
        device = trainer.placement.evaluate if self.shared is None else trainer.env.device
        if device != trainer.placement.learn and not trainer.config.parallel_evaluation:
            self._policy = deepcopy(trainer.policy).to(device)
        self._process: EvaluationProcess | None = None
        self._evaluators: dict[bool, Evaluator] = {}  # key: whether ports are evaluated in their reference environment
        config, env = trainer.config, trainer.plan.env
        if self.shared is None and can_be_made(env):
            self._evaluators[True] = Evaluator(env, **self.env_kwargs)  # raises errors of wrong settings now
        if config.parallel_evaluation:
            from headrace.evaluation.parallel import EvaluationProcess

            settings = (config.eval_episodes, config.seed, self.env_kwargs)
            with held(trainer.process_state):
                self._process = EvaluationProcess(trainer.policy, env, device, *settings)
        elif config.eval_freq and self.shared is None:
            self._evaluator(True).prepare(self._policy, config.eval_episodes)

    def _evaluator(self, reference: bool) -> Evaluator:
        """The Evaluator in this process. Raises TypeError if the environments cannot be made again."""
        env = self.trainer.plan.env
        reference = reference or not is_port(recipe_of(env).source)  # which is the same for all others
        if reference not in self._evaluators:
            given = self.env_kwargs if reference else {**self.env_kwargs, "eval_envs": None}
            self._evaluators[reference] = Evaluator(env, reference=reference, **given)
        return self._evaluators[reference]

    def add(self, counters: Json) -> None:
        """Request an evaluation of the present policy."""
        self.queue.append(self.queued(counters))

    def queued(self, counters: Json) -> Queued:
        """Copy the present policy for an evaluation."""
        policy = self.trainer.policy
        return Queued(counters, copied(policy, "cpu"), statistics_with(policy))

    def results(self, left: int = MOST_QUEUED) -> Iterator[tuple[Queued, Evaluation]]:
        """Yield finished evaluations. Waits until at most `left` are queued; without a process, carries out all of
        them.

        After a signal it neither waits nor starts another one. Raises what evaluate() raises.
        """
        while self.queue:
            result = self._here() if self._process is None else self._elsewhere(len(self.queue) > left)
            if result is None:
                return
            yield self.queue.popleft(), result

    def _here(self) -> Evaluation | None:
        """Carry out the first evaluation of the queue here; None if a signal ends it."""
        if self._interrupts.caught:
            return None
        try:
            return self.now(self.queue[0], self.trainer.config.eval_episodes)
        except Stopped:
            return None

    def _elsewhere(self, wait: bool) -> Evaluation | None:
        """The process's result of the first evaluation of the queue. None if it is not finished and `wait` is false, or
        if a signal comes first."""
        assert self._process is not None
        if self._process.idle:
            if self._interrupts.caught:
                return None
            self._process.start(self.queue[0].weights, self.queue[0].statistics)
        result = self._process.get(0.0)
        if result is None and wait and not self._waited:
            self._waited = True
            self._progress.say(f"waiting for evaluations: {len(self.queue)} are queued")
        while result is None and wait and not self._interrupts.caught:
            result = self._process.get(LOOK)
        return result

    @users_code()
    def now(self, queued: Queued, episodes: int, reference: bool = True, stops: bool = True) -> Evaluation:
        """Evaluate these weights in this process. Raises Stopped on a signal, unless `stops` is false, and what
        evaluate() raises."""

        def watch(ended: int, steps: int) -> bool:
            self._progress.evaluating(ended, episodes, steps)
            return stops and bool(self._interrupts.caught)

        policy, seed = self._policy, self.trainer.config.seed
        before, learned = copied(policy), statistics_with(policy)
        policy.load_state_dict(queued.weights)
        policy.wrapper_statistics = queued.statistics
        try:
            if self.shared is None:
                return self._evaluator(reference).evaluate(policy, episodes, seed, watch=watch)
            return played(policy, self.shared, episodes, seed, watch=watch, log_info=self.trainer.config.log_info)
        finally:
            if self.shared is not None:
                self._begin_again(self.shared)
            policy.load_state_dict(before)
            policy.wrapper_statistics = learned

    def _begin_again(self, env: Env) -> None:
        """Begin new episodes in environments of the training, with a seed not used before. The next row is masked."""
        env.reset(env.rollout(1, env.columns()), (self.trainer.config.seed + self.trainer.steps) % 2**31)
        env.load_state_dict({})

    def state_dict(self) -> list[Json]:
        """The queue."""
        return [queued._asdict() for queued in self.queue]

    def load_state_dict(self, state: Sequence[Json]) -> None:
        """Continue with the queue of state_dict()."""
        self.queue = deque(Queued(**queued) for queued in state)

    def close(self) -> None:
        """Close the environments, and end the process, even during an evaluation."""
        for evaluator in self._evaluators.values():
            evaluator.close()
        if self._process is not None:
            self._process.close()


def statistics_with(policy: Policy) -> Sequence[Json]:
    """Statistics that wrappers of the environments have learned along with the present policy."""
    return getattr(policy, "wrapper_statistics", ())


def copied(policy: Policy, device: torch.device | str | None = None) -> StateDict:
    """Copy a policy's weights to a device; None for the device that they are on."""
    state = policy.state_dict().items()
    return {name: tensor.detach().to(device or tensor.device, copy=True) for name, tensor in state}


def cancelling(result: Evaluation) -> bool:
    """Tell whether the returns of several agents cancel, as in a game that one of them wins."""
    means = [sum(returns) / len(returns) for returns in result.by_agent.values()]
    return len(means) > 1 and abs(sum(means)) <= 0.1 * sum(map(abs, means))


def _env_kwargs(config: TrainConfig, agent_info: object) -> Settings:
    """The settings of environments that hold for evaluations, too."""
    informed = {} if agent_info is None else {"agent_info": agent_info}
    return {
        **config.eval_env_kwargs(),
        "on_error": config.on_error,
        "step_timeout": config.step_timeout,
        "eval_envs": config.eval_envs,
        "training_envs": config.num_envs,
        "log_info": config.log_info,
        **informed,
    }
