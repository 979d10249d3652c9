"""Dense layers as the text of CUDA device functions.

A block of threads works on a tile of rows. What layers compute for it is in shared memory, feature by feature:
acts[feature * PITCH + row]; PITCH is one more than the number of rows, so that neither neighbouring rows nor
neighbouring features share a bank. `source`, `target`: the numbers of a layer's first input and output there. Weights
[outputs, inputs] and biases are in one array, from `at` and `biases` on. Each function is called by the whole block,
and needs a barrier before and after.
"""

from __future__ import annotations

from typing import NamedTuple

OUTPUTS = 8  # of a hidden layer, that a thread computes for each of its rows
SIDE = 4  # a thread sums SIDE x SIDE weights' gradients at once


class Tile(NamedTuple):
    """Division of a block's work. lanes: neighbouring threads, each with a row of its own. groups: of lanes, each with
    outputs of its own. per_lane: rows of a lane."""

    lanes: int
    groups: int
    per_lane: int

    @property
    def rows(self) -> int:
        return self.lanes * self.per_lane

    @property
    def threads(self) -> int:
        return self.lanes * self.groups


ACTIVATIONS = {  # name -> output, and derivative by output
    "tanh": ("F32(math.tanh(x))", "F32(1.0) - y * y"),
    "relu": ("F32(0.0) if x < F32(0.0) else x", "F32(1.0) if y > F32(0.0) else F32(0.0)"),
    "elu": ("x if x > F32(0.0) else F32(math.expm1(x))", "F32(1.0) if y > F32(0.0) else y + F32(1.0)"),
    "leaky_relu": ("x if x > F32(0.0) else F32(0.01) * x", "F32(1.0) if y > F32(0.0) else F32(0.01)"),
}


def layers_text(tile: Tile, activation: str) -> str:
    """The device functions, for one activation of the hidden layers."""
    output, derivative = ACTIVATIONS[activation]
    side = int(tile.threads**0.5)
    while tile.threads % side:
        side -= 1
    sizes = f"""\
LANES, GROUPS, ROWS, PITCH, THREADS = U64({tile.lanes}), U64({tile.groups}), U64({tile.rows}), U64({tile.rows + 1}), \
U64({tile.threads})
ACROSS, DOWN = U64({side}), U64({tile.threads // side})  # threads of a square of weights' gradients
"""
    functions = f"""
@cuda.jit(device=True)
def _activated(x):
    return {output}


@cuda.jit(device=True)
def _slope(y):
    return {derivative}


{_product(tile, forward=True)}


{_product(tile, forward=False)}


{READOUT}


{_weight_gradient()}
"""
    return sizes + functions


def _product(tile: Tile, forward: bool) -> str:
    """hidden() or hidden_gradient(): OUTPUTS results for each row of a thread."""
    rows, results = range(tile.per_lane), range(OUTPUTS)
    if forward:
        head = f'''@cuda.jit(device=True)
def hidden(acts, source, target, weights, at, biases, inputs, outputs):
    """The activated outputs of a layer."""
    lane, first = _thread() % LANES, _thread() // LANES * U64({OUTPUTS})
    while first < outputs:'''
        count, summed, place = "outputs", "inputs", "at + {j} * inputs"
        start, stride = "weights[biases + {j}]", "U64(1)"
        read, write = "source", "target"
        store = "_activated(c{j}_{r})"
    else:
        head = f'''@cuda.jit(device=True)
def hidden_gradient(acts, source, target, weights, at, inputs, outputs):
    """In place of a layer's inputs, which are the outputs of the hidden layer before: the gradient of that layer's
    sums, from that of this layer's at `target`."""
    lane, first = _thread() % LANES, _thread() // LANES * U64({OUTPUTS})
    while first < inputs:'''
        count, summed, place = "inputs", "outputs", "at + {j}"
        start, stride = "F32(0.0)", "inputs"
        read, write = "target", "source"
        store = "c{j}_{r} * _slope(acts[here{r}])"
    lines = [head]
    for j in results:
        lines.append(f"        j{j} = min(first + U64({j}), {count} - U64(1))")
        lines.append(f"        p{j} = {place.format(j=f'j{j}')}")
        lines += [f"        c{j}_{r} = {start.format(j=f'j{j}')}" for r in rows]
    lines.append(f"        x = {read} * PITCH + lane")
    lines.append(f"        for _ in range({summed}):")
    lines += [f"            x{r} = acts[x + U64({r}) * LANES]" for r in rows]
    for j in results:
        lines.append(f"            w = weights[p{j}]")
        lines += [f"            c{j}_{r} += w * x{r}" for r in rows]
        lines.append(f"            p{j} += {stride}")
    lines.append("            x += PITCH")
    for j in results:
        lines.append(f"        if first + U64({j}) < {count}:")
        for r in rows:
            lines.append(f"            here{r} = ({write} + first + U64({j})) * PITCH + lane + U64({r}) * LANES")
            lines.append(f"            acts[here{r}] = {store.format(j=j, r=r)}")
    lines.append(f"        first += GROUPS * U64({OUTPUTS})")
    return "\n".join(lines)


