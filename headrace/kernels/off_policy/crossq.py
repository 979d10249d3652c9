"""The whole learning call of CrossQ compiled: critics on current and next samples together, actor, temperature, Adam.

Batch renormalisation needs a feature's moments over all samples. So a part of a task is some rows of one layer, for all
blocks of samples, and the rows' norm follows at once; the next layer is the next task. Where the running moments
normalise, blocks are independent, and a part is a block in a pass through a whole network.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn import stepwise
from headrace.kernels.nn.activations import activation_backward
from headrace.kernels.nn.adam_step import BETA2, load_scale, scales, store_scale
from headrace.kernels.nn.dense import clear, copy
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, splat, store, total
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
from headrace.kernels.nn.vector_math import minimum
from headrace.kernels.off_policy import batch_renorm
from headrace.kernels.off_policy import batch_renorm_layout as norm_col
from headrace.kernels.off_policy import crossq_arguments as more
from headrace.kernels.off_policy import off_policy_arguments as slots
from headrace.kernels.off_policy.actor_losses import (
    act,
    actor_gradient,
    actor_loss,
    noise_of,
    place_of,
    temperature_step,
    total_of,
)
from headrace.kernels.off_policy.critic_losses import outputs_of, td_target, value_gradient
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, work_loop

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO, _HALF, _ONE = F(0), F(0.5), F(1)
# tasks: of the networks that task[ACTOR] says, then of the critics, then of the actor
INPUTS, FORWARD, BACKWARD, FACTORS, STEP, LOSSES, VALUES, VALUES_BACKWARD = range(8)
SAMPLES, NEXT_ACTIONS, ACTIONS, ACTOR_LOSS = range(8, 12)


@njit(**INNER)
def _nets(arguments):
    """The networks that the task is about."""
    if arguments.task[more.ACTOR]:
        return arguments.actors
    return arguments.pair


@njit(**INNER)
def _chunks(rows):
    """Parts of so many rows."""
    return (rows + CHUNK_ROWS - _1) // CHUNK_ROWS


@njit(**INNER)
def _inputs(arguments, nets, c):
    """Normalise the inputs of network c, of all blocks."""
    blocks, norms = arguments.scratch[: nets.blocks], nets.norms[c]
    features, weight = nets.layers[c, _0, col.INPUTS], arguments.weight_row
    batch_renorm.normalize(norms, _0, nets.weights.parameters, nets.renorm, blocks, _0, features, weight, nets.factor)


@njit(**INNER)
def _forward(arguments, nets, part):
    """Some rows of layer task[LAYER] of a network, of all blocks, and their norm."""
    n, blocks = U(arguments.task[more.LAYER]), arguments.scratch[: nets.blocks]
    chunks = _chunks(nets.layers[_0, n, col.OUTPUTS])
    layers, norms, first = nets.layers[part // chunks], nets.norms[part // chunks], part % chunks * CHUNK_ROWS
    parameters, weight = nets.weights.parameters, arguments.weight_row
    for b in range(_0, nets.blocks):
        stepwise.forward_rows(layers, n, parameters, blocks[b], first)
    if n + _1 < U(len(layers)):
        count = min(CHUNK_ROWS, layers[n, col.OUTPUTS] - first)
        batch_renorm.normalize(norms, n + _1, parameters, nets.renorm, blocks, first, count, weight, nets.factor)


@njit(**INNER)
def _backward(arguments, nets, part):
    """From the gradient before the activation of layer task[LAYER] of a network to that before the activation of the
    layer below, of some rows of what lies between, of all blocks."""
    n, blocks = U(arguments.task[more.LAYER]), arguments.scratch[: nets.blocks]
    chunks = _chunks(nets.layers[_0, n, col.INPUTS])
    layers, norms, first = nets.layers[part // chunks], nets.norms[part // chunks], part % chunks * CHUNK_ROWS
    parameters, count = nets.weights.parameters, min(CHUNK_ROWS, layers[n, col.INPUTS] - first)
    for b in range(_0, nets.blocks):
        stepwise.backward_rows(layers, n, parameters, blocks[b], first)
    batch_renorm.backward(
        norms, n, parameters, nets.renorm, nets.gradient, blocks, first, count, arguments.weight_row, nets.factor
    )
    if n > _0:
        for b in range(_0, nets.blocks):
            _pull_back(layers, n - _1, blocks[b], first, count)


@njit(**INNER)
def _pull_back(layers, n, block, first, count):
    """Gradient before layer n's activation, in place of that after it, of some rows of a block."""
    row = first * BLOCK
    output, grad = layers[n, col.OUTPUT] + row, layers[n, col.OUTPUT_GRAD] + row
    derivative = layers[n, col.ACTIVATION_GRAD] + row
    activation_backward(layers[n, col.ACTIVATION], block, grad, output, derivative, count * BLOCK)


