"""What carries out the orders of actors, wherever these are: processes of this machine, or of a cluster."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from headrace.data.rollout import Columns, Rollout
from headrace.parallel.actor import CollectorSpec
from headrace.parallel.schedule import Fragment
from headrace.policies.base import Policy


class Job(NamedTuple):
    """What is the same for all orders of a training."""

    policy: Policy  # the learner's; publish() writes it as it is then
    spec: CollectorSpec
    columns: Columns  # of rollouts of all environments
    versions: int  # of weights that are kept
    learner: Any = None  # a gradient_actor.LearnerSpec, where actors send gradients


class Executor(Protocol):
    """Carries out orders, and holds what came of them. An order says which part of the environments (its place)
    collects its fragment of which number with weights of which version.

    A lost process is replaced, and its order carried out again from the state before it: the result is the same.
    Until release() a fragment stays where it is; the states after the last ones of each place are kept.
    """

    def begin(self) -> None:
        """Start what is needed, and wait until all are ready for orders. Raises the exceptions of environments."""

    def order(self, orders: list[Fragment]) -> None:
        """Let these fragments be collected. A place has one order at a time."""

    def wait(self, timeout: float | None) -> list[int]:
        """The places whose orders are carried out. Returns at once where there are some, else when something has
        happened, or after `timeout` seconds. Raises the exceptions of environments; WorkerError where an actor is lost
        and cannot be replaced."""

    def rollout(self, fragment: Fragment) -> Rollout:
        """What was collected, [T, n]."""

    def tensors(self, fragment: Fragment) -> list[Tensor]:
        """Its columns in their order, [T, agents, copies, ...]."""

    def release(self, fragments: list[Fragment]) -> None:
        """These are not read any more."""

    def spent(self, place: int) -> tuple[float, float, float]:
        """Seconds of the last fragment of a place: in all, of a core, and of waiting for its order."""

    def state(self, place: int, number: int) -> bytes:
        """The state after a fragment, one of the last two of its place."""

    def restore(self, place: int, number: int, state: bytes | None) -> None:
        """Go on at fragment `number` from the state before it; None for the beginning."""

    def publish(self, version: int) -> None:
        """The policy as it is now has this version."""

    def weights(self, version: int) -> Tensor:
        """A version's weights as bytes, uint8."""

    def set_weights(self, version: int, weights: Tensor) -> None:
        """Put back what weights() gave."""

    def details(self) -> dict[str, float]:
        """What is to be logged."""

    def advice(self, seconds: float) -> str:
        """What would be faster, where that is plain; "" for nothing. seconds: of collecting a fragment."""

    def close(self) -> None:
        """Let actors give up what they are collecting."""
