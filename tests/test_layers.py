"""The plan of the house, checked: imports go down only, families are shallow, heavy libraries load when used."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_LINES = 400
HEAVY = {"numba", "matplotlib", "tensorboardX", "rich"}

LEVELS = [
    {"returns", "timer", "device", "rng", "fused", "source_text"},  # numbers
    {"rollout", "spaces", "replay", "priorities", "sequences", "shared_memory"},  # memory
    {"kernels"},
    {"policies", "envs"},  # minds and worlds, which never import each other
    {"algorithms"},
    {"parallel"},
]  # whatever is not named here is for people, and on top of them all
STRANGERS = {("policies", "envs"), ("envs", "policies"), ("algorithms", "envs")}  # (importer, imported)


@dataclass
class Module:
    """What one file says about itself, before names are resolved."""

    name: str
    path: Path
    tree: ast.Module
    imports: list[tuple[str, int]] = field(default_factory=list)  # dotted name, line; anywhere in the file
    at_load: list[tuple[str, int]] = field(default_factory=list)  # those that importing the module runs
    aliases: dict[str, str] = field(default_factory=dict)  # local name -> dotted name


def read(package: Path) -> dict[str, Module]:
    """Every module below a package's folder, by dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = Module(name, path, ast.parse(path.read_text(), str(path)))
        _collect(module, module.tree, at_load=True)
        modules[name] = module
    return modules


def _collect(module: Module, node: ast.AST, at_load: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for local, target in _targets(module, child):
                module.imports.append((target, child.lineno))
                module.aliases[local] = target
                if at_load:
                    module.at_load.append((target, child.lineno))
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        _collect(module, child, at_load and not inside and not typing_only)


def _targets(module: Module, node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    if isinstance(node, ast.Import):
        return [(alias.asname or alias.name, alias.name) for alias in node.names]
    base = node.module or ""
    if node.level:
        parents = module.name.split(".")
        keep = len(parents) - node.level + (module.path.name == "__init__.py")
        base = ".".join([*parents[:keep], *([base] if base else [])])
    return [(alias.asname or alias.name, f"{base}.{alias.name}") for alias in node.names]


def owner(dotted: str, modules: dict[str, Module]) -> str | None:
    """The module of the package in which a dotted name lives; None for other people's."""
    while dotted:
        if dotted in modules:
            return dotted
        dotted = dotted.rpartition(".")[0]
    return None


def room(module: str) -> str:
    """'headrace.envs.builtin.cartpole' -> 'envs'; the package itself -> ''."""
    return ([*module.split("."), ""])[1]


def level(module: str) -> int:
    """Height in the house, 0 at the bottom."""
    return next((height for height, rooms in enumerate(LEVELS) if room(module) in rooms), len(LEVELS))


def climbing_imports(modules: dict[str, Module]) -> list[str]:
    """Imports, at any depth of a file, of something higher up or of a stranger."""
    wrong = []
    for module in modules.values():
        for target, line in module.imports:
            imported = owner(target, modules)
            if imported is None:
                continue
            if level(imported) > level(module.name):
                wrong.append(f"{module.path}:{line}: {module.name} imports {imported}, which is higher up")
            if (room(module.name), room(imported)) in STRANGERS:
                wrong.append(f"{module.path}:{line}: {module.name} imports {imported}: {room(module.name)} may not")
    return wrong


def heavy_imports(modules: dict[str, Module], package: str) -> list[str]:
    """Heavy libraries that `import package` would load."""
    wrong, waiting, seen = [], [package], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0] or name)  # importing a.b runs a first
        for target, line in modules[name].at_load:
            imported = owner(target, modules)
            if imported:
                waiting.append(imported)
            elif target.split(".")[0] in HEAVY:
                wrong.append(f"{modules[name].path}:{line}: loads {target} with `import {package}`")
    return wrong


def parents(dotted: str, modules: dict[str, Module]) -> list[str] | None:
    """Dotted names of a class's bases inside the package; None where `dotted` is no class of the package."""
    home = owner(dotted, modules)
    if home is None or home == dotted:
        return None
    module, name = modules[home], dotted[len(home) + 1 :]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = (_resolve(ast.unparse(base), module, modules) for base in node.bases)
            return [base for base in bases if base is not None]
    return None


