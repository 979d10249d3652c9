"""Distributions over actions on sixteen samples of a block: log-likelihood, entropy, and their gradients.

A head turns the outputs of the actor's last layer, rows of a block, into a distribution:

    DISCRETE    independent choices; row k of a choice's rows is the logit of its k-th option
    GAUSSIAN    independent normals: mean = center + half * output, standard deviation half * exp(log_std)
    SQUASHED    center + half * tanh(x), x independent normals: mean = output, standard deviation exp(log_std)

Actions lie in a block too, one row a component, as float32: of a choice, the option counted from 0.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn.layout import BLOCK, DISCRETE, SQUASHED
from headrace.kernels.nn.simd import fma, load, select, splat, sqrt, store, total
from headrace.kernels.nn.vector_math import exp, log, sincos, tanh
from headrace.kernels.runtime.jit import INLINE, INNER, njit

F = np.float32
_0, _1 = np.uint64(0), np.uint64(1)
_ZERO, _ONE, _HALF = F(0), F(1), F(0.5)
_2 = np.uint64(2)
_HALF_LOG_2PI, _LN_2 = 0.5 * math.log(2 * math.pi), F(math.log(2))
_EDGE = F(1 - 1e-6)  # |tanh| of a SQUASHED action at most
_NODES, _SHARES = (x.astype(F) for x in np.polynomial.hermite_e.hermegauss(16))  # of the plain distribution's entropy
_SHARES /= _SHARES.sum()


@njit(**INNER)
def refresh(head, parameters):
    """Bring the standard deviations and constants of a head that is not DISCRETE up to date with the parameters."""
    if head.kind == DISCRETE:
        return
    mass = 0.0
    for k in range(len(head.sizes)):
        log_std = parameters[head.log_std + np.uint64(k)]
        mass += log_std + math.log(head.spread[1, k])
        unit = F(1) if head.kind == SQUASHED else head.spread[1, k]
        head.spread[2, k] = F(math.exp(-log_std)) / unit
    head.constants[0] = -mass - _HALF_LOG_2PI * len(head.sizes)
    head.constants[1] = mass + (_HALF_LOG_2PI + 0.5) * len(head.sizes)


@njit(**INNER)
def softmax(scratch, logits, shares, size, i):
    """Logits, rows of a block, become log-probabilities; shares the probabilities. Gives the entropy."""
    top = load(scratch, logits + i)
    for k in range(_1, size):
        z = load(scratch, logits + k * BLOCK + i)
        top = select(z > top, z, top)
    mass = splat(_ZERO)
    for k in range(_0, size):
        z = load(scratch, logits + k * BLOCK + i) - top
        store(scratch, logits + k * BLOCK + i, z)
        mass = mass + exp(z)
    norm = log(mass)
    entropy = splat(_ZERO)
    for k in range(_0, size):
        z = load(scratch, logits + k * BLOCK + i) - norm
        p = exp(z)
        store(scratch, logits + k * BLOCK + i, z)
        store(scratch, shares + k * BLOCK + i, p)
        entropy = entropy - p * z
    return entropy


@njit(**INNER)
def evaluate(head, scratch, outputs, shares, actions, entropies, i):
    """(log_prob, entropy) of the sixteen samples from lane i on. All others are places of blocks in scratch: outputs
    and shares as many rows as the actor's last layer, actions and entropies one a component."""
    log_prob, entropy = splat(_ZERO), splat(_ZERO)
    if head.kind == DISCRETE:
        first = _0
        for c in range(_0, np.uint64(len(head.sizes))):
            size, row = head.sizes[c], outputs + first * BLOCK
            part = softmax(scratch, row, shares + first * BLOCK, size, i)
            store(scratch, entropies + c * BLOCK + i, part)
            entropy = entropy + part
            action = load(scratch, actions + c * BLOCK + i)
            for k in range(_0, size):
                z = load(scratch, row + k * BLOCK + i)
                log_prob = select(action == F(k), log_prob + z, log_prob)
            first += size
    else:
        for c in range(_0, np.uint64(len(head.sizes))):
            distance, log_slope = _distance(head, scratch, outputs, actions, c, i)
            log_prob = fma(distance * distance, splat(-_HALF), log_prob - log_slope)
            if head.kind == SQUASHED:
                entropy = entropy + _squashing(head, scratch, outputs, shares, entropies, c, i)
        log_prob = log_prob + head.constants[_0]
        entropy = entropy + head.constants[_1]
    return log_prob, entropy


