"""Gradient exchange: actors compute gradients from their own fragments, and the learner sums them and takes the step.

Synchronous: one update takes the gradients of all actors, whose sum is the gradient that one process would compute.
Asynchronous, as in A3C: each gradient is an update of its own, in order of arrival. Mnih et al. 2016, arXiv:1602.01783.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.agent_groups.group_algorithm import Grouped
from headrace.core.packages import of_headrace
from headrace.data.rollout import Column, Columns, Rollout
from headrace.parallel.actor import Part, constructor
from headrace.parallel.actor_env import ActorEnv, Executor
from headrace.parallel.actors import Actors
from headrace.parallel.forecast import GradientForecast
from headrace.parallel.gradient_actor import GradientSlots, LearnerSpec
from headrace.parallel.schedule import Fragment
from headrace.policies.base import Policy
from headrace.policies.normalization import Moments, ReturnNormalizer, normalizers

COUNTED = ("valid", "episode_return", "episode_length")  # columns that are sent, to count steps and episodes
SPARE = 8192  # bytes of a tally besides its moments


class GradientExecutor(Executor, Protocol):
    """An Executor whose orders are answered with gradients.

    gradients: the last answer of each place.
    """

    gradients: dict[int, GradientSlots]

    def add_sums(self, order: Fragment, known: int) -> None:
        """Let the actor of an order go on. known: number of sums over all actors that its slots have."""


class GradientActors(Actors):
    """A Collector whose rollouts have only the columns COUNTED, and which also learns from the actors' gradients.

    algorithm: one that defines gradient(). collection: "sync" or "async". With "async" a rollout is the fragment of one
    actor, and a fragment's lag counts such updates. At most max_policy_lag + 1 actors are then at work: with more, one
    of them would return a gradient that is too old. With several actors Adam then has no momentum.
    Synchronous results are the same bits for the same number of actors. With another number, sums are rounded
    differently. Raises ValueError for groups of agents, TypeError if statistics cannot be merged.
    """

    any_number = False  # the sums of another number of actors are rounded differently
    learning_cores = 0
    executor: GradientExecutor

    def __init__(self, algorithm: Any, env: ActorEnv, *arguments: Any, collection: str, **options: Any) -> None:
        if isinstance(algorithm, Grouped):
            raise ValueError("exchange='gradients' is for agents of one group: leave it out, or give them one policy")
        _check_statistics(algorithm.policy)
        super().__init__(env, *arguments, collection=collection, slots=1, **options)
        self.algorithm = algorithm
        if not self.schedule.in_step and len(env.parts) > 1:
            # late updates act as a momentum already (Mitliagkas et al. 2016, arXiv:1605.09774), and A3C's RMSProp has
            # none
            algorithm.optimizer.beta1 = 0.0
        gradient = algorithm.optimizer.gradient
        moments = sum(normalizer.statistics.mean.nbytes for normalizer in normalizers(self.policy))
        make = constructor(algorithm)
        self._learner = LearnerSpec(make, len(gradient), gradient.dtype, SPARE + 2 * moments, collection == "async")
        self._learned: list[Fragment] = []  # of the last rollout

    @property
    def _slots(self) -> dict[int, GradientSlots]:
        """The last answer of each place."""
        return self.executor.gradients

    def _parts(self) -> list[Part]:
        size = self.env.parts[0].size
        return [Part(0, size, size)] if self.collection == "async" else super()._parts()

    def _exchanged(self) -> dict[str, Column | Columns]:
        columns = super()._exchanged()
        return {name: columns[name] for name in COUNTED}

    @property
    def steps(self) -> int:
        """Steps so far of each environment; when asynchronous, on average."""
        return super().steps * len(self._targets) // len(self.env.parts)

    def order(self, learning: bool = False) -> None:
        if not learning:  # an actor goes on once its gradient is applied
            super().order()

    def _complete(self) -> list[Fragment]:
        taken = super()._complete()
        asked = [int(self._slots[fragment.place].asked[0]) for fragment in taken]
        # a process that replaces a lost one has asked for fewer sums; the others begin again from there
        known = min(filter(None, asked), default=0)
        if known:
            self._share(taken, known)
        return [] if known else taken

    def _share(self, taken: list[Fragment], known: int) -> None:
        """Add the parts of all actors, in the order of their places, and let the actors go on with the sums."""
        parts = [self._slots[fragment.place].parts[:known] for fragment in taken]
        total = reduce(torch.add, parts)
        for fragment in taken:
            self._slots[fragment.place].totals[:known] = total
            self.schedule.ask(fragment)
            self.executor.add_sums(fragment, known)

    def _copy_meanwhile(self) -> None:
        """Do nothing: an actor waits until its gradient is applied."""

    def _gather(self, taken: list[Fragment]) -> None:
        super()._gather(taken)
        self._learned = taken

    def forecast(self, learn: float, update: float, spent: Tensor | None = None) -> GradientForecast:
        return GradientForecast(**vars(super().forecast(learn, update, spent)))

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Algorithm.update() for the rollout that collect() returned last. Sums the gradients in the order of places,
        takes the step, and updates normalisers once, with merged moments."""
        algorithm = self.algorithm
        algorithm.begin_update(progress)
        gradient = algorithm.optimizer.gradient
        for fragment in self._learned:
            gradient.add_(self._slots[fragment.place].gradient(fragment.number).to(gradient.device))
        tallies = [self._slots[fragment.place].tally(fragment.number) for fragment in self._learned]
        sums = {name: sum(tally["metrics"][name] for tally in tallies) for name in tallies[0]["metrics"]}
        metrics = algorithm.apply({name: torch.tensor(value, device=gradient.device) for name, value in sums.items()})
        variance, unexplained = merged(tally["valued"] for tally in tallies).squares
        metrics["explained_variance"] = torch.where(variance > 0, 1 - unexplained / variance, 0.0).to(gradient)
        merge_statistics(self.policy, list(map(merged, zip(*(tally["statistics"] for tally in tallies), strict=True))))
        return algorithm.end_update(metrics)  # type: ignore[no-any-return]


def merged(parts: Iterable[Sequence[Tensor]]) -> Moments:
    """The moments of all rows, from count, mean and squared deviations of parts of them."""
    return reduce(Moments.merge, (Moments(*part) for part in parts))


def merge_statistics(policy: Any, moments: list[Moments]) -> None:
    """Do what Policy.update_statistics() does, from the moments of the rows for each normaliser."""
    for normalizer, found in zip(normalizers(policy), moments, strict=True):
        new = Moments(*(part.to(normalizer.center.device) for part in vars(found).values()))
        if isinstance(normalizer, ReturnNormalizer):
            normalizer.merge(new, policy.critic_out.weight, policy.critic_out.bias)
        else:
            normalizer.merge(new)


def _check_statistics(policy: Policy) -> None:
    """Raise TypeError for statistics of a user's own class, which cannot be merged."""
    for module in policy.modules():
        update = getattr(type(module), "update_statistics", None)
        if update is not None and not of_headrace(update):
            raise TypeError(
                f"exchange='gradients' merges statistics by their moments, which {type(module).__name__}."
                "update_statistics() does not give: leave out exchange"
            )
