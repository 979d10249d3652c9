"""Evaluations in a separate process, while training continues."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec

from headrace import envs
from headrace.core.stopping import Stopped
from headrace.core.types import Json, StateDict
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.registry import Source, Spec, names
from headrace.envs.workers.env import sendable
from headrace.envs.workers.process import Workers
from headrace.envs.workers.protocol import Task
from headrace.envs.workers.transport import Transport
from headrace.evaluation.evaluator import Evaluator
from headrace.evaluation.playing import Evaluation
from headrace.evaluation.recipe import Recipe, kernel_class, recipe_of
from headrace.kernels.language.read import resolve_annotations
from headrace.parallel.weights import received, sent
from headrace.policies.base import Policy

EVALUATE = 0  # the only order; a number and weights follow
GRACE = 1.0  # s that the process has to give up an evaluation whose result is no longer needed


class Evaluated(NamedTuple):
    """The environment and settings of evaluations, for a process that does not know this process's registered names."""

    recipe: Recipe
    registered: Spec | None  # if the source is a registered name
    gymnasium_spec: EnvSpec | None  # if it is an id of Gymnasium
    device: torch.device
    arguments: Mapping[str, Any]  # the other arguments of Evaluator
    episodes: int
    seed: int


class Evaluating:
    """A Role (envs.workers.protocol): evaluates a policy with the weights in each order, always in the same
    environments. The answer is the Evaluation.

    policy: a Policy, saved by torch; evaluated: an Evaluated, pickled by cloudpickle.
    """

    facts = None

    def __init__(self, policy: bytes, evaluated: bytes, orders: Connection) -> None:
        what: Evaluated = pickle.loads(evaluated)
        if what.registered is not None:
            known = what.registered
            envs.register(known.name, known.entry, known.defaults, known.listed)
        if what.gymnasium_spec is not None:
            gymnasium.registry[what.gymnasium_spec.id] = what.gymnasium_spec
        self.policy, self.orders = received(policy, what.device), orders
        self.evaluator = Evaluator(what.recipe, **what.arguments)
        self.episodes, self.seed = what.episodes, what.seed
        self.evaluator.prepare(self.policy, self.episodes)

    def carry_out(self, what: int, where: int) -> Evaluation | None:
        """Evaluate the weights that follow the order. None if the process has to end before the evaluation is done."""
        weights, self.policy.wrapper_statistics = torch.load(io.BytesIO(self.orders.recv()))
        self.policy.load_state_dict(weights)
        try:
            watch = lambda ended, steps: self.orders.poll()  # noqa: E731
            return self.evaluator.evaluate(self.policy, self.episodes, self.seed, watch=watch)
        except Stopped:  # the next order has come, or the parent is gone
            return None

    def close(self) -> None:
        """Close the environments."""
        self.evaluator.close()


class EvaluationProcess:
    """A process that evaluates a policy on a device, with one set of weights after another.

    env, arguments: those of Evaluator; episodes, seed: of each evaluation.
    If the process dies it is started again, and the evaluation is repeated. If it dies three times in a row, an error
    says how it ended. Raises TypeError for a policy or an env that cannot be sent or made again, and what evaluate()
    raises.
    """

    def __init__(
        self,
        policy: Policy,
        env: Env | Source,
        device: torch.device,
        episodes: int,
        seed: int,
        arguments: Mapping[str, Any],
    ) -> None:
        recipe = recipe_of(env)
        known = envs.spec(recipe.source)
        if (kernel := kernel_class(recipe.source)) is not None:
            resolve_annotations(kernel)
        registered = known if known.name in names() else None
        gymnasium_spec = sources.registered(known.entry) if isinstance(known.entry, str) else None
        evaluated = sendable(Evaluated(recipe, registered, gymnasium_spec, device, arguments, episodes, seed))
        task = Task(
            partial(Evaluating, sent(policy, "parallel_evaluation"), evaluated), known.name, 0, 1, kind="evaluator"
        )
        self._workers = Workers(1)
        # an evaluation takes as long as its episodes do
        self._transport = Transport(self._workers.acquire(1), math.inf)
        self._number, self._weights = 0, b""  # of the running evaluation
        try:
            self._transport.assign([task])
        except BaseException:
            self.close()
            raise

    @property
    def idle(self) -> bool:
        """True if no evaluation is running."""
        return not self._transport.orders

    def start(self, weights: StateDict, statistics: Sequence[Json] = ()) -> None:
        """Start the evaluation of a state_dict of the policy. statistics: its wrapper_statistics."""
        buffer = io.BytesIO()
        torch.save((dict(weights), list(statistics)), buffer)
        self._number, self._weights = self._number + 1, buffer.getvalue()
        self._order()

    def get(self, timeout: float) -> Evaluation | None:
        """The result of the evaluation that was started; None if it has not finished after `timeout` seconds."""
        ready, lost = self._transport.get(timeout)
        if lost:
            self._transport.replace(0, progress=self._number)
            self._order()
        return self._transport.answers[0] if ready else None

    def _order(self) -> None:
        self._transport.start(0, EVALUATE, self._number, self._weights)

    def close(self) -> None:
        """End the process, even during an evaluation."""
        for worker in self._transport.workers:
            worker.end(GRACE)
        self._workers.close()
