"""EnvIR -> the text of a Numba module that draws pixel observations by CUDA, with a thread for each pixel."""

from __future__ import annotations

import ast
from textwrap import indent

from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import prelude
from headrace.kernels.targets.cuda import codegen_cuda
from headrace.kernels.targets.pixel_text import greys, tables

WHOLE = ("I32", "U32", "U64")  # conversions that a product of whole numbers stands in
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
    return "\n\n".join([head, _unfused(words), *tables(source), _unfused(pixel), draw])


def _stacked(source: EnvIR) -> list[str]:
    """Lines that write one pixel of all frames."""
    if len(source.observation_space.shape) == 2:
        return ["observation[after, i, y, x] = U8(_byte(grey))"]
    lines = []
    for c, grey in enumerate(greys(source)):
        lines.append(f"byte = U8(_byte({grey}))")
        for older in range(source.frames - 1):
            place, before = older * source.channels + c, (older + 1) * source.channels + c
            kept = f"observation[now, i, {before}, y, x] if earlier else byte"
            lines.append(f"observation[after, i, {place}, y, x] = {kept}")
        lines.append(f"observation[after, i, {(source.frames - 1) * source.channels + c}, y, x] = byte")
    return lines


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