@njit(**INNER)
def _forward_by_running(nets, c, block):
    """A pass of network c through a block, normalised by the running moments."""
    layers, norms, parameters = nets.layers[c], nets.norms[c], nets.weights.parameters
    for n in range(_0, U(len(layers))):
        batch_renorm.normalize_by_running(norms, n, parameters, nets.renorm, block)
        for first in range(_0, layers[n, col.OUTPUTS], CHUNK_ROWS):
            stepwise.forward_rows(layers, n, parameters, block, first)


@njit(**INNER)
def _backward_by_running(nets, c, block):
    """Gradient at the inputs of _forward_by_running() in a block, from that at its outputs."""
    layers, norms, parameters = nets.layers[c], nets.norms[c], nets.weights.parameters
    for back in range(_0, U(len(layers))):
        n = U(len(layers)) - _1 - back
        for first in range(_0, layers[n, col.INPUTS], CHUNK_ROWS):
            stepwise.backward_rows(layers, n, parameters, block, first)
        batch_renorm.backward_by_running(norms, n, parameters, nets.renorm, block)
        if n > _0:
            _pull_back(layers, n - _1, block, _0, layers[n, col.INPUTS])


@njit(**INNER)
def _step(arguments, nets, part, buffer):
    """Gradient and Adam step of a weight chunk; then of a norm's weight and bias."""
    actor, numbers = arguments.task[more.ACTOR] > 0, arguments.numbers
    scale = load_scale(numbers, slots.ACTOR_SCALE if actor else slots.CRITICS_SCALE)
    eps = numbers[slots.ACTOR_EPS if actor else slots.CRITICS_EPS]
    place = more.ACTOR_BETA if actor else more.CRITICS_BETA
    weights, chunks = nets.weights, U(len(nets.chunks))
    betas = (numbers[place], numbers[place + _1])
    if part < chunks:
        c, n, first = nets.chunks[part]
        blocks = arguments.scratch[: nets.blocks]
        stepwise.backward_and_step(nets.layers[c], n, first, blocks, buffer, weights, scale, eps, _ZERO, betas)
        return
    c, k = (part - chunks) // U(nets.norms.shape[1]), (part - chunks) % U(nets.norms.shape[1])
    for which in (norm_col.WEIGHT, norm_col.BIAS):
        start, count = nets.norms[c, k, which], nets.norms[c, k, norm_col.FEATURES]
        stepwise.adam_with_target(weights, start, nets.gradient, start, count, scale, eps, _ZERO, betas)


@njit(**INNER)
def _samples(arguments, part):
    """The critics' inputs in a block, of which next actions are still missing, and the samples' weights."""
    b, block, batches = part % arguments.blocks, arguments.scratch[part], arguments.batches
    features, at, size = arguments.features, place_of(arguments, b), arguments.features * BLOCK
    copy(block, arguments.weight_row, batches.loss_weight, at, BLOCK)
    if part < arguments.blocks:
        copy(block, _0, batches.observation, at * features, size)
        copy(block, size, batches.action, at * arguments.actions, arguments.actions * BLOCK)
    else:
        copy(block, _0, batches.next_observation, at * features, size)


