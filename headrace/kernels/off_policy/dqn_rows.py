"""The learning call of DQN for a minibatch of one block, whose parts are rows of layers.

Of a small minibatch the weights are most of what a gradient step reads and writes. So a thread keeps to its share of
every hidden layer: it computes these outputs for all samples, their weights' gradient and Adam's step, and no other
thread ever reads or writes these weights. Threads exchange what belongs to samples: outputs of hidden layers and, where
a sum is over rows of several shares, each share's part of it. (kernels.off_policy.dqn divides samples, and its Adam
waits for each weight that the other thread has read.) The last layer, with few outputs, is shared by its inputs.

There are always SHARES, of which two threads have two each. Then a thread adds up its two shares' parts of a sum, and
the other one reads half as much; the sums are the same: the number of threads changes no bit.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.nn import layer_table as col
from headrace.kernels.nn.activations import activation_backward
from headrace.kernels.nn.adam_step import load_scale, squares
from headrace.kernels.nn.dense import ZERO, add, clear, combine, transpose
from headrace.kernels.nn.layout import BLOCK, WIDTH
from headrace.kernels.nn.simd import fma, load, splat, store, total
from headrace.kernels.nn.stepwise import adam_with_target, forward_some
from headrace.kernels.nn.stepwise_layout import CHUNK_ROWS
from headrace.kernels.off_policy import dqn_arguments as slots
from headrace.kernels.off_policy.dqn import best_value, loss, prepare_adam, take_inputs
from headrace.kernels.off_policy.dqn_arguments import SHARES
from headrace.kernels.runtime.jit import ENTRY, INNER, njit
from headrace.kernels.runtime.work_queue import close, threads_of, work_loop

F, U = np.float32, np.uint64
_0, _1, _2, _3 = U(0), U(1), U(2), U(3)
_ZERO = F(0)
FORWARD, BACKWARD, ADAM, GO_ON = range(4)  # tasks; GO_ON: ADAM, and FORWARD of the next minibatch
_TASK, _BATCH, _LAYER, _PAIRS = _0, _1, _2, _3  # indices in DQNArguments.task
NOW, NEXT, PREFERRED = _0, _1, _2  # rows of scratch: the network on observations, its target and itself on next ones


@njit(**INNER)
def _last(arguments):
    """The number of the last layer."""
    return U(len(arguments.layers)) - _1


@njit(**INNER)
def _passes(arguments):
    """How many networks are evaluated on a block."""
    return U(2) + arguments.double


@njit(**INNER)
def _range(count, share):
    """The first of a share's rows, of so many, and the one after its last: whole vectors."""
    size = (count + SHARES * WIDTH - _1) // (SHARES * WIDTH) * WIDTH
    return min(share * size, count), min((share + _1) * size, count)


@njit(**INNER)
def _parameters(arguments, which):
    return arguments.weights.target if which == NEXT else arguments.weights.parameters


@njit(**INNER)
def _sum_over_share(weight, w, row, column, rows, count, source, s, target, t, lanes):
    """A share's part of a product, as in dense.multiply(), whose sums are over so many of its rows: 0 of none."""
    if count == _0:
        clear(target, t, rows * lanes)
    else:
        combine(ZERO, _0, weight, w, row, column, rows, count, source, s, lanes, target, t, lanes, lanes)


@njit(**INNER)
def _forward(arguments, share):
    """A share's outputs of layer task[LAYER] in all networks; behind the last hidden layer, its part of the values."""
    layers, n = arguments.layers, U(arguments.task[_LAYER])
    lanes, (first, end), last = arguments.lanes, _range(layers[n, col.OUTPUTS], share), _last(arguments)
    for which in range(_0, _passes(arguments)):
        block, parameters = arguments.scratch[which], _parameters(arguments, which)
        for r in range(first, end, CHUNK_ROWS):
            forward_some(layers, n, parameters, block, r, min(CHUNK_ROWS, end - r))
        if n + _1 == last:
            row, width = which * arguments.actions * lanes, layers[last, col.INPUTS]
            _sum_over_share(
                parameters, layers[last, col.WEIGHT] + first, width, _1, arguments.actions, end - first,
                block, layers[n, col.OUTPUT] + first * lanes, arguments.partial[share], row, lanes,
            )  # fmt: skip
    if first < end:  # as the factor of the next layer's gradient
        block, target = arguments.scratch[NOW], layers[n + _1, col.TRANSPOSED] + first
        source = layers[n, col.OUTPUT] + first * lanes
        transpose(block, source, end - first, target, layers[n + _1, col.STRIDE], lanes)


