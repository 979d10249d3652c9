"""Rules of operations that treat each number alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.kernels.rows.lowering.rules import Lowered, Lowering, Unsupported, rule
from headrace.kernels.rows.lowering.tensors import Tensor, expanded, together
from headrace.kernels.rows.row_program import BOOL, F32, I32, TRUTHS
from headrace.kernels.rows.tracing.nodes import given, operation_name

if TYPE_CHECKING:
    from torch.fx import Node

ONE = {"neg", "abs", "sign", "sgn", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "atanh"} | {
    "sigmoid",
    "sin",
    "cos",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "lgamma",
    "digamma",
}
TWO = {"minimum", "maximum", "mul", "fmod"}
OF_INTEGERS = {"add", "sub", "mul", "neg", "abs", "maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge"}
TRUTHS_AS = {"mul": "and", "minimum": "and", "maximum": "or"}
COMPARE = {"eq", "ne", "lt", "le", "gt", "ge"}
LOGIC = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
BITS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}


def apply(lowering: Lowering, function: str, *tensors: Tensor) -> Tensor:
    """A function of tensors that are broadcast against each other."""
    if tensors[-1].dtype == I32 and function not in OF_INTEGERS:
        raise Unsupported(f"computes {function} of integers")
    wide, dims = together(tensors)
    return Tensor(lowering.build.map(function, *(tensor.view for tensor in wide)), dims)


def cast(lowering: Lowering, tensor: Tensor, dtype: str) -> Tensor:
    """The tensor in another dtype."""
    function = {F32: "float", I32: "int", BOOL: "bool"}[dtype]
    return Tensor(lowering.build.map(function, tensor.view), tensor.dims)


def number(lowering: Lowering, value: float, dtype: str = F32) -> Tensor:
    """A number as a tensor without dimensions."""
    return Tensor(lowering.build.number(value, (), dtype), ())


def operand(lowering: Lowering, node: Node, name: str) -> Tensor:
    """A tensor or a number among a node's arguments, which may depend on the number of rows."""
    argument = given(node, name)
    if hasattr(argument, "op"):
        return lowering.tensor(node, argument)
    dtype = BOOL if isinstance(argument, bool) else I32 if isinstance(argument, int) else F32
    return Tensor(lowering.build.number(lowering.number(node, name), (), dtype), ())


def common(*tensors: Tensor) -> str:
    """The dtype in which tensors are computed with each other."""
    return max((tensor.dtype for tensor in tensors), key=(BOOL, I32, F32).index)


def cast_all(lowering: Lowering, dtype: str, *tensors: Tensor) -> list[Tensor]:
    """The tensors in one dtype."""
    return [cast(lowering, tensor, dtype) for tensor in tensors]


@rule(*ONE, chosen=True)
def one(lowering: Lowering, node: Node) -> Lowered:
    name = operation_name(node)
    x = cast(lowering, lowering.tensor(node, node.args[0]), lowering.dtype(node))
    return apply(lowering, "sign" if name == "sgn" else name, x)


# of log(erfc(x) exp(x^2) / t) in powers of t = 1 / (1 + x / 2), for x >= 0; fitted, within 1e-8
ERFC = (
    -1.26555938,
    1.0013708,
    0.357804639,
    0.206123768,
    -0.638146399,
    1.4848346,
    -3.25125079,
    3.91190332,
    -2.56467112,
    0.88453395,
    -0.126943382,
)


