"""One C99 header without dependencies, from a graph: static arrays, and functions over one observation."""

from __future__ import annotations

import math
import re
from string import Template

from headrace.core.packages import installed
from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import describe
from headrace.deploy.c_functions import NOT_CALLED, sources
from headrace.deploy.graph import STATE, Array, Graph, Node, Value

IMAGES = {"image", "convolution", "max_pool", "add"}
PER_LINE = 6  # numbers of an array in a line

FILE = Template("""/* A policy (${graph}), exported by Headrace ${version}. C99, and nothing but <math.h>.
 *
 * observation, ${observation_count}: ${observed}
 * action, ${action_count}: ${acted}, the most likely one
 * state, ${state_count}: ${stated}
 *
 * ${prefix}_act() computes the action for one observation. Nothing is allocated, nothing is kept between calls.
 */
#ifndef ${guard}_H
#define ${guard}_H

#include <math.h>

#define ${guard}_OBSERVATION_SIZE ${observation_count}
#define ${guard}_ACTION_SIZE ${action_count}
#define ${guard}_STATE_SIZE ${state_count}

/* All results of a step, as ${prefix}_forward() computes them. */
typedef struct {
${fields}
} ${prefix}_outputs;

${arrays}
${functions}
/* One step: writes all outputs, and the next state in place of `state`. */
static inline void ${prefix}_forward(const float *observation, float *state, ${prefix}_outputs *outputs) {
${body}
}

/* The most likely action for an observation, in the bounds of its space; updates `state`. */
static inline void ${prefix}_act(const float *observation, float *state, float *action) {
    ${prefix}_outputs outputs;
    ${prefix}_forward(observation, state, &outputs);
    for (int i = 0; i < ${guard}_ACTION_SIZE; i++) action[i] = outputs.action[i];
}

#endif
""")


def identifier(stem: str) -> str:
    """A name for functions in C, from the name of a file."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII).lower()
    return name if name[:1].isalpha() else f"policy_{name}"


def write(graph: Graph, prefix: str) -> bytes:
    """Write the header's content. Raises ValueError for a policy with convolutions."""
    if graph.operations() & IMAGES:
        raise ValueError("images need convolutions, which a C header has not: export to onnx or numpy")
    arrays, body = list[str](), list[str]()
    for node in graph.nodes:
        arrays += [_array(f"{prefix}_{node.output.name}_{name}", weight) for name, weight in node.weights.items()]
        body += _statements(node, prefix)
    activations = {node.settings["name"] for node in graph.nodes if node.operation == "activation"}
    outputs = {name: value for name, value in graph.outputs.items() if name != STATE}
    text = FILE.substitute(
        graph=graph.described,
        version=installed("headrace", "(not installed)"),
        observed=_observed(graph),
        acted=describe(graph.action_space),
        stated=_stated(graph.state_size),
        observation_count=sum(size(part.value) for part in graph.inputs),
        action_count=size(graph.outputs["action"]),
        state_count=graph.state_size,
        fields="\n".join(f"    float {name}[{size(value)}];" for name, value in outputs.items()),
        arrays="\n".join(arrays),
        functions=sources(graph.operations(), activations, prefix),
        body="\n".join(f"    {line}" for line in [*_parts(graph), *body, *_ends(graph, prefix)]),
        prefix=prefix,
        guard=prefix.upper(),
    )
    return text.encode()


def size(value: Value) -> int:
    """Number of entries of a value."""
    return math.prod(value.shape)


def _observed(graph: Graph) -> str:
    if isinstance(graph.observation_space, FlatDict):
        return f"{graph.observation_space.order()}, one after the other"
    if not graph.inputs[0].keys:
        return describe(graph.observation_space)
    parts = (f"{'.'.join(map(str, part.keys))} ({size(part.value)})" for part in graph.inputs)
    text = f"{', '.join(parts)}, one after the other"
    return text.encode("unicode_escape").decode("ascii").replace("*/", "* /")  # it is in a comment


def _stated(state_size: int) -> str:
    if not state_size:
        return "none, give NULL"
    return "kept by the caller, zeros at the start of an episode"


def _array(name: str, weight: Array) -> str:
    whole = weight.dtype.kind == "i"
    numbers = [str(x) if whole else _number(float(x)) for x in weight.ravel().tolist()]
    lines = [", ".join(numbers[i : i + PER_LINE]) for i in range(0, len(numbers), PER_LINE)]
    inside = ",\n    ".join(lines)
    return f"static const {'int' if whole else 'float'} {name}[{weight.size}] = {{\n    {inside}\n}};"


