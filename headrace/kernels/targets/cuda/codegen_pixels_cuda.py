"""EnvIR -> the text of a Numba module that draws pixel observations by CUDA, with a thread for each pixel."""

from __future__ import annotations

import ast
from textwrap import indent

from headrace.core.source_text import parse
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import prelude
from headrace.kernels.targets.cuda.codegen_cuda import DEVICE, KERNEL, CudaText, cuda_ops
from headrace.kernels.targets.episode_text import constants, decorated, title
from headrace.kernels.targets.pixel_text import gray_levels

INTEGERS = ("I32", "U32", "U64")  # conversions: a product directly inside one is of integers
DRAW = """\
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
        gray = env_pixel(s, p, I32(y), I32(x))
{pixels}
"""


def cuda_pixel_module(ir: EnvIR, per_env: bool, simulated: bool) -> str:
    """The text of a Numba module for CUDA with `draw(..., t)`, a thread per pixel of each environment: row t + 1."""
    height, width = ir.observation_space.shape[-2:]
    draw = DRAW.format(
        kernel=KERNEL,
        names=", ".join(["floats, integers", *(f"array_{f.name}" for f in ir.arrays), "observation, valid"]),
        size=height * width,
        width=width,
        state=indent("\n".join(CudaText(ir, per_env).known()), " " * 8),
        pixels=indent("\n".join(_stacked(ir)), " " * 8),
    )
    head = [title(ir, "pixel observations, drawn by CUDA"), _unfused(prelude(DEVICE, cuda_ops(simulated)))]
    return "\n\n".join([*head, *constants(ir), _unfused(decorated(ir.pixel_code, DEVICE)), draw])


def _stacked(ir: EnvIR) -> list[str]:
    """Lines that write one pixel of all frames."""
    if len(ir.observation_space.shape) == 2:
        return ["observation[after, i, y, x] = U8(_byte(gray))"]
    lines = []
    for c, gray in enumerate(gray_levels(ir)):
        lines.append(f"byte = U8(_byte({gray}))")
        for older in range(ir.frames - 1):
            place, before = older * ir.channels + c, (older + 1) * ir.channels + c
            kept = f"observation[now, i, {before}, y, x] if earlier else byte"
            lines.append(f"observation[after, i, {place}, y, x] = {kept}")
        lines.append(f"observation[after, i, {(ir.frames - 1) * ir.channels + c}, y, x] = byte")
    return lines


class _Unfused(ast.NodeTransformer):
    """a * b -> _product(a, b), for floats."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """All functions except _product."""
        return node if node.name == "_product" else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Products of integers are directly inside a conversion, and stay."""
        is_integer = isinstance(node.func, ast.Name) and node.func.id in INTEGERS
        if is_integer and len(node.args) == 1 and isinstance(node.args[0], ast.BinOp):
            self.generic_visit(node.args[0])
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """A product."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult):
            return ast.Call(ast.Name("_product", ast.Load()), [node.left, node.right], [])
        return node


def _unfused(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(_Unfused().visit(parse(text))))
