"""Functions of LLVM instructions that Numba code can call."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from llvmlite import ir
from numba import types  # noqa: TID253
from numba.core import cgutils  # noqa: TID253
from numba.core.base import BaseContext  # noqa: TID253
from numba.core.typing import Signature  # noqa: TID253
from numba.extending import intrinsic  # noqa: TID253

ARRAY = None  # an operand of operation(): an array of any type, given to emit() as the pointer to its data
Emit = Callable[..., ir.Value | None]


def operation(result: types.Type, *operands: types.Type | None) -> Callable[[Emit], Callable[..., ir.Value]]:
    """Make an intrinsic of emit(builder, *values), which gives the result's value, or None for types.void.

    Arguments are converted to the operands' types.
    """

    def decorate(emit: Emit) -> Callable[..., ir.Value]:
        def define(typing: types.Type, *given: types.Type) -> tuple[Signature, Callable[..., ir.Value]]:
            kinds = [own if kind is ARRAY else kind for kind, own in zip(operands, given, strict=True)]

            def generate(
                context: BaseContext, builder: ir.IRBuilder, call: Signature, args: tuple[ir.Value, ...]
            ) -> ir.Value:
                values = [
                    context.make_array(own)(context, builder, value).data if kind is ARRAY else value
                    for kind, own, value in zip(operands, call.args, args, strict=True)
                ]
                found = emit(builder, *values)
                return context.get_dummy_value() if found is None else found

            return result(*kinds), generate

        # Numba reads names and number of the arguments from here
        parameters = [p.replace(annotation=p.empty) for p in inspect.signature(emit).parameters.values()]
        parameters[0] = parameters[0].replace(name="typing")
        define.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        define.__name__, define.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(define)  # type: ignore[no-any-return]

    return decorate


def call_llvm(
    builder: ir.IRBuilder, name: str, result: ir.Type, *values: ir.Value, fastmath: tuple[str, ...] = ()
) -> ir.Value:
    """Call an intrinsic of LLVM's."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
    return builder.call(function, values, fastmath=fastmath)
