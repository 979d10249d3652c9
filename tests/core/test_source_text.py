"""Source as text: what `inspect` gives, for every function of some modules that are full of them; and as a tree, which
neither formatting nor the version of Python changes."""

import ast
import gc
import inspect
import itertools
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import headrace
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
        bare = textwrap.dedent(source_text.without_comments(text))
        found = ast.parse(bare if definition.body else f"{bare}    pass")
        if not definition.body:
            found.body[0].body = []
        assert ast.dump(found) == ast.dump(expected)
        assert not any(line.lstrip().startswith("#") or not line for line in bare.rstrip().splitlines())


def test_comments_docstrings_and_blank_lines_are_left_out():
    text = '    def f(x):\n        """Twice."""\n\n        # here\n        y = x  # and here\n        return "#" + y\n'
    bare = source_text.without_comments(text)
    assert textwrap.dedent(bare) == 'def f(x):\n    y = x\n    return "#" + y\n'


def test_a_number_sign_in_a_string_is_no_comment():
    text = 'def f(x):\n    return f"# {x}", """\n\n  # here\n""", \'"# \' + "\\"#"  # "gone"\n'
    kept = 'def f(x):\n    return f"# {x}", """\n\n  # here\n""", \'"# \' + "\\"#"\n'
    assert source_text.without_comments(text) == kept


TREES = """
import sys, types
sys.path.insert(0, sys.argv[1])
from headrace.core import source_text
def codes(code):
    for x in code.co_consts:
        if isinstance(x, types.CodeType):
            yield x
            yield from codes(x)
for path in sys.argv[2:]:
    for code in codes(compile(open(path, encoding="utf-8").read(), path, "exec")):
        made = code.co_flags & 0x2 and code.co_name[0] != "<" or code.co_name == "<lambda>"  # functions alone
        if made:
            cells = tuple(types.CellType() for _ in code.co_freevars)
            print(code.co_name, source_text.tree_text(types.FunctionType(code, {}, closure=cells)))
"""


def trees(python, root, paths):
    command = [python, "-c", TREES, root, *paths]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout


def pythons():
    """Other versions of Python on this machine that Headrace runs with."""
    for name in (f"python3.{minor}" for minor in (11, 12, 13) if minor != sys.version_info.minor):
        paths = [shutil.which(name), *Path(sys.base_prefix).parent.glob(f"{name[6:]}*/bin/{name}")]
        runs = (x for x in paths if x and not subprocess.run([x, "-c", ""], capture_output=True).returncode)
        yield from itertools.islice(runs, 1)


def test_trees_are_the_same_in_every_version_of_python(tmp_path):
    root = Path(headrace.__file__).parents[1]
    odd = tmp_path / "odd.py"
    odd.write_text(ODD)
    paths = [str(odd), *map(str, sorted((root / "headrace" / "algorithms").glob("*.py")))]
    expected = trees(sys.executable, str(root), paths)
    assert expected.count("\n") > 100
    for python in pythons():
        assert trees(python, str(root), paths) == expected, python


ODD = '''
def strings(x, y):
    """Text."""
    return f"a{x}" "b", f"{x!r:>{y}}{y=}", f"{x:{y}}", f"", "ü" u"v", rb"\\x", f"a" "b"

def others(x, *y, z: int = 1, **w) -> int:
    match x:
        case {"a": [1, *_], **rest} if rest: del (rest, y)
        case str() | None: pass
    with open(x) as a, open(x) as b: ...
    try: async_ = [i async for i in x] if 0 else lambda: (yield)
    except* ValueError as e: raise
    global G; G = 10_000; v: int; u: int = 1
    return [*y, *(k := {**w})], x[1:2, ...], 1e400, 1j, not x, -1
'''.replace("async_ = [i async for i in x] if 0 else lambda: (yield)", "later = lambda: (yield)")


def test_formatting_the_whole_package_changes_no_tree(tmp_path):
    root = Path(headrace.__file__).parents[1]
    shutil.copytree(root / "headrace", tmp_path / "headrace", ignore=shutil.ignore_patterns("__pycache__"))
    settings = ["--line-length", "60", "--config", "format.quote-style = 'single'", "--no-cache", "--isolated"]
    ruff = Path(sys.executable).with_name("ruff")
    subprocess.run([ruff, "format", *settings, str(tmp_path)], check=True, capture_output=True)
    names = sorted(path.relative_to(root) for path in (root / "headrace").rglob("*.py"))
    names = [name for name in names if name.parts[1] in ("core", "data", "policies", "algorithms", "parallel")]
    assert (root / names[9]).read_bytes() != (tmp_path / names[9]).read_bytes()
    before, after = (trees(sys.executable, str(root), [str(top / name) for name in names]) for top in (root, tmp_path))
    assert before == after and before.count("\n") > 500


class Loop:
    """Garbage that runs code of its own as it is collected."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        sum(range(50))


def test_threads_that_make_trees_do_not_disturb_each_other():
    """Threads disturb each other in Python 3.11 when they change within ast.parse() while garbage is collected."""
    wanted, found = source_text.tree_text(ppo.PPO.update), []

    def work():
        for _ in range(60):
            Loop()
            found.append(source_text.tree_text(ppo.PPO.update))

    usual = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(10)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual[0])
        gc.set_threshold(*usual[1])
    assert found == [wanted] * 240


def test_the_package_parses_in_one_place():
    """Only the place that takes a lock parses; ast.literal_eval() parses, too."""
    package = Path(headrace.__file__).parent
    calls = re.compile(r"\bast\.(parse|literal_eval)\(|\bONLY_AST\b|from ast import")
    found = {str(file.relative_to(package)) for file in package.rglob("*.py") if calls.search(file.read_text("utf-8"))}
    assert found == {"core/source_text.py"}
