"""Convert the modules of a policy to nodes of a graph: layers, encoders, RNN cells and heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from headrace.data.spaces import Box, bounds
from headrace.deploy.graph import Graph, Value
from headrace.kernels.nn.activation_table import IDENTITY, name_of
from headrace.policies import convolutions, heads, networks
from headrace.policies.distributions import EDGE
from headrace.policies.normalization import BatchRenorm, ReturnNormalizer
from headrace.policies.rnn import RecurrentEncoder, RNNCell


def layer(graph: Graph, module: nn.Module, x: Value) -> Value:
    """Add a module's nodes for the input x, and return the output. Raises TypeError if it cannot be exported."""
    if type(module) in LAYERS:
        return LAYERS[type(module)](graph, module, x)
    name = name_of(module)
    if name is None:
        raise unknown(module)
    return activation(graph, name, x)


def unknown(module: nn.Module) -> TypeError:
    """The error for a module that cannot be exported."""
    return TypeError(
        f"a policy with a {type(module).__name__} in it cannot be exported by Headrace's own writers, which know the "
        "networks of its policies: use predict()"
    )


def activation(graph: Graph, name: str, x: Value) -> Value:
    """An activation function by its name; x itself for the identity."""
    return x if name == IDENTITY else graph.add("activation", x, shape=x.shape, name=name)


def _dense(graph: Graph, module: Any, x: Value) -> Value:
    weights = {"weight": module.weight, "bias": module.bias}
    return graph.add("dense", x, shape=(len(module.weight),), weights=weights)


def _mlp(graph: Graph, module: Any, x: Value) -> Value:
    norms = list(module.norms) or [None] * len(module.layers)
    for dense, norm in zip(module.layers, norms, strict=True):
        x = layer(graph, dense, x)
        x = x if norm is None else layer(graph, norm, x)
        x = activation(graph, module.activation, x)
    return x


def _renorm_mlp(graph: Graph, module: Any, x: Value) -> Value:
    x = layer(graph, module.norms[0], x)
    for dense, norm in zip(module.layers, module.norms[1:], strict=True):
        x = layer(graph, norm, activation(graph, module.activation, layer(graph, dense, x)))
    return x


def batch_renorm(graph: Graph, module: Any, x: Value, network: int | None = None) -> Value:
    """Normalisation by the running moments: a factor and an offset for each feature. network: which of several."""
    parameters = (module.weight, module.bias, module.mean, module.std)
    weight, bias, mean, std = (p.detach() if network is None else p.detach()[network, 0] for p in parameters)
    return affine(graph, x, (weight / std).cpu(), (bias - mean * weight / std).cpu())


def _layer_norm(graph: Graph, module: Any, x: Value) -> Value:
    weights = {"weight": module.weight, "bias": module.bias}
    return graph.add("layer_norm", x, shape=x.shape, weights=weights, epsilon=module.eps)


def _rms_norm(graph: Graph, module: Any, x: Value) -> Value:
    return graph.add("rms_norm", x, shape=x.shape, weights={"weight": module.weight}, epsilon=module.eps)


def _sequential(graph: Graph, module: Any, x: Value) -> Value:
    for part in module:
        x = layer(graph, part, x)
    return x


