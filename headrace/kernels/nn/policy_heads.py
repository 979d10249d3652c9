"""Distributions over actions on sixteen samples of a block: draws and their log-likelihood.

A head turns the outputs of the actor's last layer, rows of a block, into a distribution:

    DISCRETE    independent choices; row k of a choice's rows is the logit of its k-th option
    GAUSSIAN    independent normals: mean = center + half * output, standard deviation half * exp(log_std)
    BERNOULLI   independent zeros and ones; a component's row is the logit of 1
    SQUASHED    center + half * tanh(x), x independent normals: mean = output, standard deviation exp(log_std)

Actions are rows of a block too, one for each component, as float32; of a choice, the option counted from 0.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.kernels.nn.layout import BERNOULLI, BLOCK, DISCRETE, SQUASHED, WIDTH
from headrace.kernels.nn.simd import fma, load, select, splat, sqrt, store
from headrace.kernels.nn.vector_math import clamp, exp, log, sigmoid, sincos, tanh
from headrace.kernels.runtime.jit import INLINE, INNER, njit

F = np.float32
_0, _1 = np.uint64(0), np.uint64(1)
_ZERO, _ONE, _HALF = F(0), F(1), F(0.5)
_2 = np.uint64(2)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_FORBIDDEN = F(-1e9)  # headrace.policies.masks.FORBIDDEN
_MAX_TANH = F(1 - 1e-6)  # largest |tanh| of a SQUASHED action


@njit(**INLINE)
def has_choices(head):
    """Whether actions are whole numbers, and the head has no log_std."""
    return head.kind == DISCRETE or head.kind == BERNOULLI


@njit(**INNER)
def refresh(head, parameters):
    """Recompute standard deviations and constants of a GAUSSIAN or SQUASHED head from the parameters."""
    if has_choices(head):
        return
    log_volume = 0.0
    for k in range(len(head.sizes)):
        log_std = parameters[head.log_std + np.uint64(k)]
        log_volume += log_std + math.log(head.spread[1, k])
        unit = F(1) if head.kind == SQUASHED else head.spread[1, k]
        head.spread[2, k] = F(math.exp(-log_std)) / unit
    head.constants[0] = -log_volume - _HALF_LOG_2PI * len(head.sizes)


@njit(**INNER)
def forbid(offsets, scratch, lanes):
    """Make the logits of choices that the action mask forbids so low that their probability is 0."""
    for k in range(_0, offsets.masked):
        for i in range(_0, lanes, WIDTH):
            at = offsets.logits + k * BLOCK + i
            allowed = load(scratch, offsets.mask + k * BLOCK + i)
            store(scratch, at, select(allowed == _ZERO, splat(_FORBIDDEN), load(scratch, at)))


@njit(**INNER)
def softmax(scratch, logits, probs, size, i):
    """log p_k = z_k - log(sum of e^z) and p_k of logits z, rows of a block: log p in place of the logits, p in rows of
    probs."""
    top = load(scratch, logits + i)
    for k in range(_1, size):
        z = load(scratch, logits + k * BLOCK + i)
        top = select(z > top, z, top)
    total_prob = splat(_ZERO)
    for k in range(_0, size):
        z = load(scratch, logits + k * BLOCK + i) - top
        store(scratch, logits + k * BLOCK + i, z)
        total_prob = total_prob + exp(z)
    norm = log(total_prob)
    for k in range(_0, size):
        z = load(scratch, logits + k * BLOCK + i) - norm
        store(scratch, logits + k * BLOCK + i, z)
        store(scratch, probs + k * BLOCK + i, exp(z))


@njit(**INNER)
def sample(head, scratch, offsets, i, random, draws):
    """Write the actions of the sixteen samples from lane i on; returns their log_prob.

    random: offset of a block with one row for each draw, uniform in [0, 1). With no draws the most likely action is
    taken. Log-likelihoods are sums over choices of log p_action, or over components of -distance^2 / 2 -
    log(deviation) - log(2 pi) / 2, of a SQUASHED minus log(1 - tanh^2) too.
    """
    outputs, probs, actions = offsets.logits, offsets.probs, offsets.actions
    log_prob = splat(_ZERO)
    if head.kind == DISCRETE:
        first = _0
        for c in range(_0, np.uint64(len(head.sizes))):
            size, row, prob = head.sizes[c], outputs + first * BLOCK + i, probs + first * BLOCK + i
            softmax(scratch, row - i, prob - i, size, i)
            if draws > _0:
                action = _sampled(scratch, prob, size, load(scratch, random + c * BLOCK + i))
            else:
                action = _likeliest(scratch, row, size)
            store(scratch, actions + c * BLOCK + i, action)
            for k in range(_0, size):
                log_prob = select(action == F(k), log_prob + load(scratch, row + k * BLOCK), log_prob)
            first += size
        return log_prob
    if head.kind == BERNOULLI:
        for c in range(_0, np.uint64(len(head.sizes))):
            z = load(scratch, outputs + c * BLOCK + i)
            chosen = load(scratch, random + c * BLOCK + i) < sigmoid(z) if draws > _0 else z > _ZERO
            action = select(chosen, splat(_ONE), splat(_ZERO))
            store(scratch, actions + c * BLOCK + i, action)
            log_prob = log_prob + _bernoulli(z, action)[0]
        return log_prob
    for c in range(_0, np.uint64(len(head.sizes))):
        center, half = splat(head.spread[_0, c]), splat(head.spread[_1, c])
        action = load(scratch, outputs + c * BLOCK + i)
        if head.kind != SQUASHED:
            action = fma(action, half, center)
        if draws > _0:
            action = fma(normal(scratch, random + i, c, draws // _2), splat(_ONE / head.spread[_2, c]), action)
        if head.kind == SQUASHED:
            action = fma(_inside(tanh(action)), half, center)
        store(scratch, actions + c * BLOCK + i, action)
        distance, log_derivative = _distance(head, scratch, outputs, actions, c, i)
        log_prob = fma(distance * distance, splat(-_HALF), log_prob - log_derivative)
    return log_prob + head.constants[_0]


@njit(**INNER)
def _softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)."""
    size = select(x < _ZERO, _ZERO - x, x)
    return select(x < _ZERO, splat(_ZERO), x) + log(exp(_ZERO - size) + _ONE)