@njit(**INNER)
def sample(head, scratch, outputs, shares, actions, entropies, i, random, draws):
    """Fill in the actions of the sixteen samples from lane i on; gives their log_prob.

    noise: place of a block with one row a draw, uniform in [0, 1). With no draws the most likely action is taken. The
    other places are as in evaluate().
    """
    log_prob = splat(_ZERO)
    if head.kind == DISCRETE:
        first = _0
        for c in range(_0, np.uint64(len(head.sizes))):
            size, row, share = head.sizes[c], outputs + first * BLOCK + i, shares + first * BLOCK + i
            softmax(scratch, row - i, share - i, size, i)
            if draws > _0:
                action = _drawn(scratch, share, size, load(scratch, random + c * BLOCK + i))
            else:
                action = _likeliest(scratch, row, size)
            store(scratch, actions + c * BLOCK + i, action)
            for k in range(_0, size):
                log_prob = select(action == F(k), log_prob + load(scratch, row + k * BLOCK), log_prob)
            first += size
        return log_prob
    for c in range(_0, np.uint64(len(head.sizes))):
        center, half = splat(head.spread[_0, c]), splat(head.spread[_1, c])
        action = load(scratch, outputs + c * BLOCK + i)
        if head.kind != SQUASHED:
            action = fma(action, half, center)
        if draws > _0:
            action = fma(_normal(scratch, random + i, c, draws // _2), splat(_ONE / head.spread[_2, c]), action)
        if head.kind == SQUASHED:
            action = fma(_inside(tanh(action)), half, center)
        store(scratch, actions + c * BLOCK + i, action)
        distance, log_slope = _distance(head, scratch, outputs, actions, c, i)
        log_prob = fma(distance * distance, splat(-_HALF), log_prob - log_slope)
    return log_prob + head.constants[_0]


@njit(**INNER)
def _drawn(scratch, share, size, random):
    """The first choice whose cumulated share is above noise times the total."""
    mass = splat(_ZERO)
    for k in range(_0, size):
        mass = mass + load(scratch, share + k * BLOCK)
    level, passed, below = random * mass, splat(_ZERO), splat(_ZERO)
    for k in range(_0, size - _1):
        below = below + load(scratch, share + k * BLOCK)
        passed = passed + select(below <= level, splat(_ONE), splat(_ZERO))
    return passed


@njit(**INNER)
def _likeliest(scratch, row, size):
    """The first choice of the largest logit."""
    top, choice = load(scratch, row), splat(_ZERO)
    for k in range(_1, size):
        z = load(scratch, row + k * BLOCK)
        larger = z > top
        top, choice = select(larger, z, top), select(larger, splat(F(k)), choice)
    return choice


@njit(**INNER)
def _normal(scratch, random, c, pairs):
    """Component c of a standard normal. Box & Muller 1958: the first half are cosines, the second sines."""
    pair = c if c < pairs else c - pairs
    radius = sqrt(log(_ONE - load(scratch, random + pair * BLOCK)) * F(-2))
    cosine, sine = sincos(load(scratch, random + (pair + pairs) * BLOCK))
    return radius * (cosine if c < pairs else sine)


@njit(**INLINE)
def _inside(squashed):
    """A SQUASHED action, in units of half the range, kept off the bounds; NaN stays."""
    squashed = select(squashed > _EDGE, splat(_EDGE), squashed)
    return select(squashed < -_EDGE, splat(-_EDGE), squashed)


@njit(**INNER)
def _distance(head, scratch, outputs, actions, c, i):
    """Of an action's component from the mean, in standard deviations; and the log-slope of tanh there, if SQUASHED."""
    output, action = load(scratch, outputs + c * BLOCK + i), load(scratch, actions + c * BLOCK + i)
    center, half, steepness = head.spread[_0, c], head.spread[_1, c], head.spread[_2, c]
    if head.kind == SQUASHED:
        squashed = _inside((action - center) / half)
        above, below = log(squashed + _ONE), log(_ONE - squashed)
        return ((above - below) * _HALF - output) * steepness, above + below
    return (action - fma(output, splat(half), splat(center))) * steepness, splat(_ZERO)


@njit(**INNER)
def _squashing(head, scratch, outputs, shares, entropies, c, i):
    """What tanh adds to the entropy of a component: the mean of its log-slope, by quadrature.

    Keeps the gradient in the mean, in row c of shares, and that in log_std, in row c of entropies.
    """
    mean, deviation = load(scratch, outputs + c * BLOCK + i), _ONE / head.spread[_2, c]
    entropy, by_mean, by_log_std = splat(_ZERO), splat(_ZERO), splat(_ZERO)
    for n in range(_0, np.uint64(len(_NODES))):
        reach, share = deviation * _NODES[n], _SHARES[n]
        x = mean + reach
        size = select(x < _ZERO, _ZERO - x, x)
        e = exp(size * F(-2))
        entropy = fma(splat(share * F(2)), _LN_2 - size - log(e + _ONE), entropy)
        turned = (_ONE - e) / (e + _ONE)  # tanh of size
        slope = select(x < _ZERO, turned, _ZERO - turned) * (share * F(2))
        by_mean, by_log_std = by_mean + slope, fma(slope, splat(reach), by_log_std)
    store(scratch, shares + c * BLOCK + i, by_mean)
    store(scratch, entropies + c * BLOCK + i, by_log_std)
    return entropy


@njit(**INNER)
def differentiate(head, scratch, outputs, deltas, actions, entropies, i, d_log_prob, d_entropy, gradient):
    """The loss's gradient at the outputs, into deltas, after evaluate(), whose shares lie in deltas.

    d_log_prob, d_entropy: its gradients at what evaluate() gave. Of log_std it is added to gradient[c].
    """
    if head.kind == DISCRETE:
        first = _0
        for c in range(_0, np.uint64(len(head.sizes))):
            action, entropy = load(scratch, actions + c * BLOCK + i), load(scratch, entropies + c * BLOCK + i)
            for k in range(_0, head.sizes[c]):
                j = (first + k) * BLOCK + i
                z, p = load(scratch, outputs + j), load(scratch, deltas + j)
                taken = select(action == F(k), d_log_prob, splat(_ZERO))
                store(scratch, deltas + j, taken - p * (d_log_prob + d_entropy * (z + entropy)))
            first += head.sizes[c]
    else:
        for c in range(_0, np.uint64(len(head.sizes))):
            distance, _ = _distance(head, scratch, outputs, actions, c, i)
            d_log_std = fma(d_log_prob, distance * distance - _ONE, d_entropy)
            if head.kind == SQUASHED:
                d_mean = d_log_prob * distance * head.spread[_2, c]
                d_mean = fma(d_entropy, load(scratch, deltas + c * BLOCK + i), d_mean)
                d_log_std = fma(d_entropy, load(scratch, entropies + c * BLOCK + i), d_log_std)
            else:
                d_mean = d_log_prob * distance * (head.spread[_1, c] * head.spread[_2, c])
            store(scratch, deltas + c * BLOCK + i, d_mean)
            gradient[c] += total(d_log_std)
