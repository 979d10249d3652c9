"""Write a graph as an ONNX model with a dynamic batch. https://onnx.ai/onnx/operators/"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.core.packages import installed, require
from headrace.data.spaces import to_json
from headrace.deploy.graph import STATE, Array, Graph, Node, Value
from headrace.policies.masks import FORBIDDEN

OPSET = 17  # the first with LayerNormalization; runtimes from 2022 on read it
IR_VERSION = 8  # the one of that opset
BATCH = "N"
ACTIVATIONS = {  # activations of one operator; _activation has those of several
    "tanh": "Tanh",
    "relu": "Relu",
    "elu": "Elu",
}
NEXT_STATE = "next_state"  # the output; inputs and outputs need different names
NEEDED = "exporting to onnx needs the package onnx, and checking the model onnxruntime: pip install 'headrace[onnx]'"


class Model:
    """Nodes and weights of an ONNX graph while it is written."""

    def __init__(self) -> None:
        import onnx

        self._onnx: Any = onnx
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, name: str, array: Array) -> str:
        """Add an initializer, and return its name."""
        self.weights.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def call(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def numbers(self, output: str, label: str, *numbers: int) -> str:
        """A weight of whole numbers, such as a shape."""
        return self.weight(f"{output}.{label}", np.array(numbers, np.int64))

    def part(self, x: str, start: int, stop: int, output: str) -> str:
        """Features start to stop of x."""
        ends = (self.numbers(output, "start", start), self.numbers(output, "stop", stop))
        return self.call("Slice", [x, *ends, self.numbers(output, "axis", 1)], output)


def write(graph: Graph) -> bytes:
    """Write the file's content. Raises ImportError without the package onnx."""
    require("onnx", NEEDED)
    import onnx
    from onnx import helper

    model = Model()
    for node in graph.nodes:
        weights = [model.weight(f"{node.output.name}.{name}", array) for name, array in node.weights.items()]
        WRITERS[node.operation](model, node, [*(value.name for value in node.inputs), *weights])
    inputs = [_info(part.value, part.dtype) for part in graph.inputs]
    inputs += [_info(graph.state, np.dtype(np.float32))] if graph.state_size else []
    outputs = [_output(model, graph, name, value) for name, value in graph.outputs.items()]
    written = helper.make_graph(model.nodes, "policy", inputs, outputs, model.weights)
    made = helper.make_model(written, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    made.producer_name, made.producer_version = "headrace", installed("headrace", "(not installed)")
    spaces = {"observation_space": graph.observation_space, "action_space": graph.action_space}
    helper.set_model_props(made, {name: json.dumps(to_json(space)) for name, space in spaces.items()})
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


def _info(value: Value, dtype: np.dtype[Any], name: str = "") -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(
        name or value.name, helper.np_dtype_to_tensor_dtype(dtype), [BATCH, *value.shape]
    )


def _output(model: Model, graph: Graph, name: str, value: Value) -> Any:
    """Give a value the name of an output, in the dtype that Policy.predict() returns."""
    from onnx import helper

    output, dtype = NEXT_STATE if name == STATE else name, np.dtype(np.float32)
    if name == "action":
        assert graph.action_space.dtype is not None
        dtype = np.dtype(graph.action_space.dtype)
        model.call("Cast", [value.name], output, to=helper.np_dtype_to_tensor_dtype(dtype))
    else:
        model.call("Identity", [value.name], output)
    return _info(value, dtype, output)


def _normalize(model: Model, node: Node, inputs: list[str]) -> None:
    x, center, scale = inputs
    y, limit = node.output.name, node.settings["limit"]
    centered = model.call("Sub", [x, center], f"{y}.centered")
    ends = [model.weight(f"{y}.{name}", np.array(end, np.float32)) for name, end in (("low", -limit), ("high", limit))]
    model.call("Clip", [model.call("Mul", [centered, scale], f"{y}.scaled"), *ends], y)


def _dense(model: Model, node: Node, inputs: list[str]) -> None:
    model.call("Gemm", inputs, node.output.name, transB=1)


def _activation(model: Model, node: Node, inputs: list[str]) -> None:
    y, name = node.output.name, node.settings["name"]
    match name:
        case "silu":
            model.call("Mul", [*inputs, model.call("Sigmoid", inputs, f"{y}.sigmoid")], y)
        case "mish":
            model.call(
                "Mul", [*inputs, model.call("Tanh", [model.call("Softplus", inputs, f"{y}.plus")], f"{y}.tanh")], y
            )
        case "gelu":
            half, one, root = (
                model.weight(f"{y}.{label}", np.array(number, np.float32))
                for label, number in (("half", 0.5), ("one", 1), ("root", 0.5**0.5))
            )
            erf = model.call("Erf", [model.call("Mul", [*inputs, root], f"{y}.scaled")], f"{y}.erf")
            both = model.call("Mul", [*inputs, model.call("Add", [erf, one], f"{y}.shifted")], f"{y}.both")
            model.call("Mul", [both, half], y)
        case "leaky_relu":
            model.call("LeakyRelu", inputs, y, alpha=0.01)
        case _:
            model.call(ACTIVATIONS[name], inputs, y)


def _layer_norm(model: Model, node: Node, inputs: list[str]) -> None:
    model.call("LayerNormalization", inputs, node.output.name, axis=-1, epsilon=node.settings["epsilon"])


def _rms_norm(model: Model, node: Node, inputs: list[str]) -> None:
    x, weight = inputs
    y = node.output.name
    square = model.call("ReduceMean", [model.call("Mul", [x, x], f"{y}.square")], f"{y}.mean", axes=[-1])
    least = model.weight(f"{y}.epsilon", np.array(node.settings["epsilon"], np.float32))
    root = model.call("Sqrt", [model.call("Add", [square, least], f"{y}.sum")], f"{y}.root")
    model.call("Mul", [model.call("Div", [x, root], f"{y}.divided"), weight], y)


def _one_hot(model: Model, node: Node, inputs: list[str]) -> None:
    x, component, choice = inputs
    y = node.output.name
    wide = model.call("Cast", [_flat(model, x, node.inputs[0], f"{y}.flat")], f"{y}.whole", to=_INT64)
    chosen = model.call("Gather", [wide, component], f"{y}.chosen", axis=1)
    model.call("Cast", [model.call("Equal", [chosen, choice], f"{y}.equal")], y, to=_FLOAT)


def _flat(model: Model, x: str, value: Value, output: str) -> str:
    """x as [N, features]."""
    size = int(np.prod(value.shape))
    return model.call("Reshape", [x, model.numbers(output, "shape", -1, size)], output)


def _number(model: Model, node: Node, inputs: list[str]) -> None:
    flat = _flat(model, inputs[0], node.inputs[0], f"{node.output.name}.flat")
    model.call("Cast", [flat], node.output.name, to=_FLOAT)


def _flatten(model: Model, node: Node, inputs: list[str]) -> None:
    _flat(model, inputs[0], node.inputs[0], node.output.name)


def _slice(model: Model, node: Node, inputs: list[str]) -> None:
    model.part(inputs[0], node.settings["start"], node.settings["stop"], node.output.name)


def _affine(model: Model, node: Node, inputs: list[str]) -> None:
    x, scale, offset = inputs
    model.call("Add", [model.call("Mul", [x, scale], f"{node.output.name}.scaled"), offset], node.output.name)


def _clip(model: Model, node: Node, inputs: list[str]) -> None:
    x, low, high = inputs  # ONNX's own Clip has one bound for all features
    model.call("Min", [model.call("Max", [x, low], f"{node.output.name}.low_end"), high], node.output.name)


def _forbid(model: Model, node: Node, inputs: list[str]) -> None:
    x, mask = inputs
    y = node.output.name
    allowed = model.call("Cast", [mask], f"{y}.allowed", to=_BOOL)
    if node.settings["or_all"]:
        number = model.call("Cast", [allowed], f"{y}.number", to=_FLOAT)  # opset 17 has no reduction of bools
        most = model.call("ReduceMax", [number], f"{y}.most", axes=[1])
        none = model.call("Not", [model.call("Cast", [most], f"{y}.any", to=_BOOL)], f"{y}.none")
        allowed = model.call("Or", [allowed, none], f"{y}.allowed_or_all")
    model.call("Where", [allowed, x, model.weight(f"{y}.forbidden", np.array(FORBIDDEN, np.float32))], y)


def _expectation(model: Model, node: Node, inputs: list[str]) -> None:
    y, shape = node.output.name, (-1, *node.output.shape, len(node.weights["atoms"]))
    logits = model.call("Reshape", [inputs[0], model.numbers(y, "shape", *shape)], f"{y}.logits")
    model.call("MatMul", [model.call("Softmax", [logits], f"{y}.probability", axis=2), inputs[1]], y)


def _gates(model: Model, node: Node, inputs: list[str], state: str) -> tuple[str, str]:
    x, _, weight_input, weight_hidden, bias_input, bias_hidden = inputs
    y = node.output.name
    entering = model.call("Gemm", [x, weight_input, bias_input], f"{y}.entering", transB=1)
    return entering, model.call("Gemm", [state, weight_hidden, bias_hidden], f"{y}.recurrent", transB=1)


def _gru(model: Model, node: Node, inputs: list[str]) -> None:
    y, state, size = node.output.name, inputs[1], node.output.shape[0]
    entering, recurrent = _gates(model, node, inputs, state)
    first = [model.part(x, 0, 2 * size, f"{x}.gates") for x in (entering, recurrent)]
    last = [model.part(x, 2 * size, 3 * size, f"{x}.last") for x in (entering, recurrent)]
    gates = model.call("Sigmoid", [model.call("Add", first, f"{y}.sums")], f"{y}.gates")
    reset, update = model.part(gates, 0, size, f"{y}.reset"), model.part(gates, size, 2 * size, f"{y}.update")
    kept = model.call("Mul", [reset, last[1]], f"{y}.kept")
    new = model.call("Tanh", [model.call("Add", [last[0], kept], f"{y}.new_sum")], f"{y}.new")
    change = model.call("Mul", [update, model.call("Sub", [state, new], f"{y}.apart")], f"{y}.change")
    model.call("Add", [new, change], y)


def _lstm(model: Model, node: Node, inputs: list[str]) -> None:
    y, size = node.output.name, node.output.shape[0] // 2
    before = model.part(inputs[1], 0, size, f"{y}.before")
    cell = model.part(inputs[1], size, 2 * size, f"{y}.cell")
    sums = model.call("Add", [*_gates(model, node, inputs, before)], f"{y}.sums")
    parts = [model.part(sums, k * size, (k + 1) * size, f"{y}.part_{k}") for k in range(4)]
    kinds = ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid")
    enter, keep, new, leave = (model.call(kind, [x], f"{x}.gate") for kind, x in zip(kinds, parts, strict=True))
    added = model.call("Mul", [enter, new], f"{y}.added")
    after = model.call("Add", [model.call("Mul", [keep, cell], f"{y}.kept"), added], f"{y}.after")
    output = model.call("Mul", [leave, model.call("Tanh", [after], f"{y}.tanh")], f"{y}.output")
    model.call("Concat", [output, after], y, axis=1)


def _argmax(model: Model, node: Node, inputs: list[str]) -> None:
    y, sizes, end = node.output.name, node.settings["sizes"], 0
    best = []
    for k, size in enumerate(sizes):
        part = inputs[0] if len(sizes) == 1 else model.part(inputs[0], end, end + size, f"{y}.part_{k}")
        end += size
        keep = int(node.output.shape != ())
        best.append(model.call("ArgMax", [part], f"{y}.best_{k}", axis=1, keepdims=keep))
    chosen = best[0] if len(best) == 1 else model.call("Concat", best, f"{y}.chosen", axis=1)
    model.call("Add", [chosen, model.numbers(y, "starts", *node.settings["starts"])], y)


def _positive(model: Model, node: Node, inputs: list[str]) -> None:
    y = node.output.name
    above = model.call("Greater", [*inputs, model.weight(f"{y}.zero", np.array(0, np.float32))], f"{y}.above")
    model.call("Cast", [above], y, to=_INT64)


def _image(model: Model, node: Node, inputs: list[str]) -> None:
    y, layout = node.output.name, node.settings["layout"]
    pixels = model.call("Cast", inputs, f"{y}.float", to=_FLOAT)
    if layout == "hwc":
        model.call("Transpose", [pixels], y, perm=[0, 3, 1, 2])
    elif layout == "hw":
        model.call("Unsqueeze", [pixels, model.numbers(y, "axis", 1)], y)
    else:
        model.call("Identity", [pixels], y)


def _convolution(model: Model, node: Node, inputs: list[str]) -> None:
    stride, padding = node.settings["stride"], node.settings["padding"]
    model.call("Conv", inputs, node.output.name, strides=[stride] * 2, pads=[padding] * 4)


def _max_pool(model: Model, node: Node, inputs: list[str]) -> None:
    model.call("MaxPool", inputs, node.output.name, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)


def _same(kind: str, **attributes: Any) -> Callable[[Model, Node, list[str]], None]:
    """An operation that ONNX has."""
    return lambda model, node, inputs: (model.call(kind, inputs, node.output.name, **attributes), None)[1]


_FLOAT, _INT64, _BOOL = 1, 7, 9  # TensorProto.FLOAT, INT64 and BOOL
WRITERS: dict[str, Callable[[Model, Node, list[str]], None]] = {
    "normalize": _normalize,
    "dense": _dense,
    "activation": _activation,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "one_hot": _one_hot,
    "number": _number,
    "flatten": _flatten,
    "concat": _same("Concat", axis=1),
    "slice": _slice,
    "affine": _affine,
    "clip": _clip,
    "rint": _same("Round"),
    "forbid": _forbid,
    "minimum": _same("Min"),
    "expectation": _expectation,
    "gru": _gru,
    "lstm": _lstm,
    "argmax": _argmax,
    "positive": _positive,
    "image": _image,
    "convolution": _convolution,
    "max_pool": _max_pool,
    "add": _same("Add"),
}
