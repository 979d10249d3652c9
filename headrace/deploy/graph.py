"""The computation of a policy as a list of nodes, from which files of all formats are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.data.spaces import Key, Space

STATE = "state"  # the name of the recurrent state, input and output
Array = npt.NDArray[Any]


class Value(NamedTuple):
    """A result in a graph: float32 [N, *shape], except observations and actions."""

    name: str
    shape: tuple[int, ...]  # without the batch


@dataclass(frozen=True)
class Input:
    """A part of the observation. keys: lead to it in an observation of a Dict or a Tuple; empty for a single space."""

    value: Value
    keys: tuple[Key, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Node:
    """One operation. OPERATIONS lists what each computes from its inputs, weights and settings."""

    operation: str
    inputs: tuple[Value, ...]
    output: Value
    weights: dict[str, Array]
    settings: dict[str, Any]


OPERATIONS = {  # operations that the writers implement; x: the first input
    "normalize": "clip((x - center) * scale, -limit, limit)",
    "dense": "weight x + bias; weight: [outputs, inputs]",
    "activation": "a function of headrace.kernels.nn.activation_table; setting: name",
    "layer_norm": "(x - mean) / sqrt(variance + epsilon) * weight + bias, over the features of a row",
    "rms_norm": "x / sqrt(mean of x^2 + epsilon) * weight, over the features of a row",
    "one_hot": "1 where x[component] == choice, else 0",
    "number": "whole numbers [N, *shape] as float32 [N, features]",
    "flatten": "[N, *shape] as [N, features]",
    "concat": "inputs one after the other",
    "slice": "features start to stop",
    "affine": "x * scale + offset",
    "clip": "limited to low and high of each feature",
    "rint": "to the nearest whole number, halves to even",
    "forbid": "x where the mask, the second input, is not 0, else FORBIDDEN; or_all: all x where the whole mask is 0",
    "minimum": "the smallest of the inputs",
    "gru": "the next state, from features and state; weights of the reset, update and new gates, in this order",
    "lstm": "the next output and cell state, from features and both; input, forget, cell and output gates",
    "expectation": "for each output the mean of atoms [M], weighted by the softmax of the next M features of x",
    "argmax": "the best choice of each component, counted from its start; logits are in a row. sizes, starts",
    "positive": "1 where x > 0, else 0",
    "image": "pixels 0..255 as float32 [N, channels, height, width]; setting: layout, hw, hwc or chw",
    "convolution": "weight [outputs, inputs, height, width], bias, stride, padding",
    "max_pool": "3 x 3, stride 2, padding 1",
    "add": "x plus the second input",
}


@dataclass
class Graph:
    """A policy as nodes, in the order in which they are computed.

    outputs: name -> value: `action`, as Policy.predict() returns it; the one of `logits`, `mean` and `q_values` from
    which actions are computed; `state` of a recurrent policy; and `value` if requested. state_size: size of the
    recurrent state of an environment, 0 for none. traced: whether the operations are torch.onnx's, and not among the
    nodes.
    """

    observation_space: Space
    action_space: Space
    state_size: int
    described: str  # for headers and docstrings: the class of the policy
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, Value] = field(default_factory=dict)
    traced: bool = False

    def add(
        self,
        operation: str,
        *inputs: Value,
        shape: tuple[int, ...],
        weights: Mapping[str, torch.Tensor | Array] | None = None,
        **settings: Any,
    ) -> Value:
        """Append a node, and return its output."""
        assert operation in OPERATIONS
        number = sum(node.operation == operation for node in self.nodes) + 1
        output = Value(f"{operation}_{number}", shape)
        given = {name: to_array(weight) for name, weight in (weights or {}).items()}
        self.nodes.append(Node(operation, inputs, output, given, settings))
        return output

    def add_input(self, space: Space, keys: tuple[Key, ...], dtype: npt.DTypeLike) -> Value:
        """Append the input for a member of the observation. Its name is an identifier in Python and C."""
        name = base = "_".join(re.sub(r"\W", "_", str(key), flags=re.ASCII) for key in ("observation", *keys))
        taken, number = {part.value.name for part in self.inputs}, 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        value = Value(name, tuple(map(int, space.shape or ())))
        self.inputs.append(Input(value, keys, np.dtype(dtype)))
        return value

    @property
    def state(self) -> Value:
        """The recurrent state before the step."""
        return Value(STATE, (self.state_size,))

    @property
    def scores(self) -> str:
        """The one of `logits`, `mean` and `q_values` that is among the outputs."""
        return next(name for name in self.outputs if name in ("logits", "mean", "q_values"))

    def operations(self) -> set[str]:
        """The kinds of operations in the graph."""
        return {node.operation for node in self.nodes}


def to_array(weight: torch.Tensor | Array) -> Array:
    """Weights as a contiguous array; floats as float32."""
    array = weight.detach().cpu().numpy() if isinstance(weight, torch.Tensor) else weight
    return np.ascontiguousarray(array, np.float32 if array.dtype.kind == "f" else np.int64)