READOUT = '''@cuda.jit(device=True)
def _thread():
    return U64(cuda.threadIdx.x)


@cuda.jit(device=True)
def readout(acts, source, target, weights, at, biases, inputs, outputs):
    """The outputs of a layer without an activation: of few outputs, a thread for each and row."""
    k = _thread()
    while k < outputs * ROWS:
        o, r = k // ROWS, k % ROWS
        x, w, total = source * PITCH + r, at + o * inputs, weights[biases + o]
        for _ in range(inputs):
            total += weights[w] * acts[x]
            w += U64(1)
            x += PITCH
        acts[(target + o) * PITCH + r] = total
        k += THREADS


@cuda.jit(device=True)
def row_sums(acts, source, partial, at, count, add):
    """Into, or added to, partial[at + k]: the sum of entry source + k over the rows."""
    k = _thread()
    while k < count:
        x, total = (source + k) * PITCH, F32(0.0)
        for _ in range(ROWS):
            total += acts[x]
            x += U64(1)
        partial[at + k] = partial[at + k] + total if add else total
        k += THREADS


@cuda.jit(device=True)
def layer_gradient(acts, source, target, partial, at, biases, inputs, outputs, add):
    """Into, or added to, partial: the gradient of a layer's weights and biases, from that of its sums at `target`."""
    row_sums(acts, target, partial, biases, outputs, add)
    if inputs >= U64(16) and outputs >= U64(16):
        _squares(acts, source, target, partial, at, inputs, outputs, add)
    else:
        k = _thread()
        while k < inputs * outputs:
            g, x, total = (target + k // inputs) * PITCH, (source + k % inputs) * PITCH, F32(0.0)
            for _ in range(ROWS):
                total += acts[g] * acts[x]
                g += U64(1)
                x += U64(1)
            partial[at + k] = partial[at + k] + total if add else total
            k += THREADS'''


def _weight_gradient() -> str:
    """_squares(): SIDE x SIDE weights a thread, ACROSS inputs and DOWN outputs apart."""
    sides = range(SIDE)
    lines = [
        "@cuda.jit(device=True)",
        "def _squares(acts, source, target, partial, at, inputs, outputs, add):",
        '    """The weights\' part of layer_gradient()."""',
        "    left, up = _thread() % ACROSS, _thread() // ACROSS",
        "    down = U64(0)",
        "    while down < outputs:",
        "        right = U64(0)",
        "        while right < inputs:",
    ]
    for a in sides:
        lines.append(f"            o{a} = down + up + U64({a}) * DOWN")
        lines.append(f"            i{a} = right + left + U64({a}) * ACROSS")
        lines.append(f"            g{a} = (target + min(o{a}, outputs - U64(1))) * PITCH")
        lines.append(f"            x{a} = (source + min(i{a}, inputs - U64(1))) * PITCH")
    lines += [f"            c{a}_{b} = F32(0.0)" for a in sides for b in sides]
    lines.append("            for r in range(ROWS):")
    lines += [f"                v{b} = acts[x{b} + U64(r)]" for b in sides]
    for a in sides:
        lines.append(f"                u = acts[g{a} + U64(r)]")
        lines += [f"                c{a}_{b} += u * v{b}" for b in sides]
    for a in sides:
        for b in sides:
            lines.append(f"            if o{a} < outputs and i{b} < inputs:")
            lines.append(f"                k = at + o{a} * inputs + i{b}")
            lines.append(f"                partial[k] = partial[k] + c{a}_{b} if add else c{a}_{b}")
    lines.append(f"            right += ACROSS * U64({SIDE})")
    lines.append(f"        down += DOWN * U64({SIDE})")
    return "\n".join(lines)
