"""Text of CUDA kernels for an actor and a critic, each with hidden layers of its own: `act`, and `gradient`, of PPO's
loss in a minibatch.

Even blocks compute the actor and odd ones the critic: neither needs anything of the other. The text is made for one
architecture, with all sizes in it.
"""

from __future__ import annotations

import re
from textwrap import indent
from typing import NamedTuple

from headrace.kernels.cuda.heads_text import CATEGORICAL, GAUSSIAN
from headrace.kernels.cuda.layers_text import Tile, layers_text
from headrace.kernels.nn.layout import Layer

LARGEST = 88.0  # as headrace.algorithms.ppo.LARGEST
SHARED = 48 * 1024  # bytes of shared memory that every GPU gives a block
SUMS = 5  # of a minibatch: gain, error of values, entropy, clipped, divergence


class Architecture(NamedTuple):
    """Layers that the kernels are made for. actor, critic: hidden layers, of one activation, and the last one. log_std:
    offset of the Gaussian's parameters; None for a categorical distribution. start: the number of the first choice."""

    actor: tuple[Layer, ...]
    critic: tuple[Layer, ...]
    log_std: int | None
    start: int

    @property
    def choices(self) -> int:
        return self.actor[-1].outputs

    def entries(self) -> int:
        """Count of numbers of a row that a block keeps in shared memory."""
        widths = [layers[0].inputs + sum(layer.outputs for layer in layers) for layers in (self.actor, self.critic)]
        return max(widths[0] + (self.choices if self.log_std is not None else 0), widths[1], SUMS)


ROWS = (64, 32)  # of a tile; the larger one where it fits
SIMULATED = Tile(4, 2, 2)


