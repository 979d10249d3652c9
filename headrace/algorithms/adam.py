"""Adam on one flat buffer: clipping, the step and checkpoints take one pass each, for any number of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from headrace.policies.flat_parameters import flatten, flatten_gradients

BETA1, BETA2 = 0.9, 0.999

_grad, _requires_grad = attrgetter("grad"), attrgetter("requires_grad")


class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980) with clipping of the gradient's norm, and AdamW's decoupled weight decay
    (Loshchilov & Hutter 2019, arXiv:1711.05101): parameters shrink by learning_rate * weight_decay before each step.

    Moves the parameters into one buffer `flat` and their gradients into another, `gradient`; the parameters and their
    .grad become views of them. `learning_rate` is a tensor: schedules write into it. Frozen parameters stay as they
    are, and so do their moments.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        eps: float = 1e-5,
        beta1: float = BETA1,
        beta2: float = BETA2,
        weight_decay: float = 0.0,
    ) -> None:
        self.eps, self.beta1, self.beta2, self.weight_decay = eps, beta1, beta2, weight_decay
        self.parameters = parameters = list(parameters)
        self.flat, self.gradient = flatten(parameters), flatten_gradients(parameters)
        self._values, self._gradients = [p.detach() for p in parameters], [p.grad for p in parameters]
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps = torch.zeros((), device=self.flat.device)
        self.learning_rate = torch.tensor(learning_rate, device=self.flat.device)

    def has_gradients(self) -> bool:
        """Tell whether the parameters' .grad are views of `gradient`; zero_grad() removes these views."""
        return all(map(is_, map(_grad, self.parameters), self._gradients))

    @torch.no_grad()
    def follow(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Learn these parameters from now on, with their present values and the earlier ones' moments, after modules or
        parameters were replaced. Returns whether their shapes are the same; if not, nothing changes."""
        new = list(parameters)
        if {*map(id, new)} == {*map(id, self.parameters)}:
            new = self.parameters  # in another order, perhaps
        if [(p.shape, p.dtype, p.device) for p in new] != [(x.shape, x.dtype, x.device) for x in self._values]:
            return False
        for parameter, values, gradient in zip(new, self._values, self._gradients, strict=True):
            if parameter.data_ptr() != values.data_ptr():
                values.copy_(parameter)
                parameter.data = values.view(values.shape)
            parameter.grad = gradient
        self.parameters = new
        return True

    @torch.no_grad()
    def step(self, max_norm: float, skip: Tensor | None = None) -> None:
        """Take a step along `gradient`, scaled down if its norm is above max_norm. Then zero the gradient.

        skip: a float32 scalar on the device; if it is 1, nothing changes.
        """
        # no division without a limit, since the norm of finite gradients may be infinite
        divisor = (self.gradient.norm() / max_norm).clamp_(min=1) if max_norm < math.inf else None
        self.steps += 1 if skip is None else 1 - skip
        frozen = [] if all(map(_requires_grad, self.parameters)) else self._frozen()
        before = [part.clone() for part in frozen]
        # the functions that torch.optim calls; constructing torch.optim.Adam imports 800 modules
        fused = torch._fused_adamw_ if self.weight_decay else torch._fused_adam_  # type: ignore[attr-defined]
        buffers = ([self.flat], [self.gradient], [self.mean], [self.square])
        options: Any = {"weight_decay": self.weight_decay, "amsgrad": False, "maximize": False}
        options |= {"beta1": self.beta1, "beta2": self.beta2}
        options |= {"lr": self.learning_rate, "eps": self.eps, "grad_scale": divisor, "found_inf": skip}
        fused(*buffers, [], [self.steps], **options)
        for part, values in zip(frozen, before, strict=True):
            part.copy_(values)
        self.gradient.zero_()

    def _frozen(self) -> list[Tensor]:
        """The parts of the buffers that belong to frozen parameters."""
        sizes = [p.numel() for p in self.parameters]
        parts = zip(self.parameters, *(x.split(sizes) for x in (self.flat, self.mean, self.square)), strict=True)
        return [part for parameter, *own in parts if not parameter.requires_grad for part in own]

    def state_dict(self) -> dict[str, Any]:
        """Copies of the moments and the step count."""
        return {"mean": self.mean.clone(), "square": self.square.clone(), "steps": self.steps.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict(). Raises ValueError for another number of parameters."""
        if state["mean"].shape != self.mean.shape:
            raise ValueError(f"the state has {len(state['mean'])} parameters, this optimizer has {len(self.mean)}")
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.steps.copy_(state["steps"])


def backward(loss: Tensor, parameters: Iterable[nn.Parameter]) -> None:
    """Add a loss's gradients to those of these parameters, except frozen ones."""
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    if learned:
        loss.backward(inputs=learned)
