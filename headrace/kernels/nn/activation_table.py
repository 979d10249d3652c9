"""The activation functions of networks, by name. Exports and CUDA kernels have tables of their own (see
CONTRIBUTING.md).

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

    function: torch's, if possible one that overwrites its input. module, settings: the class of torch's module that
    computes it, and its settings.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    module: type[nn.Module]
    settings: Mapping[str, float | str]


IDENTITY = "identity"
ROWS = (
    Activation("tanh", torch.tanh_, nn.Tanh, {}),
    Activation("relu", torch.relu_, nn.ReLU, {}),
    Activation("elu", functional.elu, nn.ELU, {"alpha": 1.0}),
    Activation("silu", functional.silu, nn.SiLU, {}),
    Activation("gelu", functional.gelu, nn.GELU, {"approximate": "none"}),
    Activation("leaky_relu", functional.leaky_relu, nn.LeakyReLU, {"negative_slope": 0.01}),
    Activation("mish", functional.mish, nn.Mish, {}),
)
FUNCTIONS = {row.name: row.function for row in ROWS}


def name_of(module: nn.Module) -> str | None:
    """The activation that a torch module computes; None where it is none of these."""
    if type(module) is nn.Identity:
        return IDENTITY
    for row in ROWS:
        if type(module) is row.module and all(getattr(module, key) == value for key, value in row.settings.items()):
            return row.name
    return None
