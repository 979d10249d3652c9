"""Digests of what a function reaches: pairs of functions that must have the same one, and pairs that must not."""

import dataclasses
import enum
import functools
import itertools
import linecache
import sys
import types
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.closure import reach
from headrace.core.source_text import tree_text
from headrace.core.value_text import describe

NUMBER = itertools.count()
PLAIN = """
import functools, torch
from dataclasses import dataclass

COEF, TABLE = 0.5, {"a": [1, 2]}

@dataclass
class Settings:
    coef: float = 0.1

class Scale:
    factor = 2

    def __init__(self, by=1):
        self.by = by

    @property
    def twice(self):
        return 2 * self.by

    def of(self, x):
        return self.factor * x

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient

SETTINGS, SCALE = Settings(), Scale(3)
half = functools.partial(lambda x, y: x / y, y=2)
first, second = lambda x: x + 1, lambda x: x + 2

def helper(x, *, times=2):
    return x * times

def plain(x, y=(1, 2)):
    z = helper(x) + COEF * SETTINGS.coef + SCALE.twice + SCALE.of(1)
    if TABLE["a"][1] > 1:
        z = Twice.apply(z) + first(x)
    return half(z) if y else "text"
"""
SAME = {  # edits that leave what plain() computes
    "comment": ("return x * times", "return x * times  # here"),
    "comment line": ("    z = helper", "    # first\n\n    z = helper"),
    "docstring": ('"""', '"""'),
    "own docstring": ("times=2):\n", 'times=2):\n    """Times."""\n'),
    "quotes": ('"text"', "'text'"),
    "joined strings": ('"text"', '"te" "xt"'),
    "parentheses": ("return x * times", "return (x) * (times)"),
    "line continuation": ("COEF * SETTINGS.coef +", "COEF * SETTINGS.coef \\\n        +"),
    "line break": ("def plain(x, y=(1, 2)):", "def plain(\n    x,\n    y=(1, 2),\n):"),
    "trailing comma": ("helper(x) +", "helper(x,) +"),
    "annotation": ("def helper(x, *, times=2):", "def helper(x: int, *, times: float = 2) -> float:"),
    "annotated variable": ("    z = helper", "    z: float = helper"),
    "pass": ("    z = helper", "    pass\n    z = helper"),
    "semicolon": ("    z = helper", "    a = 1; z = helper"),
    "number": ("x + 1", "x + 0x1"),
    "above": ("COEF, TABLE", "\n\nCOEF, TABLE"),
    "not reached": ("def helper", "def other():\n    return 1\n\ndef helper"),
    "lambdas on lines": ("first, second = lambda x: x + 1, lambda x", "first = lambda x: x + 1\nsecond = lambda x"),
}
OTHER = {  # edits that change it
    "body": ("x * times", "x / times"),
    "operator order": ("helper(x) + COEF * SETTINGS.coef", "(helper(x) + COEF) * SETTINGS.coef"),
    "constant": ("COEF, TABLE = 0.5", "COEF, TABLE = 0.6"),
    "kind of number": ("x + 1,", "x + 1.0,"),
    "dictionary": ('{"a": [1, 2]}', '{"a": [1, 3]}'),
    "field": ("coef: float = 0.1", "coef: float = 0.9"),
    "attribute": ("Scale(3)", "Scale(4)"),
    "class attribute": ("factor = 2", "factor = 3"),
    "property": ("return 2 * self.by", "return 3 * self.by"),
    "method": ("return self.factor * x", "return self.factor + x"),
    "constructor": ("self.by = by", "self.by = by + 1"),
    "forward": ("return 2 * x", "return 3 * x"),
    "backward": ("return 2 * gradient", "return 3 * gradient"),
    "keyword of a partial": ("y=2)", "y=3)"),
    "function of a partial": ("x / y", "x // y"),
    "the other lambda": ("+ first(x)", "+ second(x)"),
    "a lambda": ("x + 1,", "x + 3,"),
    "default": ("y=(1, 2)", "y=(1, 3)"),
    "keyword default": ("times=2", "times=3"),
    "string": ('"text"', '"texts"'),
    "text in an f-string": ('"text"', 'f"text{x}"'),
}