@rule("erfc", chosen=True)
def erfc(lowering: Lowering, node: Node) -> Lowered:
    """Compute 1 - erf(x), right to its last digits where erf(x) is almost 1."""
    x = cast(lowering, lowering.tensor(node, node.args[0]), F32)
    size = apply(lowering, "abs", x)
    half = apply(lowering, "mul", size, number(lowering, 0.5))
    t = apply(lowering, "reciprocal", apply(lowering, "add", half, number(lowering, 1.0)))
    power = number(lowering, ERFC[-1])
    for factor in reversed(ERFC[:-1]):
        power = apply(lowering, "add", apply(lowering, "mul", power, t), number(lowering, factor))
    power = apply(lowering, "sub", power, apply(lowering, "mul", size, size))
    found = apply(lowering, "mul", apply(lowering, "exp", power), t)
    negative = apply(lowering, "lt", x, number(lowering, 0.0))
    return apply(lowering, "where", negative, apply(lowering, "sub", number(lowering, 2.0), found), found)


@rule("polygamma", chosen=True)
def polygamma(lowering: Lowering, node: Node) -> Lowered:
    n = given(node, "n")
    if n not in (0, 1):
        raise Unsupported(f"uses polygamma({n}); those of 0 and 1 are compiled")
    return apply(lowering, ("digamma", "trigamma")[n], lowering.tensor(node, given(node, "self")))


@rule("relu", chosen=True)
def relu(lowering: Lowering, node: Node) -> Lowered:
    x = lowering.tensor(node, node.args[0])
    return apply(lowering, "maximum", x, number(lowering, 0.0, x.dtype))


@rule("square", chosen=True)
def square(lowering: Lowering, node: Node) -> Lowered:
    x = lowering.tensor(node, node.args[0])
    return apply(lowering, "mul", x, x)


@rule(*TWO, chosen=True)
def two(lowering: Lowering, node: Node) -> Lowered:
    dtype, name = lowering.dtype(node), operation_name(node)
    if dtype == BOOL and name not in TRUTHS_AS:
        raise Unsupported(f"computes {name} of truth values")
    pair = cast_all(lowering, dtype, operand(lowering, node, "self"), operand(lowering, node, "other"))
    return apply(lowering, TRUTHS_AS[name] if dtype == BOOL else name, *pair)


@rule("add", "sub", "rsub", chosen=True)
def add(lowering: Lowering, node: Node) -> Lowered:
    """Compute self + alpha * other or self - alpha * other; for rsub, other - alpha * self."""
    dtype, name = lowering.dtype(node), operation_name(node)
    left, right = cast_all(lowering, dtype, operand(lowering, node, "self"), operand(lowering, node, "other"))
    if dtype == BOOL:
        return apply(lowering, "or", left, right)  # torch subtracts no truth values
    if name == "rsub":
        left, right = right, left
    alpha = given(node, "alpha", 1)
    if alpha != 1:
        right = apply(lowering, "mul", right, number(lowering, float(alpha), dtype))
    return apply(lowering, "add" if name == "add" else "sub", left, right)


@rule("div", "true_divide", chosen=True)
def div(lowering: Lowering, node: Node) -> Lowered:
    pair = cast_all(lowering, F32, operand(lowering, node, "self"), operand(lowering, node, "other"))
    found = apply(lowering, "div", *pair)
    mode = given(node, "rounding_mode")
    if mode is not None:
        found = apply(lowering, {"floor": "floor", "trunc": "trunc"}[mode], found)
    return cast(lowering, found, lowering.dtype(node))


@rule("remainder", "floor_divide", chosen=True)
def remainder(lowering: Lowering, node: Node) -> Lowered:
    x, y = cast_all(lowering, F32, operand(lowering, node, "self"), operand(lowering, node, "other"))
    quotient = apply(lowering, "floor", apply(lowering, "div", x, y))
    if operation_name(node) == "remainder":
        quotient = apply(lowering, "sub", x, apply(lowering, "mul", y, quotient))
    return cast(lowering, quotient, lowering.dtype(node))