def _number(x: float) -> str:
    """Write a float32 in C, with nine digits, from which it is restored exactly."""
    if math.isinf(x):
        return "HUGE_VALF" if x > 0 else "-HUGE_VALF"
    text = f"{x:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _parts(graph: Graph) -> list[str]:
    """Pointers to the parts of the observation."""
    lines, offset = [], 0
    for part in graph.inputs:
        if part.keys:
            lines.append(f"const float *{part.value.name} = {_from('observation', offset)};")
        offset += size(part.value)
    return lines


def _statements(node: Node, prefix: str) -> list[str]:
    """The lines that compute a node."""
    y, x, count = node.output.name, node.inputs[0].name, size(node.output)
    if node.operation in ("flatten", "slice"):
        return [f"const float *{y} = {_from(x, node.settings.get('start', 0))};"]
    weights = [f"{prefix}_{y}_{name}" for name in node.weights]
    lines = [f"float {y}[{count}];"]
    match node.operation:
        case "dense":
            return [*lines, f"{prefix}_dense({', '.join(weights)}, {size(node.inputs[0])}, {count}, {x}, {y});"]
        case "gru" | "lstm":
            return lines + _cell(node, prefix)
        case "concat" | "number":
            return lines + _copies(node, prefix)
        case "forbid":
            or_all, mask = int(node.settings["or_all"]), node.inputs[1].name
            return [*lines, f"{prefix}_forbid({or_all}, {count}, {x}, {mask}, {y});"]
        case "expectation":
            return [*lines, f"{prefix}_expectation({weights[0]}, {len(node.weights['atoms'])}, {count}, {x}, {y});"]
        case "minimum":
            others = [f"{prefix}_minimum({count}, {other.name}, {y});" for other in node.inputs[1:]]
            return [*lines, f"{prefix}_copy({count}, {x}, {y});", *others]
        case "argmax":
            return lines + _choices(node, prefix)
    assert node.operation not in NOT_CALLED
    function = node.settings.get("name", node.operation)
    limits = [_number(node.settings[name]) for name in ("limit", "epsilon") if name in node.settings]
    return [*lines, f"{prefix}_{function}({', '.join([*weights, *limits, str(count), x, y])});"]


def _cell(node: Node, prefix: str) -> list[str]:
    y, (x, state) = node.output.name, node.inputs
    gates, inputs = node.weights["weight_input"].shape
    width = node.weights["weight_hidden"].shape[1]
    lines = [f"float {y}_entering[{gates}], {y}_recurrent[{gates}];"]
    for name, kind, number, given in (("entering", "input", inputs, x), ("recurrent", "hidden", width, state)):
        weights = f"{prefix}_{y}_weight_{kind}, {prefix}_{y}_bias_{kind}"
        lines.append(f"{prefix}_dense({weights}, {number}, {gates}, {given.name}, {y}_{name});")
    return [*lines, f"{prefix}_{node.operation}({y}_entering, {y}_recurrent, {width}, {state.name}, {y});"]


def _copies(node: Node, prefix: str) -> list[str]:
    lines, offset = [], 0
    for value in node.inputs:
        lines.append(f"{prefix}_copy({size(value)}, {value.name}, {_from(node.output.name, offset)});")
        offset += size(value)
    return lines


def _from(name: str, offset: int) -> str:
    """A pointer into an array."""
    return f"{name} + {offset}" if offset else name


def _choices(node: Node, prefix: str) -> list[str]:
    lines, offset = [], 0
    for k, (number, start) in enumerate(zip(node.settings["sizes"], node.settings["starts"], strict=True)):
        lines.append(
            f"{node.output.name}[{k}] = {prefix}_argmax({number}, {start}, {_from(node.inputs[0].name, offset)});"
        )
        offset += number
    return lines


def _ends(graph: Graph, prefix: str) -> list[str]:
    """Lines that write the outputs, and finally the state, since earlier lines read it."""
    lines = []
    for name, value in graph.outputs.items():
        if name != STATE:
            lines.append(f"for (int i = 0; i < {size(value)}; i++) outputs->{name}[i] = {value.name}[i];")
    if not graph.state_size:
        return [*lines, "(void)state;"]
    return [*lines, f"for (int i = 0; i < {graph.state_size}; i++) state[i] = {graph.outputs[STATE].name}[i];"]