@njit(**INNER)
def _losses(arguments, part):
    """The loss of one critic on a block of current samples, and its gradient at the outputs; next samples, which only
    take part in the moments, have none there."""
    c, b = part // arguments.blocks, part % arguments.blocks
    block, later, at = arguments.scratch[b], arguments.scratch[arguments.blocks + b], place_of(arguments, b)
    layer, loss = arguments.critics[c, -1], splat(_ZERO)
    for i in range(_0, BLOCK, WIDTH):
        lowest = load(later, arguments.critics[_0, -1, col.OUTPUT] + i)
        for other in range(_1, U(len(arguments.critics))):
            lowest = minimum(lowest, load(later, arguments.critics[other, -1, col.OUTPUT] + i))
        error = load(block, layer[col.OUTPUT] + i) - td_target(arguments, later, lowest, at, i)
        grad = error * load(arguments.batches.loss_weight, at + i)
        loss = fma(error, grad, loss)
        store(block, layer[col.OUTPUT_GRAD] + i, grad)
    clear(later, layer[col.OUTPUT_GRAD], BLOCK)
    arguments.sums[part, _0] = total(loss) * _HALF


@njit(**INNER)
def _next_actions(arguments, b):
    """Next actions of a block, behind the next observations."""
    block = arguments.scratch[arguments.blocks + b]
    _forward_by_running(arguments.actors, _0, block)
    act(arguments, block, noise_of(arguments, _0, b))


@njit(**INNER)
def _values(arguments, part):
    """What one critic makes of the actor's actions in a block, into the extra rows."""
    c, block = part // arguments.blocks, arguments.scratch[part % arguments.blocks]
    _forward_by_running(arguments.pair, c, block)
    copy(block, outputs_of(arguments, c), block, arguments.critics[c, -1, col.OUTPUT], BLOCK)


@njit(**INNER)
def _values_backward(arguments, part):
    """Gradients, at the actor's actions in a block, of one critic's part in the value of the actor's loss."""
    c, b = part // arguments.blocks, part % arguments.blocks
    value_gradient(arguments, c, arguments.scratch[b], place_of(arguments, b))
    _backward_by_running(arguments.pair, c, arguments.scratch[b])


@njit(**INNER)
def _work(part, worker, arguments):
    """Do a part of the current task."""
    task, nets = arguments.task[slots.TASK], _nets(arguments)
    if task == INPUTS:
        _inputs(arguments, nets, part)
    elif task == FORWARD:
        _forward(arguments, nets, part)
    elif task == BACKWARD:
        _backward(arguments, nets, part)
    elif task == FACTORS:
        c, b = part // nets.blocks, part % nets.blocks
        stepwise.prepare_gradient(nets.layers[c], arguments.scratch[b], nets.weights.packed, b, nets.blocks)
    elif task == STEP:
        _step(arguments, nets, part, arguments.gradient_scratch[worker])
    elif task == SAMPLES:
        _samples(arguments, part)
    elif task == NEXT_ACTIONS:
        _next_actions(arguments, part)
    elif task == LOSSES:
        _losses(arguments, part)
    elif task == ACTIONS:
        act(arguments, arguments.scratch[part], noise_of(arguments, _1, part))
    elif task == VALUES:
        _values(arguments, part)
    elif task == VALUES_BACKWARD:
        _values_backward(arguments, part)
    else:
        actor_loss(arguments, part)
        actor_gradient(arguments, part)


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(arguments, state, task, parts):
    """Run a task to its end. Main thread only, as all that follows."""
    arguments.task[slots.TASK] = task
    _run_task(state, parts, arguments)


@njit(**INNER)
def _pass_forward(arguments, state, nets):
    """A pass of all samples, normalised by their moments."""
    number = U(len(nets.layers))
    _run(arguments, state, INPUTS, number)
    for n in range(_0, U(nets.layers.shape[1])):
        arguments.task[more.LAYER] = n
        _run(arguments, state, FORWARD, number * _chunks(nets.layers[_0, n, col.OUTPUTS]))
    for k in range(len(nets.renorm.batches)):
        nets.renorm.batches[k] += _ONE