def tile_of(architecture: Architecture, rows: int, multiprocessors: int) -> Tile | None:
    """Choose how blocks divide so many rows. None where no tile fits in a block's shared memory. multiprocessors: of
    the GPU; 0 in the simulator."""
    fitting = [size for size in ROWS if 4 * architecture.entries() * (size + 1) <= SHARED]
    if not fitting:
        return None
    if not multiprocessors:
        return SIMULATED
    # few blocks: each is done sooner with more threads. On an H100 an iteration of 256 environments and minibatches of
    # 2,048 rows takes 1.50 ms with 16 groups and 1.84 with 8; one of 16,384 and 131,072 takes 13.7 and 11.5.
    few = 2 * -(-rows // fitting[0]) <= multiprocessors
    return Tile(32, 16 if few else 8, fitting[0] // 32)


def actor_critic_text(architecture: Architecture, tile: Tile, kernel: str) -> str:
    """The text of a kernel, which follows that of headrace.kernels.language.ops.prelude(). kernel: "act" or
    "gradient"."""
    actor, critic = architecture.actor, architecture.critic
    out, value = (_places(layers)[-1][1] for layers in (actor, critic))
    constants = f"""\
FEATURES, CHOICES, START = U64({actor[0].inputs}), U64({architecture.choices}), I32({architecture.start})
OUT, SPARE, VALUE = U64({out}), U64({out + architecture.choices}), U64({value})
LOG_STD, FLOATS = U64({architecture.log_std or 0}), {architecture.entries() * (tile.rows + 1)}
LARGEST = F32({LARGEST})
"""
    head = CATEGORICAL if architecture.log_std is None else GAUSSIAN
    spread = ["row_sums(acts, SPARE, partial[worker], LOG_STD, CHOICES, add)"]
    lines = {
        "ACTOR_FORWARD": _forward(actor),
        "CRITIC_FORWARD": _forward(critic),
        "ACTOR_BACKWARD": _backward(actor),
        "CRITIC_BACKWARD": _backward(critic),
        "STD_GRADIENT": ["pass"] if architecture.log_std is None else spread,
    }
    text = re.sub(
        r"^( *)([A-Z]+_[A-Z]+)$",
        lambda found: indent("\n".join(lines[found[2]]), found[1]),
        ACT if kernel == "act" else GRADIENT,
        flags=re.M,
    )
    return layers_text(tile, actor[0].activation) + constants + head + text


def _places(layers: tuple[Layer, ...]) -> list[tuple[int, int]]:
    """The first input and the first output of each layer among the entries."""
    places, source = [], 0
    for layer in layers:
        places.append((source, source + layer.inputs))
        source += layer.inputs
    return places


def _forward(layers: tuple[Layer, ...]) -> list[str]:
    lines = []
    for layer, (source, target) in zip(layers, _places(layers), strict=True):
        name = "readout" if layer is layers[-1] else "hidden"
        sizes = _numbers(source, target), _numbers(layer.weight, layer.bias, layer.inputs, layer.outputs)
        lines += [f"{name}(acts, {sizes[0]}, weights, {sizes[1]})", "cuda.syncthreads()"]
    return lines


def _backward(layers: tuple[Layer, ...]) -> list[str]:
    lines = []
    for layer, (source, target) in reversed([*zip(layers, _places(layers), strict=True)]):
        places = _numbers(source, target)
        sizes = _numbers(layer.weight, layer.bias, layer.inputs, layer.outputs)
        lines += [f"layer_gradient(acts, {places}, partial[worker], {sizes}, add)", "cuda.syncthreads()"]
        if layer is not layers[0]:
            sizes = _numbers(layer.weight, layer.inputs, layer.outputs)
            lines += [f"hidden_gradient(acts, {places}, weights, {sizes})", "cuda.syncthreads()"]
    return lines


def _numbers(*numbers: int) -> str:
    return ", ".join(f"U64({number})" for number in numbers)


ACT = '''

@cuda.jit(cache=True)
def act(
    weights, observation, first_row, count, center, scale, limit, spread, random, t, sampled,
    action, log_prob, value, value_center, value_scale, first_row_out, first_net, nets,
):
    """Of `count` observations, the columns from first_row on of observation [F, *]: actions with their log-probability
    by draws random[t], and values; in columns from first_row_out on. nets: 1 for values alone, with first_net 1."""
    acts = cuda.shared.array(FLOATS, F32)
    net = U64(first_net) + U64(cuda.blockIdx.x) % U64(nets)
    begin = U64(cuda.blockIdx.x) // U64(nets) * ROWS
    k = _thread()
    while k < FEATURES * ROWS:
        f, r = k // ROWS, k % ROWS
        n = min(begin + r, U64(count) - U64(1))
        x = (observation[f, U64(first_row) + n] - center[f]) * scale[f]
        acts[f * PITCH + r] = min(max(x, -limit), limit)
        k += THREADS
    cuda.syncthreads()
    r = _thread()
    n = begin + r
    row = U64(first_row_out) + n
    if net == U64(0):
        ACTOR_FORWARD
        if r < ROWS and n < U64(count):
            log_prob[row] = draw(acts, r, weights, spread, random, U64(t), n, sampled, action, row)
    else:
        CRITIC_FORWARD
        if r < ROWS and n < U64(count):
            value[row] = value_center[U64(0)] + value_scale[U64(0)] * acts[VALUE * PITCH + r]
'''

GRADIENT = '''

@cuda.jit(cache=True)
def gradient(
    weights, partial, sums, order, first, size, minibatch, observation, center, scale, limit, spread,
    action, log_prob, value, advantage, returns, valid, share, value_center, value_scale,
    clip, value_clip, value_coef, entropy_coef,
):
    """Of the rows order[first:first + size]: partial [W, P], parts of the gradient, whose sum over W it is; and
    sums [W, 5]. share[minibatch]: 1 / number of valid rows. W: half of the blocks."""
    acts = cuda.shared.array(FLOATS, F32)
    net, worker, workers = U64(cuda.blockIdx.x) % U64(2), U64(cuda.blockIdx.x) // U64(2), U64(cuda.gridDim.x) // U64(2)
    r = _thread()
    weight = share[U64(minibatch)]
    a, b, c, d = F32(0.0), F32(0.0), F32(0.0), F32(0.0)  # this thread's parts of the sums
    add = False
    begin = worker * ROWS
    while begin < U64(size):
        k = _thread()
        while k < FEATURES * ROWS:
            f = k // ROWS
            row = U64(order[U64(first) + min(begin + k % ROWS, U64(size) - U64(1))])
            x = (observation[f, row] - center[f]) * scale[f]
            acts[f * PITCH + k % ROWS] = min(max(x, -limit), limit)
            k += THREADS
        cuda.syncthreads()
        row = U64(order[U64(first) + min(begin + r, U64(size) - U64(1))])
        counts = r < ROWS and begin + r < U64(size) and valid[row]
        if net == U64(0):
            ACTOR_FORWARD
            if r < ROWS:
                by_log_prob, by_entropy, entropy = F32(0.0), F32(0.0), F32(0.0)
                if counts:
                    new_log_prob, entropy = evaluate(acts, r, weights, spread, action, row)
                    log_ratio, gained = new_log_prob - log_prob[row], advantage[row]
                    ratio, slope = F32(math.exp(log_ratio)), F32(1.0)
                    d += ratio - F32(1.0) - log_ratio
                    c += F32(1.0) if abs(ratio - F32(1.0)) > clip else F32(0.0)
                    if log_ratio > LARGEST and gained > F32(0.0):
                        ratio, slope = F32(math.exp(LARGEST)), F32(0.0)
                    gain, bound = ratio * gained, gained + clip * abs(gained)
                    if gain > bound:
                        slope = F32(0.0)
                    elif gain == bound:
                        slope *= F32(0.5)
                    a += min(gain, bound)
                    b += entropy
                    by_log_prob, by_entropy = -weight * gain * slope, -entropy_coef * weight
                learn_action(acts, r, weights, spread, action, row, by_log_prob, by_entropy, entropy)
            cuda.syncthreads()
            STD_GRADIENT
            ACTOR_BACKWARD
        else:
            CRITIC_FORWARD
            if r < ROWS:
                by_value = F32(0.0)
                if counts:
                    unit = value_scale[U64(0)]
                    new = value_center[U64(0)] + unit * acts[VALUE * PITCH + r]
                    error = new - returns[row]
                    by_value, square = F32(2.0) * error, error * error
                    if value_clip > F32(0.0):
                        moved, most = new - value[row], value_clip * unit
                        inside = abs(moved) <= most
                        clipped = value[row] + min(max(moved, -most), most) - returns[row]
                        other = F32(2.0) * clipped if inside else F32(0.0)
                        if clipped * clipped > square:
                            by_value, square = other, clipped * clipped
                        elif clipped * clipped == square:
                            by_value = F32(0.5) * (by_value + other)
                    a += square / (unit * unit)
                    by_value = value_coef * weight * by_value / unit
                acts[VALUE * PITCH + r] = by_value
            cuda.syncthreads()
            CRITIC_BACKWARD
        add = True
        begin += workers * ROWS
    if r < ROWS:
        acts[r], acts[PITCH + r], acts[U64(2) * PITCH + r], acts[U64(3) * PITCH + r] = a, b, c, d
    cuda.syncthreads()
    if net == U64(0):
        if r < U64(4):
            total = F32(0.0)
            for k in range(ROWS):
                total += acts[r * PITCH + U64(k)]
            sums[worker, r + U64(1) if r > U64(0) else r] = total * weight
    elif r == U64(0):
        total = F32(0.0)
        for k in range(ROWS):
            total += acts[U64(k)]
        sums[worker, U64(1)] = total * weight
'''