@pytest.fixture
def digest(tmp_path):
    """The digest of plain() in a module with this source."""

    def of(source):
        path = tmp_path / f"plain{next(NUMBER)}.py"
        path.write_text(source)
        module = types.ModuleType("plain_module")
        module.__file__ = str(path)
        sys.modules["plain_module"] = module  # for dataclasses
        exec(compile(source, str(path), "exec"), vars(module))
        found = reach(module.plain)
        assert found.is_current()
        return found.digest

    yield of
    linecache.clearcache()


@pytest.mark.parametrize("edit", SAME.values(), ids=SAME)
def test_what_changes_no_result_changes_no_digest(digest, edit):
    if "a = 1;" in edit[1]:
        assert digest(PLAIN.replace(*edit)) == digest(PLAIN.replace(edit[0], "    a = 1\n    z = helper"))
    else:
        assert digest(PLAIN.replace(*edit)) == digest(PLAIN)


@pytest.mark.parametrize("edit", OTHER.values(), ids=OTHER)
def test_what_changes_a_result_changes_the_digest(digest, edit):
    assert PLAIN.count(edit[0]) == 1
    assert digest(PLAIN.replace(*edit)) != digest(PLAIN)


def holding(value):
    def plain(x):
        return value(x) if callable(value) else value

    return plain


def holding_otherwise(value):
    def plain(x):
        return [value, x]

    return plain


def with_default(value):
    def plain(x, y=value):
        return y

    return plain


def with_keyword(value):
    def plain(x, *, y=value):
        return y

    return plain


class Kind(enum.Enum):
    A, B = 1, 2


@dataclasses.dataclass
class Slotted:
    __slots__ = ("coef", "rest")
    coef: float
    rest: list


class Pair(NamedTuple):
    a: object
    b: object = None


class Own:
    def __init__(self, coef):
        self.coef = coef

    def __getattr__(self, name):
        raise AssertionError("nothing of the user's is run")

    __repr__ = __eq__ = __hash__ = __getattr__

    def times(self, x):
        return self.coef * x

    def plus(self, x):
        return self.coef + x


def module_of(width, slope):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.LeakyReLU(slope))


def ring(value):
    items = [value]
    items.append(items)
    return items


def chain_of(length, end):
    found = end
    for _ in range(length):
        found = [found]
    return found


def twice_the_same(end):
    """2^60 parts, if each were described as often as it is reached."""
    for _ in range(60):
        end = [end, end]
    return end


A, B = (lambda x: x, lambda x: -x)
PAIRS = {
    "number": (0.1, 0.9),
    "kind of number": (1, True),
    "sign of zero": (0.0, -0.0),
    "long number": (10**5000, 10**5000 + 1),
    "text": ("a", "b"),
    "bytes": (b"a", "a"),
    "tuple": ((1, 2), (1, 3)),
    "list": ([1, 2], [2, 1]),
    "tuple or list": ((1, 2), [1, 2]),
    "nested": ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}),
    "key": ({"a": 1}, {"b": 1}),
    "order of a dictionary": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "set": ({1, 2}, {1, 3}),
    "frozen set": (frozenset({"a"}), frozenset({"b"})),
    "array": (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
    "dtype": (np.zeros(2, np.float32), np.zeros(2, np.int32)),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "objects in an array": (np.array([1, "a"], object), np.array([1, "b"], object)),
    "scalar": (np.float32(0.1), np.float32(0.2)),
    "tensor": (torch.tensor([1.0]), torch.tensor([2.0])),
    "bfloat16": (torch.tensor(1.0, dtype=torch.bfloat16), torch.tensor(2.0, dtype=torch.bfloat16)),
    "torch's dtype": (torch.float32, torch.float64),
    "parameter": (torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))),
    "module": (module_of(3, 0.1), module_of(3, 0.2)),
    "width of a module": (module_of(3, 0.1), module_of(4, 0.1)),
    "slots": (Slotted(0.1, []), Slotted(0.9, [])),
    "named tuple": (Pair(1), Pair(2)),
    "attribute": (Own(0.1), Own(0.9)),
    "namespace": (types.SimpleNamespace(coef=0.1), types.SimpleNamespace(coef=0.9)),
    "read-only": (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})),
    "enum": (Kind.A, Kind.B),
    "function": (A, B),
    "lambdas of one line": ((lambda x: x), (lambda x: (x, x))),
    "closure in a closure": (holding(0.1), holding(0.9)),
    "defaults": (with_default(1), with_default(2)),
    "keyword defaults": (with_keyword(1), with_keyword(2)),
    "partial": (functools.partial(A, 1), functools.partial(A, 2)),
    "keyword of a partial": (functools.partial(max, key=A), functools.partial(max, key=B)),
    "object of a method": (Own(0.1).times, Own(0.9).times),
    "method": (Own(0.1).times, Own(0.1).plus),
    "method in C": ([1].index, [2].index),
    "function of a library": (torch.relu, torch.tanh),
    "ufunc": (np.add, np.multiply),
    "class": (Kind, Pair),
    "getter": (attrgetter("a"), attrgetter("b")),
    "cached": (functools.lru_cache(A), functools.lru_cache(B)),
    "range": (range(3), range(4)),
    "holds itself": (ring(1), ring(2)),
    "long chain": (chain_of(5000, 1), chain_of(5000, 2)),
    "many ways": (twice_the_same(1), twice_the_same(2)),
}


