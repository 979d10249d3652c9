"""Write a graph as one file of Python that needs only NumPy: functions, the class Policy, and the weights in base64."""

from __future__ import annotations

import base64
import inspect
import textwrap
from typing import Any

import numpy as np

from headrace.core.packages import installed
from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import describe
from headrace.deploy import numpy_functions
from headrace.deploy.graph import STATE, Array, Graph, Input, Node

WIDTH = 120  # of a line
USES = {"silu": ("sigmoid",), "gru": ("sigmoid",), "lstm": ("sigmoid",)}  # what functions call

FILE = '''"""A policy ({described}), exported by Headrace {version}. It needs NumPy alone.

    policy = Policy()
{example}

{observation}
    or a batch of N of them, with N in front
action: {action}, the most likely one
{state}"""

{imports}
import numpy as np

{inputs}
MEMBERS = {members}  # of a dict that is one vector here, in this order
STATE_SIZE = {state_size}  # numbers in the recurrent state of an environment


class Policy:
    """The policy. It keeps no recurrent state itself, so that threads and environments may share it."""

    def __init__(self):
        self.weights = {{
            name: np.frombuffer(base64.b64decode(text), dtype).reshape(shape)
            for name, (dtype, shape, text) in WEIGHTS.items()
        }}

    def predict(self, observation, state=None):
        """Action and next state, of one observation or of a batch. state: the one that the previous call returned; None
        at the start of an episode{no_state}.
        """
        if MEMBERS and isinstance(observation, dict):
            observation = np.concatenate([np.asarray(observation[name], np.float32) for name in MEMBERS], -1)
        parts = []
        for keys, dtype, shape in INPUTS:
            part = observation
            for key in keys:
                part = part[key]
            part = np.asarray(part, dtype)
            single = part.ndim == len(shape)
            if part.shape[0 if single else 1 :] != shape:
                raise ValueError(f"expected an observation of shape {{shape}} or a batch of them, got {{part.shape}}")
            parts.append(part[None] if single else part)
        shape = (len(parts[0]), STATE_SIZE)
        if STATE_SIZE and state is None:
            state = np.zeros(shape, np.float32)
        if STATE_SIZE and np.shape(state) != shape:
            raise ValueError(f"expected a state of shape {{shape}}, which predict() returned, got {{np.shape(state)}}")
        outputs = self.forward(*parts, state)
        action = outputs["action"].reshape((-1,) + ACTION_SHAPE).astype(ACTION_DTYPE)
        return (action[0] if single else action), outputs.get("state")

    def forward(self, {arguments}):
        """All outputs, for batches [N, ...] of each part of the observation and of the state: {outputs}."""
        w = self.weights
{body}
        return {{{returned}}}


{functions}


# name: dtype, shape, and the numbers in base64
WEIGHTS = {{
{weights}
}}
'''


def write(graph: Graph) -> bytes:
    """Write the file's content. It contains no pickle, and running it needs no package except NumPy."""
    weights: dict[str, Array] = {}
    body = [_statement(node, weights) for node in graph.nodes]
    functions = _functions(graph)
    recurrent = graph.state_size > 0
    text = FILE.format(
        described=graph.described,
        version=installed("headrace", "(not installed)"),
        example=_example(recurrent),
        observation=_observed(graph),
        action=f"{graph.action_space.dtype} {graph.outputs['action'].shape}, {describe(graph.action_space)}",
        state=f"state: float32 (N, {graph.state_size}), zeros at the start of an episode\n" if recurrent else "",
        imports="import base64\n" + ("import math\n" if "math." in functions else ""),
        inputs=_inputs(graph),
        members=tuple(graph.observation_space.members) if isinstance(graph.observation_space, FlatDict) else (),
        state_size=graph.state_size,
        no_state="" if recurrent else ", and always here",
        arguments=", ".join([*(part.value.name for part in graph.inputs), "state=None"]),
        outputs=", ".join(graph.outputs),
        body=textwrap.indent("\n".join(body), " " * 8),
        returned=", ".join(f'"{name}": {value.name}' for name, value in graph.outputs.items()),
        functions=functions,
        weights="\n".join(_encoded(name, weight) for name, weight in weights.items()),
    )
    return text.encode()