@njit(**INNER)
def _bernoulli(z, action):
    """log p of actions 0 or 1 with logit z of 1, -log(1 + e^-z) of 1 and -log(1 + e^z) of 0; and the probability of
    1."""
    return _ZERO - _softplus(select(action > _ZERO, _ZERO - z, z)), sigmoid(z)


@njit(**INNER)
def _sampled(scratch, prob, size, random):
    """The first option whose cumulative probability is above random * total."""
    total_prob = splat(_ZERO)
    for k in range(_0, size):
        total_prob = total_prob + load(scratch, prob + k * BLOCK)
    level, passed, below = random * total_prob, splat(_ZERO), splat(_ZERO)
    for k in range(_0, size - _1):
        below = below + load(scratch, prob + k * BLOCK)
        passed = passed + select(below <= level, splat(_ONE), splat(_ZERO))
    return passed


@njit(**INNER)
def _likeliest(scratch, row, size):
    """The first option with the largest logit."""
    top, choice = load(scratch, row), splat(_ZERO)
    for k in range(_1, size):
        z = load(scratch, row + k * BLOCK)
        larger = z > top
        top, choice = select(larger, z, top), select(larger, splat(F(k)), choice)
    return choice


@njit(**INNER)
def normal(scratch, random, c, pairs):
    """Component c of a standard normal. Box & Muller 1958: the first half are cosines, the second sines."""
    pair = c if c < pairs else c - pairs
    radius = sqrt(log(_ONE - load(scratch, random + pair * BLOCK)) * F(-2))
    cosine, sine = sincos(load(scratch, random + (pair + pairs) * BLOCK))
    return radius * (cosine if c < pairs else sine)


@njit(**INLINE)
def _inside(squashed):
    """A SQUASHED action in units of half the range, clipped to +-_MAX_TANH; NaN stays."""
    return clamp(squashed, -_MAX_TANH, _MAX_TANH)


@njit(**INNER)
def _distance(head, scratch, outputs, actions, c, i):
    """(x - mean) / deviation of an action's component; and, if SQUASHED, log(1 - tanh(x)^2), x = atanh(squashed)."""
    output, action = load(scratch, outputs + c * BLOCK + i), load(scratch, actions + c * BLOCK + i)
    center, half, precision = head.spread[_0, c], head.spread[_1, c], head.spread[_2, c]
    if head.kind == SQUASHED:
        squashed = _inside((action - center) / half)
        above, below = log(squashed + _ONE), log(_ONE - squashed)
        return ((above - below) * _HALF - output) * precision, above + below
    return (action - fma(output, splat(half), splat(center))) * precision, splat(_ZERO)
