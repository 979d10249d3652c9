"""A policy's parameters and buffers in shared memory: the learner writes them, and every actor reads them.

A version is in one of several slots. An actor's order names the slot, and a slot that an open order names is not
written. So nothing is read half-written, on any processor, and no reader ever waits.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.core.device import copy_all
from headrace.data.shared_memory import Memory, padded
from headrace.policies.base import Policy
from headrace.policies.examination import examine


class Layout(NamedTuple):
    """The tensors of a slot, in this order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Layout:
        """The layout for these tensors."""
        values = tensors.values()
        return cls(tuple(tensors), tuple(tuple(x.shape) for x in values), tuple(x.dtype for x in values))

    @property
    def size(self) -> int:
        """Bytes of a slot."""
        return sum(
            padded(torch.Size(shape).numel() * d.itemsize) for shape, d in zip(self.shapes, self.dtypes, strict=True)
        )

    def views(self, memory: Memory, slot: int) -> list[Tensor]:
        """The tensors of a slot."""
        offset, found = slot * self.size, []
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            found.append(memory.tensor(offset, shape, dtype))
            offset += padded(found[-1].nbytes)
        return found


def changing(policy: Policy) -> dict[str, Tensor]:
    """Every parameter and buffer of a policy by name: weights, normalisers' statistics, exploration."""
    tensors: Iterable[tuple[str, Tensor]] = (*policy.named_parameters(), *policy.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors if tensor.numel()}


class Weights:
    """The learner's side: write(version) copies the policy's present tensors into the slot of a version."""

    def __init__(self, policy: Policy, slots: int) -> None:
        self.policy = policy
        self.layout = Layout.of(changing(policy))
        self.memory = Memory(slots * self.layout.size)
        self._slots = [self.layout.views(self.memory, slot) for slot in range(slots)]
        self._examined, self._altered = examine(policy), examine(policy).altered
        self._tensors = list(changing(policy).values())

    def slot(self, version: int) -> int:
        """The slot of a version."""
        return version % len(self._slots)

    @torch.no_grad()
    def write(self, version: int) -> None:
        """Copy all of the policy's tensors into a version's slot. Raises ValueError if actors cannot take them."""
        if examine(self.policy) is not self._examined:
            self._follow()
        copy_all(self._slots[self.slot(version)], self._tensors)

    def _follow(self) -> None:
        """Look up the policy's tensors again: parameters and buffers may have been replaced by others of the shape."""
        tensors, found = changing(self.policy), examine(self.policy)
        if Layout.of(tensors) != self.layout or found.altered != self._altered:
            raise ValueError(
                "the policy was changed while a copy of it as it was collects: change its modules and hooks before the "
                "training begins, or leave out actors and collect_device"
            )
        self._examined, self._tensors = found, list(tensors.values())

    def state(self, version: int) -> Tensor:
        """A version as bytes, uint8."""
        return self.memory.tensor(self.slot(version) * self.layout.size, (self.layout.size,), torch.uint8).clone()

    def set_state(self, version: int, state: Tensor) -> None:
        """Restore state(). Raises ValueError for the state of another policy."""
        if len(state) != self.layout.size:
            raise ValueError(f"the saved weights have {len(state)} bytes, those of this policy {self.layout.size}")
        self.memory.tensor(self.slot(version) * self.layout.size, (self.layout.size,), torch.uint8).copy_(state)


class WeightsReader:
    """An actor's side: read(slot) copies a slot into its copy of the policy.

    copies: number of all environments. part: the actor's environments; exploration is read for these alone.
    """

    def __init__(self, policy: Policy, layout: Layout, memory: Memory, copies: int, part: slice) -> None:
        slots = memory.size // layout.size
        mine = changing(policy)
        self._targets = [mine[name] for name in layout.names]
        self._slots = [layout.views(memory, slot) for slot in range(slots)]
        for at, name in enumerate(layout.names):
            if name.rpartition(".")[2] == "exploration" and layout.shapes[at][0] > 1:
                self._targets[at] = self._targets[at].unflatten(0, (-1, part.stop - part.start))
                for views in self._slots:
                    views[at] = views[at].unflatten(0, (-1, copies))[:, part]

    @torch.no_grad()
    def read(self, slot: int) -> None:
        """Copy a slot into the policy."""
        copy_all(self._targets, self._slots[slot])


def take_part(policy: Policy, copies: int, part: slice) -> None:
    """Restrict the exploration of a copy of a policy to `part` of the `copies` environments, for each agent."""
    for module in policy.modules():
        exploration = getattr(module, "exploration", None)
        if isinstance(exploration, Tensor) and len(exploration) > 1:
            module.exploration = exploration.unflatten(0, (-1, copies))[:, part].flatten().clone()


def sent(policy: Policy, setting: str) -> bytes:
    """Pickle a policy, also with modules of users. torch.save() keeps which tensors share memory, which kernels need.

    Raises TypeError if it cannot be pickled. setting: the setting to leave out then, for the message.
    """
    import cloudpickle

    buffer = io.BytesIO()
    try:
        torch.save(policy, buffer, pickle_module=cloudpickle)
    except Exception as error:
        name = type(policy).__name__
        raise TypeError(f"{name} cannot be sent to a process: {error}. Leave {setting} out") from error
    return buffer.getvalue()


def received(policy: bytes, device: torch.device) -> Policy:
    """Unpickle sent(), on a device. On the CPU its tensors share the memory that they shared before."""
    found: Policy = torch.load(io.BytesIO(policy), "cpu", weights_only=False)
    return found.to(device)