def _convolution(graph: Graph, module: Any, x: Value) -> Value:
    weight = module.weight * (1 / 255) if type(module) is convolutions.ByteConv2d else module.weight
    (stride, _), (padding, _), (kernel, _) = module.stride, module.padding, module.kernel_size
    height, width = ((size + 2 * padding - kernel) // stride + 1 for size in x.shape[1:])
    weights = {"weight": weight, "bias": module.bias}
    shape = (module.out_channels, height, width)
    return graph.add("convolution", x, shape=shape, weights=weights, stride=stride, padding=padding)


def _stack(graph: Graph, module: Any, x: Value) -> Value:
    x = layer(graph, module.enter, x)
    x = graph.add("max_pool", x, shape=(x.shape[0], *((size - 1) // 2 + 1 for size in x.shape[1:])))
    for block in module.blocks:
        x = graph.add("add", x, layer(graph, block, x), shape=x.shape)
    return x


def _image_encoder(graph: Graph, module: Any, x: Value) -> Value:
    layout = "hw" if module.flat else "chw" if module.in_front else "hwc"
    channels, height, width = {"hw": (1, *x.shape), "chw": x.shape, "hwc": (x.shape[-1], *x.shape[:-1])}[layout]
    pixels = graph.add("image", x, shape=(channels, height, width), layout=layout)
    features = layer(graph, module.convolutions, pixels)
    features = graph.add("flatten", features, shape=(math.prod(features.shape),))
    return activation(graph, "relu", layer(graph, module.out, features))


def _vector_encoder(graph: Graph, module: Any, x: Value) -> Value:
    if len(x.shape) != 1:
        x = graph.add("flatten", x, shape=(module.size,))
    x = part(graph, x, 0, module.size)  # without an action mask, which comes last
    if module.normalizer is None:
        return x
    weights = {"center": module.normalizer.center, "scale": module.normalizer.scale}
    return graph.add("normalize", x, shape=x.shape, weights=weights, limit=module.normalizer.limit)


def _one_hot_encoder(graph: Graph, module: Any, x: Value) -> Value:
    weights = {"component": module.component, "choice": module.choice}
    return graph.add("one_hot", x, shape=(module.size,), weights=weights)


def _binary_encoder(graph: Graph, module: Any, x: Value) -> Value:
    return graph.add("number", x, shape=(module.size,))


LAYERS: dict[type[nn.Module], Callable[[Graph, Any, Value], Value]] = {
    networks.Dense: _dense,
    networks.Readout: _dense,
    networks.QuantileReadout: _dense,
    nn.Linear: _dense,
    networks.MLP: _mlp,
    networks.RenormMLP: _renorm_mlp,
    BatchRenorm: batch_renorm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.Sequential: _sequential,
    nn.Conv2d: _convolution,
    convolutions.ByteConv2d: _convolution,
    convolutions.ResidualStack: _stack,
    convolutions.ImageEncoder: _image_encoder,
    networks.VectorEncoder: _vector_encoder,
    networks.OneHotEncoder: _one_hot_encoder,
    networks.BinaryEncoder: _binary_encoder,
}


def encode(graph: Graph, encoder: Any, observation: Any) -> Value:
    """Features of an observation: a Value, or a dict of them by the names of a DictEncoder."""
    if type(encoder) is not networks.DictEncoder:
        return layer(graph, encoder, observation)
    parts = [
        encode(graph, member, observation[name]) for name, member in zip(encoder.names, encoder.members, strict=True)
    ]
    return graph.add("concat", *parts, shape=(encoder.size,)) if len(parts) > 1 else parts[0]


def step(graph: Graph, encoder: Any, observation: Any) -> Value:
    """Features of an observation by an encoder that may be recurrent; the graph's state is that of its RNN cell."""
    if type(encoder) is not RecurrentEncoder:
        return encode(graph, encoder, observation)
    features = encode(graph, encoder.encoder, observation)
    output, graph.outputs["state"] = cell(graph, encoder.rnn, 0, features, graph.state)
    return graph.add("concat", features, output, shape=(encoder.size,))


def cell(graph: Graph, rnn: Any, copy: int, x: Value, state: Value) -> tuple[Value, Value]:
    """The output and the next state of one of the copies in an RNN cell."""
    if type(rnn) is not RNNCell:
        raise unknown(rnn)
    weights = {
        "weight_input": rnn.weight_input[copy].t(),
        "weight_hidden": rnn.weight_hidden[copy].t(),
        "bias_input": rnn.bias_input[copy, 0],
        "bias_hidden": rnn.bias_hidden[copy, 0],
    }
    after = graph.add(rnn.kind, x, state, shape=(rnn.width,), weights=weights)
    return after if rnn.kind == "gru" else part(graph, after, 0, rnn.size), after


def part(graph: Graph, x: Value, start: int, stop: int) -> Value:
    """Features start to stop of x."""
    return x if (start, stop) == (0, *x.shape) else graph.add("slice", x, shape=(stop - start,), start=start, stop=stop)


def affine(graph: Graph, x: Value, scale: Any, offset: Any) -> Value:
    """x * scale + offset, for each feature; x itself if that changes nothing."""
    weights = {
        name: np.broadcast_to(np.asarray(given, np.float32).reshape(-1), x.shape)
        for name, given in (("scale", scale), ("offset", offset))
    }
    if (weights["scale"] == 1).all() and (weights["offset"] == 0).all():
        return x
    return graph.add("affine", x, shape=x.shape, weights=weights)


def return_units(graph: Graph, normalizer: ReturnNormalizer | None, value: Value) -> Value:
    """A value in units of return."""
    if normalizer is None:
        return value
    return affine(graph, value, normalizer.scale.cpu(), normalizer.center.cpu())


def forbid(graph: Graph, x: Value, mask: Value | None, or_all: bool = False) -> Value:
    """Logits or values x, with masks.FORBIDDEN where a mask is 0; x itself without a mask."""
    return x if mask is None else graph.add("forbid", x, mask, shape=x.shape, or_all=or_all)


def act(graph: Graph, head: Any, x: Value, mask: Value | None = None) -> None:
    """Set the outputs `action`, and `logits` or `mean`, from the output x of a network for a head."""
    x = forbid(graph, x, mask)
    if isinstance(head, heads.StateStdHead):
        x = part(graph, x, 0, head.num_parameters // 2)
    match head:
        case heads.CategoricalHead():
            graph.outputs |= {"action": choose(graph, x, head.start), "logits": x}
        case heads.MultiCategoricalHead():
            settings = {"sizes": head.sizes, "starts": head.starts}
            graph.outputs |= {"action": graph.add("argmax", x, shape=(len(head.sizes),), **settings), "logits": x}
        case heads.BernoulliHead():
            graph.outputs |= {"action": graph.add("positive", x, shape=x.shape), "logits": x}
        case heads.GaussianHead(squash=False):
            mean = affine(graph, x, head.half_range.cpu(), head.center.cpu())
            graph.outputs |= {"action": to_bounds(graph, mean), "mean": mean}
        case heads.GaussianHead():
            squashed = activation(graph, "tanh", x)
            edges = {"low": np.full(x.shape, -EDGE), "high": np.full(x.shape, EDGE)}
            inside = graph.add("clip", squashed, shape=x.shape, weights=edges)
            action = affine(graph, inside, head.half_range.cpu(), head.center.cpu())
            graph.outputs |= {"action": to_bounds(graph, action), "mean": x}
        case _:
            raise unknown(head)


def choose(graph: Graph, x: Value, start: int) -> Value:
    """The number of the best of all choices, of shape []."""
    return graph.add("argmax", x, shape=(), sizes=[*x.shape], starts=[start])


def to_bounds(graph: Graph, action: Value) -> Value:
    """Limit actions to a Box's bounds, and round them for a Box of integers, as headrace.policies.numpy_io does."""
    space = graph.action_space
    assert isinstance(space, Box)
    low, high = bounds(space)
    if np.isfinite((low, high)).any():
        weights = {"low": low.astype(np.float32), "high": high.astype(np.float32)}
        action = graph.add("clip", action, shape=action.shape, weights=weights)
    return action if space.dtype.kind == "f" else graph.add("rint", action, shape=action.shape)