@njit(**INNER)
def _values(arguments):
    """The last layer's outputs, from all shares' parts of them."""
    layers, last, lanes = arguments.layers, _last(arguments), arguments.lanes
    for which in range(_0, _passes(arguments)):
        block, parameters = arguments.scratch[which], _parameters(arguments, which)
        for k in range(_0, arguments.actions):
            bias, row = parameters[layers[last, col.BIAS] + k], (which * arguments.actions + k) * lanes
            for i in range(_0, lanes, WIDTH):
                value = splat(bias)
                for share in range(_0, SHARES):
                    value = value + load(arguments.partial[share], row + i)
                store(block, layers[last, col.OUTPUT] + k * lanes + i, value)


@njit(**INNER)
def _errors(arguments):
    """TD errors, and the gradient of their loss at the last layer's outputs."""
    _values(arguments)
    row, target = U(arguments.task[_BATCH]) * BLOCK, arguments.scratch[NEXT]
    preferred = arguments.scratch[PREFERRED if arguments.double else NEXT]
    for i in range(_0, arguments.lanes, WIDTH):
        best, reward = best_value(arguments, preferred, target, i), load(arguments.reward, row + i)
        store(arguments.error, row + i, fma(load(arguments.discount, row + i), best, reward))
    loss(arguments, arguments.scratch[NOW], row)


@njit(**INNER)
def _parts(arguments, n):
    """All shares' parts of the gradient at layer n's outputs: apart from those of the layer before, which a share may
    write while another one reads these."""
    return arguments.partial[n % _2 * SHARES : (n % _2 + _1) * SHARES]


@njit(**INNER)
def _add_parts(arguments, n, first, count):
    """Gradients at outputs of hidden layer n, from all shares' parts of them."""
    block, parts, grad = arguments.scratch[NOW], _parts(arguments, n), arguments.layers[n, col.OUTPUT_GRAD]
    paired = arguments.task[_PAIRS] > 0
    for i in range(first, first + count, WIDTH):
        value, other = load(parts[_0], i), load(parts[_2], i)
        if not paired:
            value, other = value + load(parts[_1], i), other + load(parts[_3], i)
        store(block, grad + i, value + other)


@njit(**INNER)
def _at_outputs(arguments, n, first, end):
    """A share's gradients before the activation of layer n."""
    layers, block, lanes, last = arguments.layers, arguments.scratch[NOW], arguments.lanes, _last(arguments)
    grad, row, count = layers[n, col.OUTPUT_GRAD], first * lanes, (end - first) * lanes
    if n + _1 == last:
        combine(
            ZERO, _0, arguments.weights.parameters, layers[last, col.WEIGHT] + first, _1, layers[last, col.INPUTS],
            end - first, arguments.actions, block, layers[last, col.OUTPUT_GRAD], lanes,
            block, grad + row, lanes, lanes,
        )  # fmt: skip
    else:
        _add_parts(arguments, n, row, count)
    output, derivative = layers[n, col.OUTPUT] + row, layers[n, col.ACTIVATION_GRAD] + row
    activation_backward(layers[n, col.ACTIVATION], block, grad + row, output, derivative, count)