@njit(**INNER)
def _pass_backward(arguments, state, nets):
    """Gradients of all parameters, from those at the outputs, and Adam's step."""
    number, depth = U(len(nets.layers)), U(nets.layers.shape[1])
    for back in range(_0, depth):
        n = depth - _1 - back
        arguments.task[more.LAYER] = n
        _run(arguments, state, BACKWARD, number * _chunks(nets.layers[_0, n, col.INPUTS]))
    _run(arguments, state, FACTORS, number * nets.blocks)
    _run(arguments, state, STEP, U(len(nets.chunks)) + number * depth)


@njit(**INNER)
def _critics_step(arguments, state, settings, g):
    """A gradient step of the critics; their loss."""
    numbers, blocks = arguments.numbers, arguments.blocks
    arguments.task[more.ACTOR] = 0
    _run(arguments, state, SAMPLES, _2 * blocks)
    _run(arguments, state, NEXT_ACTIONS, blocks)
    _pass_forward(arguments, state, arguments.pair)
    number = U(len(arguments.critics)) * blocks
    _run(arguments, state, LOSSES, number)
    step = settings.critics_steps + np.float64(g) + 1.0
    store_scale(
        numbers, slots.CRITICS_SCALE, scales(0.0, step, settings.critics_rate, 1.0, BETA2, settings.critics_beta)
    )
    _pass_backward(arguments, state, arguments.pair)
    return total_of(arguments, _0, number, _0)


@njit(**INNER)
def _actor_step(arguments, state, settings, taken):
    """A gradient step of the actor, after so many in this call; its loss."""
    numbers, number = arguments.numbers, U(len(arguments.critics)) * arguments.blocks
    arguments.task[more.ACTOR] = 1
    _pass_forward(arguments, state, arguments.actors)
    _run(arguments, state, ACTIONS, arguments.blocks)
    _run(arguments, state, VALUES, number)
    _run(arguments, state, VALUES_BACKWARD, number)
    _run(arguments, state, ACTOR_LOSS, arguments.blocks)
    step = settings.actor_steps + np.float64(taken) + 1.0
    store_scale(numbers, slots.ACTOR_SCALE, scales(0.0, step, settings.actor_rate, 1.0, BETA2, settings.actor_beta))
    _pass_backward(arguments, state, arguments.actors)
    return total_of(arguments, number, arguments.blocks, _0)


@njit(**INNER)
def _gradient_steps(arguments, state, settings, temperature, metrics):
    """All gradient steps. Metrics of the actor and of the temperature are 0 where they take no step."""
    numbers, width, taken = arguments.numbers, U(slots.METRICS), 0
    for place, beta in ((more.ACTOR_BETA, settings.actor_beta), (more.CRITICS_BETA, settings.critics_beta)):
        numbers[place], numbers[place + _1] = F(beta), F(1.0 - beta)
    number = U(len(arguments.critics)) * arguments.blocks
    for g in range(_0, U(len(metrics)) // width):
        arguments.task[slots.BATCH] = np.int64(g)
        numbers[slots.TEMPERATURE] = F(math.exp(temperature.parameters[_0]))
        metrics[g * width + _1] = _critics_step(arguments, state, settings, g)
        metrics[g * width + _2] = numbers[slots.TEMPERATURE]
        metrics[g * width] = metrics[g * width + _3] = _ZERO
        if (settings.since + np.int64(g) + 1) % settings.delay == 0:
            metrics[g * width] = _actor_step(arguments, state, settings, taken)
            temperature_step(arguments, g, taken, settings, temperature, metrics, number)
            taken += 1


@njit(**ENTRY)
def learn(worker, state, arguments, settings, temperature, metrics):
    """A gradient step on each of the batches; metrics: float32 [G * METRICS].

    worker, state: as in headrace.kernels.learning.rollouts.learn. temperature: Weights of its logarithm."""
    if worker == 0:
        _gradient_steps(arguments, state, settings, temperature, metrics)
        close(state)
    else:
        _serve(worker, state, arguments)