@pytest.mark.parametrize("make", [holding, with_default, with_keyword])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_a_function_holds_counts(pair, make):
    one, other = (reach(make(value)) for value in pair)
    assert one.digest != other.digest and one.text != other.text
    assert reach(make(pair[0])).digest == one.digest
    assert one.is_current() and other.is_current()


CHANGES = {
    "list": ([1, 2], lambda x: x.append(3)),
    "nested": ({"a": [1]}, lambda x: x["a"].append(2)),
    "dictionary": ({"a": 1}, lambda x: x.update(a=2)),
    "set": ({1}, lambda x: x.add(2)),
    "array": (np.zeros(3), lambda x: x.fill(1)),
    "tensor": (torch.zeros(3), lambda x: x.numpy().fill(1)),
    "slots": (Slotted(0.1, []), lambda x: setattr(x, "coef", 0.9)),
    "attribute": (Own(0.1), lambda x: vars(x).update(coef=0.9)),
    "in a tuple": (([1],), lambda x: x[0].append(2)),
    "setting of a module": (module_of(3, 0.1), lambda x: setattr(x[1], "negative_slope", 0.2)),
    "code": (holding(1), lambda x: setattr(x, "__code__", holding_otherwise(1).__code__)),
    "defaults": (with_default(1), lambda x: setattr(x, "__defaults__", (2,))),
    "keyword defaults": (with_keyword(1), lambda x: x.__kwdefaults__.update(y=2)),
    "cell": (holding(1), lambda x: setattr(x.__closure__[0], "cell_contents", 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_values_are_read_again(change):
    value, edit = change
    plain = value if isinstance(value, types.FunctionType) else holding(value)
    before = reach(plain)
    assert before.is_current()
    edit(value)
    assert not before.is_current() and reach(plain).digest != before.digest


def test_what_a_module_learns_is_data():
    network = module_of(3, 0.1)
    before = reach(holding(network))
    with torch.no_grad():
        network[0].weight.add_(1)
    assert before.is_current() and reach(holding(network)).digest == before.digest


def test_versions_of_libraries_count_for_the_users_functions(monkeypatch):
    def plain(x):
        return torch.nn.functional.relu(x)

    before = reach(plain).digest
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    assert reach(plain).digest != before


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda x: st.lists(x) | st.tuples(x, x) | st.dictionaries(st.text(), x) | st.frozensets(st.text()),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(VALUES, VALUES)
def test_values_have_the_text_of_their_repr(one, other):
    assert (repr(one) == repr(other)) == (describe(one).lines == describe(other).lines)


def test_code_without_its_source_counts_by_its_instructions():
    scope = {}
    exec("def one(x):\n    return x + 1\ndef other(x):\n    return x + 2\n", scope)
    assert reach(scope["one"]).digest != reach(scope["other"]).digest
    with pytest.raises((OSError, TypeError)):
        tree_text(scope["one"])