@njit(**INNER)
def _product(arguments, n, grad, rows, column, width, start, buffer):
    """The gradient of some of layer n's weights: of `rows` outputs, whose gradients begin at `grad`, and of `width`
    inputs from `column` on, into arguments.gradient[start:]; the sum of its squares."""
    layers, block, lanes, gradient = arguments.layers, arguments.scratch[NOW], arguments.lanes, arguments.gradient
    inputs, stride, found = layers[n, col.INPUTS], layers[n, col.STRIDE], _ZERO
    source, whole = layers[n, col.TRANSPOSED] + column, (width + WIDTH - _1) // WIDTH * WIDTH
    if whole == width:
        combine(
            ZERO, _0, block, grad, lanes, _1, rows, lanes, block, source, stride, gradient, start, inputs, width,
        )  # fmt: skip
    else:
        combine(
            ZERO, _0, block, grad, lanes, _1, rows, lanes, block, source, stride, buffer, _0, whole, whole,
        )  # fmt: skip
        for r in range(_0, rows):
            for i in range(_0, width):
                gradient[start + r * inputs + i] = buffer[r * whole + i]
    for r in range(_0, rows):
        found += squares(gradient, start + r * inputs, width)
    return found


@njit(**INNER)
def _bias_gradient(arguments, n, first, end):
    """The gradient of layer n's biases; the sum of its squares."""
    layers, lanes, block = arguments.layers, arguments.lanes, arguments.scratch[NOW]
    bias, found = layers[n, col.BIAS], _ZERO
    for r in range(first, end):
        at = layers[n, col.OUTPUT_GRAD] + r * lanes
        summed = load(block, at)
        for i in range(WIDTH, lanes, WIDTH):
            summed = summed + load(block, at + i)
        value = total(summed)
        arguments.gradient[bias + r] = value
        found += value * value
    return found


@njit(**INNER)
def _gradient(arguments, n, first, end, buffer):
    """The gradient of a share's weights and biases of a hidden layer; the sum of its squares."""
    layers, found = arguments.layers, _bias_gradient(arguments, n, first, end)
    inputs = layers[n, col.INPUTS]
    for r in range(first, end, CHUNK_ROWS):
        rows, grad = min(CHUNK_ROWS, end - r), layers[n, col.OUTPUT_GRAD] + r * arguments.lanes
        found += _product(arguments, n, grad, rows, _0, inputs, layers[n, col.WEIGHT] + r * inputs, buffer)
    return found


@njit(**INNER)
def _backward(arguments, share, buffer):
    """From the gradient at the outputs of layer task[LAYER]: that of a share's weights, and its part of the gradient
    at the inputs."""
    layers, n = arguments.layers, U(arguments.task[_LAYER])
    lanes, (first, end), last = arguments.lanes, _range(layers[n, col.OUTPUTS], share), _last(arguments)
    _at_outputs(arguments, n, first, end)
    found = _gradient(arguments, n, first, end, buffer)
    if n + _1 == last:
        for k in range(_0, arguments.actions, CHUNK_ROWS):
            grad, rows = layers[last, col.OUTPUT_GRAD] + k * lanes, min(CHUNK_ROWS, arguments.actions - k)
            start = layers[last, col.WEIGHT] + k * layers[last, col.INPUTS] + first
            found += _product(arguments, last, grad, rows, first, end - first, start, buffer)
        if share == _0:
            found += _bias_gradient(arguments, last, _0, arguments.actions)
        arguments.sums[share] = found
    else:
        arguments.sums[share] += found
    if n == _0:
        return
    inputs, part = layers[n, col.INPUTS], _parts(arguments, n - _1)[share]
    for i in range(_0, inputs, CHUNK_ROWS):
        _sum_over_share(
            arguments.weights.parameters, layers[n, col.WEIGHT] + first * inputs + i, _1, inputs,
            min(CHUNK_ROWS, inputs - i), end - first,
            arguments.scratch[NOW], layers[n, col.OUTPUT_GRAD] + first * lanes, part, i * lanes, lanes,
        )  # fmt: skip