def _resolve(expression: str, module: Module, modules: dict[str, Module]) -> str | None:
    """The class of the package that a base expression means, through imports and re-exports."""
    head, _, rest = expression.split("[")[0].partition(".")
    dotted = ".".join(part for part in (module.aliases.get(head, f"{module.name}.{head}"), rest) if part)
    if is_class(dotted, modules):
        return dotted
    home = owner(dotted, modules)
    if home is None or home == dotted or home == module.name:
        return None
    return _resolve(dotted[len(home) + 1 :], modules[home], modules)


def is_class(dotted: str, modules: dict[str, Module]) -> bool:
    """Whether the package defines a class of this dotted name."""
    home = owner(dotted, modules)
    return home is not None and any(
        isinstance(node, ast.ClassDef) and f"{home}.{node.name}" == dotted for node in ast.walk(modules[home].tree)
    )


def grandchildren(modules: dict[str, Module]) -> list[str]:
    """Classes of the package with a grandparent in the package."""
    wrong = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for parent in parents(f"{module.name}.{node.name}", modules) or []:
                for grandparent in parents(parent, modules) or []:
                    wrong.append(f"{module.path}:{node.lineno}: {node.name} has the grandparent {grandparent}")
    return wrong


@pytest.fixture(scope="module")
def house() -> dict[str, Module]:
    return read(ROOT / "headrace")


def test_imports_go_down_only(house):
    assert not climbing_imports(house)


def test_no_class_has_a_grandparent(house):
    assert not grandchildren(house)


def test_importing_headrace_loads_nothing_heavy(house):
    assert not heavy_imports(house, "headrace")


@pytest.mark.parametrize("folder", ["headrace", "benchmarks", "examples", "tests"])
def test_no_file_is_two_rooms(folder):
    lengths = {str(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


def build(folder: Path, files: dict[str, str]) -> dict[str, Module]:
    """A package `headrace` made of the given sources."""
    for name, source in {"__init__.py": "", **files}.items():
        path = folder / "headrace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return read(folder / "headrace")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("rng.py", "from headrace import train"),
        ("rng.py", "def f():\n    from headrace.data.rollout import Rollout"),
        ("kernels/mlp.py", "import headrace.policies.base"),
        ("policies/base.py", "from ..envs import base"),
        ("envs/base.py", "from headrace.policies.base import Policy"),
        ("algorithms/ppo.py", "def f():\n    import headrace.envs.base"),
        ("parallel/collector.py", "from headrace import make"),  # a name of the package itself, which is on top
    ],
)
def test_an_import_that_climbs_is_found(tmp_path, file, source):
    rest = {name: "" for name in ("train.py", "rollout.py", "envs/__init__.py", "envs/base.py", "policies/base.py")}
    modules = build(tmp_path, {**rest, file: source})
    assert len(climbing_imports(modules)) == 1


def test_an_import_that_goes_down_is_not_blamed(tmp_path):
    files = {"rng.py": "import torch", "envs/base.py": "from headrace import rng", "train.py": "from .envs import base"}
    assert not climbing_imports(build(tmp_path, files))


def test_a_grandparent_is_found_through_imports_and_re_exports(tmp_path):
    files = {
        "policies/base.py": "class Policy: ...",
        "policies/__init__.py": "from headrace.policies.base import Policy as Base",
        "policies/actor.py": "from headrace import policies\nclass Actor(policies.Base): ...",
        "policies/deep.py": "from .actor import Actor\nclass Deep(Actor): ...",
    }
    (wrong,) = grandchildren(build(tmp_path, files))
    assert "Deep has the grandparent headrace.policies.base.Policy" in wrong


def test_a_heavy_import_is_found_where_it_loads_and_only_there(tmp_path):
    files = {
        "__init__.py": "from headrace.runs.run import Run",
        "run.py": "def plot():\n    import matplotlib.pyplot\nfrom headrace.kernels import words",
        "kernels/__init__.py": "",
        "kernels/language/ops.py": "try:\n    import numba.core\nexcept ImportError:\n    pass",
        "plot.py": "import matplotlib",
    }
    (wrong,) = heavy_imports(build(tmp_path, files), "headrace")
    assert "words.py:2: loads numba.core" in wrong
