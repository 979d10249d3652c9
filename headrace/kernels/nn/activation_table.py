"""The activation functions of networks and of the CPU's kernels: each has a row here and a function in
headrace.kernels.nn.activations. Exports and CUDA kernels have tables of their own (see CONTRIBUTING.md).

Nothing here needs Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Activation(NamedTuple):
    """An activation.

    function: torch's, if possible one that overwrites its input. module, settings: the
    class of torch's module that computes it, and its settings. from_output: whether the output determines the
    derivative; else kernels keep the derivative that they compute with the output.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    module: type[nn.Module]
    settings: Mapping[str, float | str]
    from_output: bool


IDENTITY = "identity"
ROWS = (  # an activation's code in layer tables is its number here, counted from 1; 0 is the identity
    Activation("tanh", torch.tanh_, nn.Tanh, {}, True),
    Activation("relu", torch.relu_, nn.ReLU, {}, True),
    Activation("elu", functional.elu, nn.ELU, {"alpha": 1.0}, True),
    Activation("silu", functional.silu, nn.SiLU, {}, False),
    Activation("gelu", functional.gelu, nn.GELU, {"approximate": "none"}, False),
    Activation("leaky_relu", functional.leaky_relu, nn.LeakyReLU, {"negative_slope": 0.01}, True),
    Activation("mish", functional.mish, nn.Mish, {}, False),
)
CODES = {IDENTITY: 0} | {row.name: code for code, row in enumerate(ROWS, 1)}
FUNCTIONS = {row.name: row.function for row in ROWS}


def name_of(module: nn.Module) -> str | None:
    """The activation that a torch module computes; None where it is none of these."""
    if type(module) is nn.Identity:
        return IDENTITY
    for row in ROWS:
        if type(module) is row.module and all(getattr(module, key) == value for key, value in row.settings.items()):
            return row.name
    return None
