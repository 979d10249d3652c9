"""The registry: kernels stand in where they serve, and step back once the plain source is another."""

import functools
import linecache
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from headrace.core.fused import (
    AsChosen,
    fused,
    plain_only,
    reached,
    register,
)
from headrace.core.looking import looked_once

SOURCE = '''
from headrace.core.fused import fused

WEIGHT = 2

class Thing:
    def speed(self):
        return 1

    def unused(self):
        return 1

def helper(x):
    """Twice x."""
    return WEIGHT * x if x is not None else x.speed()  # here

@fused("{name}", "json")
def double(x):
    """Plain."""
    return helper(x)
'''


@pytest.fixture
def module(request, tmp_path):
    """A module with a plain function, and a kernel that gives "kernel"."""
    return load(tmp_path, request.node.name, SOURCE)


def load(folder, name, source):
    path = folder / f"{name}.py"
    path.write_text(source.format(name=name))
    made = types.ModuleType(f"{name}_module")
    made.__file__ = str(path)
    sys.modules[made.__name__] = made
    exec(compile(path.read_text(), str(path), "exec"), made.__dict__)
    return made


def test_a_kernel_stands_in_where_it_serves(module):
    register(module.__name__.removesuffix("_module"), lambda x: x > 0)(lambda x: "kernel")
    assert module.double(3) == "kernel"
    assert module.double(-3) == -6
    with plain_only():
        assert module.double(3) == 6
    assert module.double.plain(3) == 6


def test_the_binding_is_imported_at_the_first_call(module, tmp_path, monkeypatch):
    (tmp_path / "lazy_binding.py").write_text(
        "from headrace.core.fused import register\nregister('test.lazy', lambda x: True)(lambda x: 'kernel')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    double = fused("test.lazy", "lazy_binding")(lambda x: 2 * x)
    assert "lazy_binding" not in sys.modules
    with plain_only():
        assert double(1) == 2
    assert "lazy_binding" not in sys.modules
    assert double(1) == "kernel"


def test_the_latest_kernel_goes_first(module):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: True)(lambda x: "first")
    register(name, lambda x: x > 0)(lambda x: "second")
    assert (module.double(1), module.double(-1)) == ("second", "first")


def test_a_constant_that_cannot_be_compared_counts_as_another(module, monkeypatch):
    monkeypatch.setattr(module, "WEIGHT", np.ones(2))
    assert reached(module.double).is_current()
    before = reached(module.double)
    monkeypatch.setattr(module, "WEIGHT", np.ones(2))
    assert not before.is_current() and reached(module.double).is_current()
    monkeypatch.setattr(module, "WEIGHT", torch.ones(2))
    assert reached(module.double).is_current()


def test_a_reason_is_said_once(module, capsys):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: f"{x} is odd" if x % 2 else True)(lambda x: "kernel")
    assert [module.double(x) for x in (1, 2, 1, 3)] == [2, "kernel", 2, 6]
    said = [f"{name} runs in plain PyTorch: {x} is odd (slower than its kernel)" for x in (1, 3)]
    assert capsys.readouterr().err.splitlines() == said


def test_a_reason_that_follows_from_settings_is_not_said(module, capsys):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: AsChosen("it has convolutions"))(lambda x: "kernel")
    assert module.double(1) == 2 and not capsys.readouterr().err


def test_a_patched_helper_sends_the_kernel_away(module, capsys, monkeypatch):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: True, reached(module.double).digest)(lambda x: "kernel")
    assert module.double(3) == "kernel"
    with monkeypatch.context() as patch:
        patch.setattr(module, "helper", lambda x: 5 * x)
        assert [module.double(3), module.double(3)] == [15, 15]
        with looked_once():  # looks first
            assert module.double(3) == 15
    with looked_once():
        assert module.double(3) == "kernel"
        with monkeypatch.context() as patch:
            patch.setattr(module, "helper", lambda x: 5 * x)
            assert module.double(3) == "kernel"
            with ThreadPoolExecutor(1) as another:
                assert another.submit(module.double, 3).result() == 15
    assert module.double(3) == "kernel"
    error = capsys.readouterr().err
    assert (
        error.startswith(f"{name} runs in plain PyTorch: the plain function is not the one") and error.count("\n") == 1
    )


def test_an_edited_source_has_another_digest_and_its_comments_do_not_count(tmp_path):
    edits = (("", ""), ("# here", "# there"), ("Twice x", "Two x"), ("WEIGHT * x", "WEIGHT * x + 1"), ("= 2", "= 3"))
    digests = []
    for old, new in edits:
        digests.append(reached(load(tmp_path, "edited", SOURCE.replace(old, new)).double).digest)
        linecache.clearcache()
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests)) == 3


def test_methods_count_where_something_names_them(module, monkeypatch):
    before = reached(module.double, (module.Thing,)).digest
    assert before != reached(module.double).digest
    with monkeypatch.context() as patch:
        patch.setattr(module.Thing, "unused", lambda self: 2)
        assert reached(module.double, (module.Thing,)).digest == before
        patch.setattr(module.Thing, "speed", lambda self: 2)
        assert reached(module.double, (module.Thing,)).digest != before
    assert reached(module.double, (module.Thing,)).digest == before


def test_a_wrapper_counts_even_if_it_says_that_it_is_what_it_wraps(module, monkeypatch):
    original, before = module.helper, reached(module.double).digest
    monkeypatch.setattr(module, "helper", functools.wraps(original)(lambda x: original(x) + 1))
    assert reached(module.double).digest != before
    monkeypatch.setattr(module, "helper", functools.partial(original))
    assert reached(module.double).digest != before
    monkeypatch.setattr(module, "helper", torch.no_grad()(original))
    assert reached(module.double).digest == before


def test_kernels_take_keywords_in_their_places(module):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: x > 0)(lambda number: f"kernel {number}")
    assert module.double(x=3) == "kernel 3"
    assert module.double(x=-3) == -6
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        module.double(y=3)


def test_decorated_functions_keep_their_names():
    @fused("test.named", "json")
    def named():
        """Says so."""

    assert (named.__name__, named.__doc__) == ("named", "Says so.")