@rule("pow", chosen=True)
def pow(lowering: Lowering, node: Node) -> Lowered:
    x, exponent = operand(lowering, node, "self"), operand(lowering, node, "exponent")
    if exponent.constant == 0:
        return apply(lowering, "add", apply(lowering, "mul", x, number(lowering, 0.0)), number(lowering, 1.0))
    simple: dict[object, Callable[[], Tensor]] = {
        1.0: lambda: x,
        2.0: lambda: apply(lowering, "mul", x, x),
        3.0: lambda: apply(lowering, "mul", apply(lowering, "mul", x, x), x),
        0.5: lambda: apply(lowering, "sqrt", x),
        -0.5: lambda: apply(lowering, "rsqrt", x),
        -1.0: lambda: apply(lowering, "reciprocal", x),
        -2.0: lambda: apply(lowering, "reciprocal", apply(lowering, "mul", x, x)),
    }
    if exponent.constant in simple:
        return simple[exponent.constant]()
    return apply(lowering, "pow", *cast_all(lowering, F32, x, exponent))


@rule(*COMPARE, chosen=True)
def compare(lowering: Lowering, node: Node) -> Lowered:
    left, right = operand(lowering, node, "self"), operand(lowering, node, "other")
    return apply(lowering, operation_name(node), *cast_all(lowering, common(left, right), left, right))


@rule(*LOGIC, *BITS, chosen=True)
def logic(lowering: Lowering, node: Node) -> Lowered:
    name = operation_name(node)
    left, right = operand(lowering, node, "self"), operand(lowering, node, "other")
    if name in BITS and common(left, right) != BOOL:
        raise Unsupported(f"computes {name} of integers")
    return apply(lowering, (LOGIC | BITS)[name], *cast_all(lowering, BOOL, left, right))


@rule("logical_not", "bitwise_not", chosen=True)
def logical_not(lowering: Lowering, node: Node) -> Lowered:
    x = lowering.tensor(node, node.args[0])
    if operation_name(node) == "bitwise_not" and x.dtype != BOOL:
        raise Unsupported("computes bitwise_not of integers")
    return apply(lowering, "not", cast(lowering, x, BOOL))


@rule("isnan", "isinf", chosen=True)
def is_special(lowering: Lowering, node: Node) -> Lowered:
    assert operation_name(node) in TRUTHS
    return apply(lowering, operation_name(node), cast(lowering, lowering.tensor(node, node.args[0]), F32))


@rule("where", chosen=True)
def where(lowering: Lowering, node: Node) -> Lowered:
    condition = cast(lowering, lowering.tensor(node, given(node, "condition")), BOOL)
    yes, no = operand(lowering, node, "self"), operand(lowering, node, "other")
    return apply(lowering, "where", condition, *cast_all(lowering, lowering.dtype(node), yes, no))


@rule("masked_fill", chosen=True)
def masked_fill(lowering: Lowering, node: Node) -> Lowered:
    x, mask = lowering.tensor(node, given(node, "self")), lowering.tensor(node, given(node, "mask"))
    value = cast(lowering, operand(lowering, node, "value"), x.dtype)
    return apply(lowering, "where", cast(lowering, mask, BOOL), value, x)


@rule("clamp", "clamp_min", "clamp_max", chosen=True)
def clamp(lowering: Lowering, node: Node) -> Lowered:
    x = cast(lowering, lowering.tensor(node, given(node, "self")), lowering.dtype(node))
    for bound, function in (("min", "maximum"), ("max", "minimum")):
        if given(node, bound) is not None:
            x = apply(lowering, function, x, cast(lowering, operand(lowering, node, bound), x.dtype))
    return x


@rule("_to", "to", "convert_element_type", "clone", "detach", "alias", "lift_fresh", "contiguous", chosen=True)
def convert(lowering: Lowering, node: Node) -> Lowered:
    return cast(lowering, lowering.tensor(node, node.args[0]), lowering.dtype(node))


@rule("copy", chosen=True)
def copy(lowering: Lowering, node: Node) -> Lowered:
    """Source in the shape and dtype of the tensor that it is written to."""
    source = cast(lowering, lowering.tensor(node, given(node, "src")), lowering.dtype(node))
    return expanded(source, lowering.sizes(node))