@njit(**INNER)
def _adam(arguments, share):
    """Adam's step of a share's weights, and where tau is not 0 the target's update."""
    layers, gradient, weights, numbers = arguments.layers, arguments.gradient, arguments.weights, arguments.numbers
    scale, eps, tau, last = load_scale(numbers, slots.SCALE), numbers[slots.EPS], numbers[slots.TAU], _last(arguments)
    for n in range(_0, last):
        first, end = _range(layers[n, col.OUTPUTS], share)
        inputs, bias = layers[n, col.INPUTS], layers[n, col.BIAS] + first
        start = layers[n, col.WEIGHT] + first * inputs
        adam_with_target(weights, start, gradient, start, (end - first) * inputs, scale, eps, tau)
        adam_with_target(weights, bias, gradient, bias, end - first, scale, eps, tau)
    first, end = _range(layers[last, col.INPUTS], share)
    for k in range(_0, arguments.actions):
        start = layers[last, col.WEIGHT] + k * layers[last, col.INPUTS] + first
        adam_with_target(weights, start, gradient, start, end - first, scale, eps, tau)
    if share == _0:
        bias = layers[last, col.BIAS]
        adam_with_target(weights, bias, gradient, bias, arguments.actions, scale, eps, tau)


@njit(**INNER)
def _do(arguments, share, buffer):
    """A share of the current task."""
    task = arguments.task[_TASK]
    if task == FORWARD:
        _forward(arguments, share)
    elif task == BACKWARD:
        _backward(arguments, share, buffer)
    else:
        _adam(arguments, share)
        if task == GO_ON:
            _forward(arguments, share)


@njit(**INNER)
def _work(part, worker, arguments):
    """Do a share, or a pair of shares, of the current task."""
    buffer, n = arguments.gradient_scratch[worker], U(arguments.task[_LAYER])
    if arguments.task[_PAIRS] == 0:
        _do(arguments, part, buffer)
        return
    _do(arguments, part * _2, buffer)
    _do(arguments, part * _2 + _1, buffer)
    if arguments.task[_TASK] == BACKWARD and n > _0:
        parts = _parts(arguments, n - _1)
        add(parts[part * _2], parts[part * _2 + _1], _0, arguments.layers[n, col.INPUTS] * arguments.lanes)


_run_task, _serve = work_loop(_work)


@njit(**INNER)
def _run(arguments, state, task, layer):
    """Run a task to its end. Main thread only, as what follows."""
    arguments.task[_TASK], arguments.task[_LAYER] = task, np.int64(layer)
    _run_task(state, SHARES // _2 if arguments.task[_PAIRS] else SHARES, arguments)


@njit(**INNER)
def _take(arguments, g):
    """The inputs of all networks."""
    take_inputs(arguments, arguments.scratch[NOW], arguments.observation, g, _0)
    for which in range(_1, _passes(arguments)):
        take_inputs(arguments, arguments.scratch[which], arguments.next_observation, g, _0)
    layers, block = arguments.layers, arguments.scratch[NOW]
    transpose(
        block, layers[_0, col.SOURCE], arguments.features, layers[_0, col.TRANSPOSED], layers[_0, col.STRIDE],
        arguments.lanes,
    )  # fmt: skip


@njit(**INNER)
def _step(arguments, state, g, settings, tau, last_one):
    """A gradient step on minibatch g, of which the first layer is done, and the first layer of the next."""
    arguments.task[_BATCH], last = np.int64(g), _last(arguments)
    for n in range(_1, last):
        _run(arguments, state, FORWARD, n)
    _errors(arguments)
    for back in range(_0, last):
        _run(arguments, state, BACKWARD, last - _1 - back)
    prepare_adam(arguments, g, settings, tau, SHARES)
    if not last_one:
        _take(arguments, g + _1)
    _run(arguments, state, ADAM if last_one else GO_ON, _0)


@njit(**ENTRY)
def learn(worker, state, arguments, settings, update):
    """As kernels.off_policy.dqn.learn()."""
    if worker != 0:
        _serve(worker, state, arguments)
        return
    steps, arguments.task[_PAIRS] = U(len(update)), np.int64(threads_of(state) <= 2)
    _take(arguments, _0)
    _run(arguments, state, FORWARD, _0)
    for g in range(_0, steps):
        _step(arguments, state, g, settings, update[g], g + _1 == steps)
    close(state)
