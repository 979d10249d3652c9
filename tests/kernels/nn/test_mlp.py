"""Forward and backward of networks of layers, against torch in float64, over random architectures."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit  # noqa: TID253

from headrace.kernels.nn import layer_table, mlp
from headrace.kernels.nn.activation_table import CODES, FUNCTIONS, IDENTITY
from headrace.kernels.nn.layout import BLOCK, OBSERVATION, Layer, aligned, network

TORCH = FUNCTIONS | {IDENTITY: lambda x: x}
OUTPUT, OUTPUT_GRAD = int(layer_table.OUTPUT), int(layer_table.OUTPUT_GRAD)


@njit
def run(layers, transposed, parameters, scratch, gradient, flat):
    mlp.forward(layers, parameters, scratch, BLOCK)
    mlp.backward(layers, transposed, parameters, scratch, gradient)
    mlp.flatten_gradient(layers, gradient, flat)


def actor_critic(inputs, hidden, outputs, activation, shared, layer_norm=False):
    """Layers of an actor and a critic, and the places of their last ones."""
    layers, place = [], 0

    def dense(source, wide, high, name, normed=False):
        nonlocal place
        end = place + wide * high + high
        layers.append(Layer(source, wide, high, place, end - high, name, (end, end + high) if normed else None))
        place = end + 2 * high * normed
        return len(layers) - 1

    def trunk():
        source, wide = OBSERVATION, inputs
        for high in hidden:
            source, wide = dense(source, wide, high, activation, layer_norm), high
        return source, wide

    source, wide = trunk()
    actor = dense(source, wide, outputs, "identity")
    source, wide = (source, wide) if shared else trunk()
    return layers, actor, dense(source, wide, 1, "identity"), place


def by_kernel(layers, ends, size, parameters, observation, grads):
    """Outputs [64, *] of the layers `ends`, and the gradient of sum(output * grad)."""
    net = network(layers)
    scratch, gradient, flat = aligned(net.scratch), aligned(net.gradient), np.zeros(size, np.float32)
    scratch[: observation.size] = observation.T.ravel()
    blocks = []
    for end, grad in zip(ends, grads, strict=True):
        at = int(net.layers[end, OUTPUT_GRAD])
        scratch[at : at + grad.size] = grad.T.ravel()
        at = int(net.layers[end, OUTPUT])
        blocks.append(scratch[at : at + grad.size].reshape(-1, 64))
    run(net.layers, np.uint64(net.transposed), parameters, scratch, gradient, flat)
    return [block.T for block in blocks], flat


def by_torch(layers, ends, parameters, observation, grads, dtype=torch.float64):
    flat = torch.tensor(parameters, dtype=dtype, requires_grad=True)
    outputs = []
    for layer in layers:
        source = torch.tensor(observation).to(dtype) if layer.source == OBSERVATION else outputs[layer.source]
        weight = flat[layer.weight : layer.weight + layer.inputs * layer.outputs].view(layer.outputs, layer.inputs)
        sums = source @ weight.T + flat[layer.bias : layer.bias + layer.outputs]
        if layer.norm is not None:
            scale, shift = (flat[place : place + layer.outputs] for place in layer.norm)
            sums = torch.nn.functional.layer_norm(sums, (layer.outputs,), scale, shift)
        outputs.append(TORCH[layer.activation](sums.clone()))
    loss = sum((outputs[end] * torch.tensor(grad)).sum() for end, grad in zip(ends, grads, strict=True))
    loss.backward()
    return [outputs[end].detach().numpy() for end in ends], flat.grad.numpy()


def case(inputs, hidden, outputs, activation, shared, seed, layer_norm=False):
    layers, actor, critic, size = actor_critic(inputs, hidden, outputs, activation, shared, layer_norm)
    rng = np.random.default_rng(seed)
    parameters = (rng.standard_normal(size) / np.sqrt(max(hidden, default=inputs))).astype(np.float32)
    observation = (2 * rng.standard_normal((64, inputs))).astype(np.float32)
    grads = [rng.standard_normal((64, n)).astype(np.float32) for n in (outputs, 1)]
    return layers, (actor, critic), size, parameters, observation, grads


@settings(max_examples=25)
@given(
    inputs=st.integers(1, 40),
    hidden=st.lists(st.integers(1, 130), max_size=4),
    outputs=st.integers(1, 19),
    activation=st.sampled_from(sorted(set(CODES) - {IDENTITY})),
    shared=st.booleans(),
    layer_norm=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_outputs_and_gradients_are_torchs(inputs, hidden, outputs, activation, shared, layer_norm, seed):
    layers, ends, size, *rest = case(inputs, hidden, outputs, activation, shared, seed, layer_norm)
    mine, gradient = by_kernel(layers, ends, size, *rest)
    truth, true_gradient = by_torch(layers, ends, *rest)
    theirs, their_gradient = by_torch(layers, ends, *rest, torch.float32)
    ours, others = (*mine, gradient), (*theirs, their_gradient)
    for a, b, exact in zip(ours, others, (*truth, true_gradient), strict=True):
        # normalising a nearly constant row makes rounding errors large, torch's in float32 too
        tolerance = 5e-6 * max(1, np.abs(exact).max()) + 16 * np.abs(b - exact).max()
        np.testing.assert_allclose(a, exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("activation", sorted(set(CODES) - {IDENTITY}))
def test_nan_reaches_outputs_and_gradients_of_its_sample_alone(activation):
    layers, ends, size, parameters, observation, grads = case(3, [20, 20], 2, activation, True, 0)
    observation[5, 1] = np.nan
    mine, gradient = by_kernel(layers, ends, size, parameters, observation, grads)
    for output in mine:
        assert np.isnan(output[5]).all()
        assert np.isfinite(np.delete(output, 5, 0)).all()
    assert np.isnan(gradient[layers[0].weight : layers[0].weight + 60].reshape(20, 3)[:, 1]).all()


def test_every_activation_is_torchs_everywhere():
    x = np.linspace(-12, 12, 64, dtype=np.float32)
    for name in sorted(CODES):
        layers, parameters = [Layer(OBSERVATION, 1, 1, 0, 1, name)], np.array([1, 0], np.float32)
        grads = [np.eye(64, dtype=np.float32)[i][:, None] for i in (10, 31, 32, 50)]
        for grad in grads:
            mine, gradient = by_kernel(layers, (0,), 2, parameters, x[:, None], [grad])
            theirs, truth = by_torch(layers, (0,), parameters, x[:, None], [grad])
            np.testing.assert_allclose(mine[0], theirs[0], atol=2e-6, err_msg=name)
            np.testing.assert_allclose(gradient, truth, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", sorted(CODES))
def test_the_slope_far_from_0_is_torchs(name):
    x = np.array([sign * 10.0**power for sign in (1, -1) for power in range(1, 33)], np.float32)
    layers, parameters = [Layer(OBSERVATION, 1, 1, 0, 1, name)], np.array([1, 0], np.float32)
    for i in range(64):
        grad = np.eye(64, dtype=np.float32)[i][:, None]
        _, (_, slope) = by_kernel(layers, (0,), 2, parameters, x[:, None], [grad])  # the bias's gradient
        _, (_, expected) = by_torch(layers, (0,), parameters, x[:, None], [grad])
        np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6, err_msg=f"{name} at {x[i]}")


def test_a_layer_that_does_not_fit_its_source():
    with pytest.raises(ValueError, match="does not have as many inputs"):
        network([Layer(OBSERVATION, 3, 4, 0, 12), Layer(0, 5, 1, 16, 21)])
