"""Parse Python in the strings of a YAML file, such as "dict(net_arch=[64, 64])", without evaluating it."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import nn

from headrace.core.source_text import parse_expression


class Name:
    """A class of another library, represented by its name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return self.__name__


ACTIVATIONS = ("ReLU", "Tanh", "ELU", "GELU", "SiLU", "LeakyReLU", "Sigmoid", "SELU", "Softplus", "ReLU6", "Mish")
NAMES: dict[str, Any] = {
    **{f"{module}.{name}": getattr(nn, name) for module in ("nn", "th.nn", "torch.nn") for name in ACTIVATIONS},
    **{f"{module}.optim.Adam": torch.optim.Adam for module in ("th", "torch")},
    **{f"GoalSelectionStrategy.{name}": name.lower() for name in ("FUTURE", "FINAL", "EPISODE")},
    **{name: Name(name) for name in ("HerReplayBuffer", "RMSpropTFLike", "ReplayBuffer", "DictReplayBuffer")},
    "float": float,
    "int": int,
}


def parse(text: str, where: str) -> Any:
    """Parse an expression of numbers, strings, lists, dicts, dict(...) and NAMES.

    where: the place of the text, for errors. Raises ValueError for anything else.
    """
    try:
        return _value(parse_expression(text.strip()))
    except (SyntaxError, ValueError) as error:
        problem = str(error) if isinstance(error, ValueError) else f"it is no expression: {error.msg}"
        raise ValueError(f"{where} is {text!r}, and is read but not evaluated: {problem}") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() | bool() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List() | ast.Tuple():
            found = [_value(entry) for entry in node.elts]
            return found if isinstance(node, ast.List) else tuple(found)
        case ast.Dict() if None not in node.keys:
            return {_value(key): _value(entry) for key, entry in zip(node.keys, node.values, strict=True) if key}
        case ast.Call(func=ast.Name(id="dict"), args=[]) if all(word.arg for word in node.keywords):
            return {word.arg: _value(word.value) for word in node.keywords}
        case ast.Name() | ast.Attribute() if (name := ast.unparse(node)) in NAMES:
            return NAMES[name]
    text = ast.unparse(node)
    names = "activations of torch.nn as nn.ReLU, HerReplayBuffer, RMSpropTFLike"
    raise ValueError(f"{text!r} is not among numbers, strings, lists, dicts, dict(...) and the names known, {names}")