def _example(recurrent: bool) -> str:
    calls = ["action, _ = policy.predict(observation)"]
    if recurrent:
        calls = [
            "action, state = policy.predict(observation)         # at the start of an episode",
            "action, state = policy.predict(observation, state)  # afterwards",
        ]
    return textwrap.indent("\n".join(calls), " " * 4)


def _described(part: Input) -> str:
    keys = "".join(f"[{key!r}]" for key in part.keys).replace('"', r"\"")  # it is in a docstring
    return f"observation{keys}: {part.dtype} {part.value.shape}"


def _observed(graph: Graph) -> str:
    lines = "\n".join(map(_described, graph.inputs))
    space = graph.observation_space
    return f"{lines}: {space.order()}, or a dict of these" if isinstance(space, FlatDict) else lines


def _inputs(graph: Graph) -> str:
    def row(part: Input) -> str:
        return f'    ({part.keys!r}, "{part.dtype}", {part.value.shape!r}),'

    action = graph.outputs["action"].shape
    lines = ["INPUTS = [  # where in an observation, dtype, shape", *map(row, graph.inputs), "]"]
    return "\n".join([*lines, f'ACTION_SHAPE, ACTION_DTYPE = {action!r}, "{graph.action_space.dtype}"'])


def _statement(node: Node, weights: dict[str, Array]) -> str:
    """One line of forward(). The node's weights are added to `weights`."""
    settings = dict(node.settings)
    function = settings.pop("name") if node.operation == "activation" else node.operation
    arguments = [value.name for value in node.inputs]
    for name, weight in node.weights.items():
        weights[f"{node.output.name}.{name}"] = weight
        arguments.append(f'w["{node.output.name}.{name}"]')
    arguments += [f"{name}={_literal(value)}" for name, value in settings.items()]
    if node.operation == "slice":
        return f"{node.output.name} = {arguments[0]}[:, {settings['start']}:{settings['stop']}]"
    line = f"{node.output.name} = {_called(function)}({', '.join(arguments)})"
    if len(line) <= WIDTH - 8:
        return line
    inside = textwrap.indent(",\n".join(arguments), " " * 4)
    return f"{node.output.name} = {_called(function)}(\n{inside},\n)"


def _called(function: str) -> str:
    assert hasattr(numpy_functions, function)
    return function


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _functions(graph: Graph) -> str:
    """The source of the functions that forward() calls."""
    called = {node.settings.get("name", node.operation) for node in graph.nodes} - {"slice"}
    called |= {used for name in called for used in USES.get(name, ())}
    known = [name for name, kind in vars(numpy_functions).items() if inspect.isfunction(kind)]
    return "\n\n".join(inspect.getsource(getattr(numpy_functions, name)) for name in known if name in called).rstrip()


def _encoded(name: str, weight: Array) -> str:
    """An entry of WEIGHTS. Numbers are little-endian on every machine."""
    little = weight.astype(weight.dtype.newbyteorder("<"))
    lines = textwrap.wrap(base64.b64encode(little.tobytes()).decode(), WIDTH - 10) or [""]
    text = "\n".join(f'        "{line}"' for line in lines)
    return f'    "{name}": ("{little.dtype.str}", {weight.shape!r}, (\n{text}\n    )),'


def names(graph: Graph) -> list[str]:
    """The arguments of forward(), in order."""
    return [*(part.value.name for part in graph.inputs), STATE]


def load(content: bytes) -> Any:
    """An object of the class Policy in a written file."""
    module: dict[str, Any] = {"__name__": "exported", "np": np}
    exec(compile(content, "exported.py", "exec"), module)
    return module["Policy"]()
