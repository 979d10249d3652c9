"""Source as text: what `inspect` gives, for every function of some modules that are full of them."""

import ast
import inspect
import textwrap

import pytest

from headrace.algorithms import ppo
from headrace.core import returns, source_text
from headrace.data import rollout
from headrace.kernels.language import ops_scalar
from headrace.policies import distributions


def tree(text):
    return ast.dump(ast.parse(textwrap.dedent(text)))


def functions(module):
    found = [item for item in vars(module).values() if inspect.isfunction(inspect.unwrap(item))]
    for item in vars(module).values():
        if inspect.isclass(item) and item.__module__ == module.__name__:
            found += [member for member in vars(item).values() if inspect.isfunction(member)]
    return [inspect.unwrap(f) for f in found if not inspect.unwrap(f).__code__.co_filename.startswith("<")]


@pytest.mark.parametrize("module", [ops_scalar, ppo, returns, rollout, distributions], ids=lambda m: m.__name__)
def test_it_is_what_inspect_gives(module):
    assert len(functions(module)) > 3
    for function in functions(module):
        assert tree(source_text.source_text(function)) == tree(inspect.getsource(function)), function


def test_what_compiles_to_nothing_belongs_to_it():
    def here(x):
        if x:
            return 1
        "the end"
        # of it

    assert source_text.source_text(here).endswith("# of it\n")


def test_a_function_without_source_is_an_error():
    scope = {}
    exec("def f():\n    return 1\n", scope)
    with pytest.raises(OSError):
        source_text.source_text(scope["f"])


@pytest.mark.parametrize(
    "module", [ppo, returns, rollout, ops_scalar, distributions], ids=lambda module: module.__name__
)
def test_without_comments_the_code_is_the_same(module):
    for function in functions(module):
        text = source_text.source_text(function)
        expected = ast.parse(textwrap.dedent(text))
        definition = expected.body[0]
        if ast.get_docstring(definition) is not None:
            definition.body = definition.body[1:]
        bare = source_text.without_comments(text)
        found = ast.parse(bare if definition.body else f"{bare}\n    pass")
        if not definition.body:
            found.body[0].body = []
        assert ast.dump(found) == ast.dump(expected)
        assert not any(line.lstrip().startswith("#") or not line for line in bare.splitlines())


def test_comments_docstrings_and_blank_lines_are_left_out():
    text = '    def f(x):\n        """Twice."""\n\n        # here\n        y = x  # and here\n        return "#" + y\n'
    assert source_text.without_comments(text) == 'def f(x):\n    y = x\n    return "#" + y'
