"""The operations of a graph in NumPy: numpy_writer copies those that a policy needs into its file.

x: float32 [N, features], or [N, channels, height, width]. Each function needs NumPy and Python's math alone.
"""

from __future__ import annotations

import math

import numpy as np


def normalize(x, center, scale, limit):
    return np.clip((x - center) * scale, -limit, limit)


def dense(x, weight, bias):
    return x @ weight.T + bias


def layer_norm(x, weight, bias, epsilon):
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(1, keepdims=True) + epsilon) * weight + bias


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(1, keepdims=True) + epsilon) * weight


def one_hot(x, component, choice):
    return (x.reshape(len(x), -1)[:, component] == choice).astype(np.float32)


def number(x):
    return x.reshape(len(x), -1).astype(np.float32)


def flatten(x):
    return x.reshape(len(x), -1)


def concat(*parts):
    return np.concatenate(parts, 1)


def affine(x, scale, offset):
    return x * scale + offset


def clip(x, low, high):
    return np.clip(x, low, high)


def rint(x):
    return np.rint(x)


def forbid(x, mask, or_all):
    allowed = mask != 0
    if or_all:
        allowed = allowed | ~allowed.any(1, keepdims=True)
    return np.where(allowed, x, np.float32(-1e9))


def minimum(*parts):
    return np.minimum.reduce(parts)


def expectation(x, atoms):
    x = x.reshape(len(x), -1, len(atoms))
    x = np.exp(x - x.max(2, keepdims=True))
    return x @ atoms / x.sum(2)


def positive(x):
    return (x > 0).astype(np.int64)


def argmax(x, sizes, starts):
    parts = np.split(x, np.cumsum(sizes)[:-1], 1)
    return np.stack([part.argmax(1) for part in parts], 1) + np.array(starts)


def tanh(x):
    return np.tanh(x)


def relu(x):
    return np.maximum(x, 0)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def leaky_relu(x):
    return np.where(x > 0, x, x * np.float32(0.01))


def sigmoid(x):
    return 1 / (1 + np.exp(-np.maximum(x, -80)))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    erf = np.array([math.erf(number) for number in (x * math.sqrt(0.5)).ravel()], np.float32)
    return x * (erf.reshape(x.shape) + 1) * np.float32(0.5)


def mish(x):
    return x * np.tanh(np.logaddexp(x, np.float32(0)))


def gru(x, state, weight_input, weight_hidden, bias_input, bias_hidden):
    size = state.shape[1]
    entering, recurrent = x @ weight_input.T + bias_input, state @ weight_hidden.T + bias_hidden
    gates = sigmoid(entering[:, : 2 * size] + recurrent[:, : 2 * size])
    reset, update = gates[:, :size], gates[:, size:]
    new = np.tanh(entering[:, 2 * size :] + reset * recurrent[:, 2 * size :])
    return new + update * (state - new)


def lstm(x, state, weight_input, weight_hidden, bias_input, bias_hidden):
    size = state.shape[1] // 2
    gates = x @ weight_input.T + bias_input + state[:, :size] @ weight_hidden.T + bias_hidden
    enter, keep, leave = (sigmoid(gates[:, k * size : (k + 1) * size]) for k in (0, 1, 3))
    cell = keep * state[:, size:] + enter * np.tanh(gates[:, 2 * size : 3 * size])
    return np.concatenate((leave * np.tanh(cell), cell), 1)


def image(x, layout):
    if layout == "hw":
        x = x[:, None]
    elif layout == "hwc":
        x = x.transpose(0, 3, 1, 2)
    return x.astype(np.float32)


def convolution(x, weight, bias, stride, padding):
    if padding:
        x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    rows, _, height, width = windows.shape[:4]
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(rows * height * width, -1)
    sums = columns @ weight.reshape(len(weight), -1).T + bias
    return sums.reshape(rows, height, width, -1).transpose(0, 3, 1, 2)


def max_pool(x):
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].max((4, 5))


def add(x, other):
    return x + other
