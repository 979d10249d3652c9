"""EnvIR -> the text of a module that draws the worlds: for the CPU, and for CUDA with a thread for each pixel.

A pixel has the same grey on every target, byte for byte, where the state is the same. So here, unlike in steps, no
product is fused with a sum: on the CPU by saying so, on CUDA by `_product`.

The newest frame stands last among an observation's channels, and those before it move up by one; after a reset all are
the first frame. What was drawn before is read from row t of the rollout, so that nothing is kept beside it.
"""

from __future__ import annotations

import ast
from textwrap import indent

from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import prelude
from headrace.kernels.targets.cpu.state_layout import blocks, params, state, state_arguments
from headrace.kernels.targets.cuda import codegen_cuda

EXACT = '@njit(error_model="numpy", forceinline=True)'
KERNEL = '@njit(error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)'
PARALLEL = '@njit(error_model="numpy", nogil=True, cache=True, parallel=True)'
COLUMNS = "observation, valid, row, frame_row, frame_world"
WHOLE = ("I32", "U32", "U64")  # conversions that a product of whole numbers stands in

# Of one world, whose number is lo.
CPU = """\
{exact}
def draw_world({names}, t, lo):
    i = np.uint64(0)
{state}
    image = (t + 1) * frame_row + lo * frame_world
    newest = image + {older}
    for y in range({height}):
        line = newest + y * {width}
        for x in range(np.uint64({width})):
            grey = env_pixel(s, p, I32(y), I32(x))
{greys}
    if t >= 0 and valid[t * row + lo]:
        earlier = t * frame_row + lo * frame_world + {frame}
        for k in range(np.uint64({older})):
            observation[np.uint64(image) + k] = observation[np.uint64(earlier) + k]
    else:
        for older in range({older_frames}):
            for k in range(np.uint64({frame})):
                observation[np.uint64(image + older * {frame}) + k] = observation[np.uint64(newest) + k]


{kernel}
def draw({names}, lo, hi, t):
    for world in range(lo, hi):
        draw_world({names}, t, world)


{parallel}
def draw_parallel({names}, cut, t):
    for part in prange(cut.shape[0] - 1):
        draw({names}, cut[part], cut[part + 1], t)
"""
CUDA = """\
{kernel}
def draw({names}, t):
    k = np.uint64(cuda.grid(1))
    n = np.uint64(valid.shape[1])
    i = k // np.uint64({size})
    if i < n:
        pixel = k - i * np.uint64({size})
        y = pixel // np.uint64({width})
        x = pixel - y * np.uint64({width})
        after = np.uint64(t + 1)
        now = np.uint64(max(t, 0))
        earlier = t >= 0 and valid[now, i]
{state}
        grey = env_pixel(s, p, I32(y), I32(x))
{greys}
"""


def cpu_pictures(source: EnvIR, per_env: bool) -> str:
    """The text of a Numba module with `draw(..., lo, hi, t)` and `draw_parallel(..., cut, t)`, which write row t + 1 of
    worlds lo .. hi - 1. per_env: each parameter has a value per world. The observations are given flat, frame_row
    bytes from row to row and frame_world from world to world."""
    height, width = source.observation_space.shape[-2:]
    frame = source.channels * height * width
    loaded = [*blocks(source, per_env), *([params(source, True)] if per_env else []), state(source)]
    greys = [
        f"observation[np.uint64(line + {c * height * width}) + x] = U8(_byte({grey}))"
        for c, grey in enumerate(_greys(source))
    ]
    draw = CPU.format(
        exact=EXACT,
        kernel=KERNEL,
        parallel=PARALLEL,
        names=f"{state_arguments(source)}, {COLUMNS}",
        state=indent("\n".join(loaded), " " * 4),
        height=height,
        width=width,
        frame=frame,
        older_frames=source.frames - 1,
        older=(source.frames - 1) * frame,
        greys=indent("\n".join(greys), " " * 12),
    )
    head = f'"""Pictures of {source.name}, drawn on the CPU. Generated; the environment\'s own file is the source."""'
    pixel = source.picture_code.replace("def env_", f"{EXACT}\ndef env_")
    return "\n\n".join(
        [head, "from numba import njit, prange", prelude(EXACT), *_tables(source), pixel, draw],
    )


def cuda_pictures(source: EnvIR, per_env: bool, simulated: bool) -> str:
    """The text of a Numba module for CUDA with `draw(..., t)`, a thread for each pixel of each world: row t + 1."""
    height, width = source.observation_space.shape[-2:]
    device = codegen_cuda.DEVICE
    draw = CUDA.format(
        kernel=codegen_cuda.KERNEL,
        names=", ".join(["floats, integers", *(f"array_{f.name}" for f in source.arrays), "observation, valid"]),
        size=height * width,
        width=width,
        state=indent("\n".join(codegen_cuda.known(source, per_env)), " " * 8),
        greys=indent("\n".join(_stacked(source)), " " * 8),
    )
    head = f'"""Pictures of {source.name}, drawn by CUDA. Generated; the environment\'s own file is the source."""'
    pixel = source.picture_code.replace("def env_", f"{device}\ndef env_")
    words = prelude(device, codegen_cuda.own(simulated))
    return "\n\n".join([head, _unfused(words), *_tables(source), _unfused(pixel), draw])


def _greys(source: EnvIR) -> list[str]:
    """What env_pixel gave, channel by channel."""
    return ["grey"] if source.channels == 1 else [f"grey[{c}]" for c in range(source.channels)]


def _stacked(source: EnvIR) -> list[str]:
    """Lines that write one pixel of all frames."""
    if len(source.observation_space.shape) == 2:
        return ["observation[after, i, y, x] = U8(_byte(grey))"]
    lines = []
    for c, grey in enumerate(_greys(source)):
        lines.append(f"byte = U8(_byte({grey}))")
        for older in range(source.frames - 1):
            place, before = older * source.channels + c, (older + 1) * source.channels + c
            kept = f"observation[now, i, {before}, y, x] if earlier else byte"
            lines.append(f"observation[after, i, {place}, y, x] = {kept}")
        lines.append(f"observation[after, i, {(source.frames - 1) * source.channels + c}, y, x] = byte")
    return lines


def _tables(source: EnvIR) -> list[str]:
    return [f"{name} = np.array({a.tolist()!r}, np.{a.dtype})" for name, a in source.constants.items()]


class _Unfused(ast.NodeTransformer):
    """a * b -> _product(a, b), where it is one of floats."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """All functions but _product itself."""
        return node if node.name == "_product" else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Products of whole numbers stand in a conversion, and stay."""
        whole = isinstance(node.func, ast.Name) and node.func.id in WHOLE
        if whole and len(node.args) == 1 and isinstance(node.args[0], ast.BinOp):
            self.generic_visit(node.args[0])
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """The product."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            return ast.Call(ast.Name("_product", ast.Load()), [node.left, node.right], [])
        return node


def _unfused(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(_Unfused().visit(ast.parse(text))))
