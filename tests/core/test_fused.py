"""The registry: kernels stand in where they serve, and step back once the plain source is another."""

import sys
import types

import pytest

from headrace.core.fused import fused, plain_only, register, source_digest

SOURCE = '''
from headrace.core.fused import fused

WEIGHT = 2

def helper(x):
    """Twice x."""
    return WEIGHT * x  # here

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


def test_a_reason_is_said_once(module, capsys):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: f"{x} is odd" if x % 2 else True)(lambda x: "kernel")
    assert [module.double(x) for x in (1, 2, 1, 3)] == [2, "kernel", 2, 6]
    assert capsys.readouterr().err == f"{name} not fused: 1 is odd\n{name} not fused: 3 is odd\n"


def test_a_patched_helper_sends_the_kernel_away(module, capsys, monkeypatch):
    name = module.__name__.removesuffix("_module")
    register(name, lambda x: True, source_digest(module.double))(lambda x: "kernel")
    assert module.double(3) == "kernel"
    with monkeypatch.context() as patch:
        patch.setattr(module, "helper", lambda x: 5 * x)
        assert [module.double(3), module.double(3)] == [15, 15]
    assert module.double(3) == "kernel"
    error = capsys.readouterr().err
    assert error.startswith(f"{name} not fused: the plain function is not the one") and error.count("\n") == 1


def test_an_edited_source_has_another_digest_and_its_comments_do_not_count(tmp_path):
    digests = [
        source_digest(load(tmp_path, f"edited{i}", source.replace("{name}", "edited")).double)
        for i, source in enumerate(
            (
                SOURCE,
                SOURCE.replace("# here", "# there").replace("Twice x", "Two x"),
                SOURCE.replace("WEIGHT * x", "WEIGHT * x + 1"),
            )
        )
    ]
    assert digests[0] == digests[1] != digests[2]


def test_methods_count_where_they_are_named(module, monkeypatch):
    class Thing:
        def speed(self):
            return 1

    watched = ((Thing, "speed"),)
    before = source_digest(module.double, watched)
    assert before != source_digest(module.double)
    monkeypatch.setattr(Thing, "speed", lambda self: 2)
    assert source_digest(module.double, watched) != before


def test_decorated_functions_keep_their_names():
    @fused("test.named", "json")
    def named():
        """Says so."""

    assert (named.__name__, named.__doc__) == ("named", "Says so.")
