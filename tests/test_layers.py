"""The plan of the house, checked: imports go down only, families are shallow, heavy libraries load when used."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[1]
MAX_LINES = 400
HEAVY = {"numba", "matplotlib", "tensorboardX", "rich"}

# Every folder, and each module that stands apart from its folder. An import goes to the same floor or further down.
FLOORS = (
    "gym",  # ids for Gymnasium: imports nothing of the package
    "core",
    "core.processes",
    *("setting_schedules", "data"),
    "kernels.runtime",
    "kernels.language",
    "kernels.targets",
    *("kernels.targets.cpu", "kernels.targets.torch", "kernels.targets.cuda"),
    *("kernels.physics", "kernels.nn"),
    *("kernels.rows", "kernels.rows.tracing", "kernels.rows.lowering", "kernels.rows.targets", "kernels.rows.gpu"),
    "kernels.learning",
    "kernels.off_policy",
    "kernels.cuda",
    "kernels",
    *("policies", "policies.discrete"),
    "agent_groups",
    "envs.base",
    "envs.compiled",
    "envs.gym",
    "envs.sources",
    "envs.registry",
    "envs.vector",
    "envs.workers",
    "envs.wrappers",
    *("envs.builtin", "envs.builtin.entities", "envs.simulators"),
    "envs",
    "envs.vector_env",
    *("algorithms", "algorithms.discrete", "algorithms.intrinsic", "algorithms.offline", "algorithms.vtrace"),
    "symmetry",
    "self_play",
    "parallel",
    "parallel.cluster",
    "parallel.cuda",
    "bindings",
    "bindings.compiled",
    "bindings.collecting",
    "evaluation",
    "checks",
    "runs.events",
    "runs.logs",
    "runs.tensor_file",
    "runs.moving",
    "runs.checkpoint",  # which a training may begin from
    *("training.from_data", "training"),
    "tuning",
    "training.trainer",  # tries settings that are to be found
    "runs",
    "training.resuming",
    "training.loop",  # brings a Trainer and a Recorder together
    "tuning.tuner",  # steps Trainers
    "populations",
    "deploy",
    "diagnose.injected",
    "diagnose.profile",
    "diagnose.record",
    "diagnose.verdict",
    "diagnose.report",
    *("sb3", "sb3.zoo"),
    "diagnose",
    *("cli.several", "cli"),
    "",  # the package itself: public names
)
APART = {("policies", "envs"), ("envs", "policies"), ("algorithms", "envs")}  # (importer, imported)
MAX_FILES = 21  # modules of a folder, __init__ included
SHARED_NAMES = {"__init__", "base", "registry", "env"}  # names that modules of several folders may have


@dataclass
class Module:
    """Contents of one file, before names are resolved."""

    name: str
    path: Path
    tree: ast.Module
    imports: list[tuple[str, int]] = field(default_factory=list)  # dotted name, line; anywhere in the file
    at_load: list[tuple[str, int]] = field(default_factory=list)  # those that importing the module runs
    aliases: dict[str, str] = field(default_factory=dict)  # local name -> dotted name
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)  # by name


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
        elif isinstance(child, ast.ClassDef):
            module.classes.setdefault(child.name, child)
        elif isinstance(child, ast.expr):
            continue  # no import and no class can be in there
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
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
    """The module of the package in which a dotted name is defined; None for other packages' names."""
    while dotted:
        if dotted in modules:
            return dotted
        dotted = dotted.rpartition(".")[0]
    return None


def folder(module: Module) -> str:
    """'headrace.envs.gym.inline' -> 'envs.gym'; a package -> itself; the package of all -> ''."""
    name = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    return name.partition(".")[2]


def floor(module: Module) -> int:
    """Height in the house, 0 at the bottom. Raises ValueError for a folder that FLOORS does not name."""
    alone = module.name.partition(".")[2]
    return FLOORS.index(alone if alone in FLOORS else folder(module))


def wing(module: Module) -> str:
    """The folder right below the package: 'envs'."""
    return folder(module).partition(".")[0]


def climbing_imports(modules: dict[str, Module]) -> list[str]:
    """Imports, at any depth of a file, of something higher up or from a wing that is kept apart."""
    wrong = []
    for module in modules.values():
        for target, line in module.imports:
            imported = owner(target, modules)
            if imported is None:
                continue
            other = modules[imported]
            if floor(other) > floor(module):
                wrong.append(f"{module.path}:{line}: {module.name} imports {imported}, which is higher up")
            if (wing(module), wing(other)) in APART:
                wrong.append(f"{module.path}:{line}: {module.name} imports {imported}: {wing(module)} may not")
    return wrong


def unnamed_folders(modules: dict[str, Module]) -> set[str]:
    """Folders that FLOORS does not name. What is injected into other processes imports nothing of the package."""
    return {folder(module) for module in modules.values()} - {*FLOORS, "diagnose.injected.hook"}


def circles(modules: dict[str, Module]) -> list[list[str]]:
    """Modules that import each other, directly or by way of others, at any depth of their files."""
    reached = {
        name: {owner(target, modules) for target, _ in module.imports} - {None, name, "headrace"}
        for name, module in modules.items()
    }
    found = []
    for start in modules:
        way: dict[str, str] = {}
        waiting = [start]
        while waiting:
            name = waiting.pop()
            for other in reached[name] - way.keys():
                way[other] = name
                waiting.append(other)
        if start in way:
            circle = [start]
            while (before := way[circle[-1]]) != start:
                circle.append(before)
            found.append(sorted(circle))
    return [list(circle) for circle in sorted({tuple(circle) for circle in found})]


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
    """Dotted names of a class's bases inside the package, protocols left out; None where `dotted` is no class of it."""
    home = owner(dotted, modules)
    if home is None or home == dotted:
        return None
    module = modules[home]
    node = module.classes.get(dotted[len(home) + 1 :])
    if node is None:
        return None
    bases = (_resolve(ast.unparse(base), module, modules) for base in node.bases)
    return [base for base in bases if base is not None and not is_protocol(base, modules)]


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
    """Tell whether the package defines a class of this dotted name."""
    home = owner(dotted, modules)
    return home is not None and dotted[len(home) + 1 :] in modules[home].classes


def is_protocol(dotted: str, modules: dict[str, Module]) -> bool:
    """Tell whether a class of the package is a typing.Protocol, which is no parent of the classes that implement it."""
    home = owner(dotted, modules)
    node = modules[home].classes.get(dotted[len(home) + 1 :]) if home is not None else None
    return node is not None and any(ast.unparse(base) == "Protocol" for base in node.bases)


def grandchildren(modules: dict[str, Module]) -> list[str]:
    """Classes of the package with a grandparent in the package."""
    wrong = []
    for module in modules.values():
        for node in module.classes.values():
            for parent in parents(f"{module.name}.{node.name}", modules) or []:
                for grandparent in parents(parent, modules) or []:
                    wrong.append(f"{module.path}:{node.lineno}: {node.name} has the grandparent {grandparent}")
    return wrong


@pytest.fixture(scope="module")
def house() -> dict[str, Module]:
    return read(ROOT / "headrace")


def test_every_folder_is_named(house):
    assert not unnamed_folders(house)


def test_imports_go_down_only(house):
    assert not climbing_imports(house)


def test_there_is_no_circle(house):
    assert not circles(house)


def test_no_folder_is_crowded(house):
    sizes = Counter(folder(module) for module in house.values())
    assert not {name: size for name, size in sizes.items() if size > MAX_FILES}


def test_no_two_modules_share_a_name(house):
    algorithms = {path.stem for path in (ROOT / "headrace" / "algorithms").glob("*.py")}
    counted = Counter(module.path.stem for module in house.values() if folder(module) != "cli")
    assert not {name for name, number in counted.items() if number > 1} - SHARED_NAMES - algorithms


def test_no_module_is_called_like_a_public_function(house):
    functions = {name for name in headrace.__all__ if inspect.isfunction(getattr(headrace, name))}
    verbs = {"cli"}  # the modules of `headrace train` and the like are called like their verbs
    assert not {
        module.name for module in house.values() if module.path.stem in functions and folder(module) not in verbs
    }


def test_no_class_has_a_grandparent(house):
    assert not grandchildren(house)


def test_importing_headrace_loads_nothing_heavy(house):
    assert not heavy_imports(house, "headrace")


@pytest.mark.parametrize("folder", ["headrace", "benchmarks", "examples", "tests"])
def test_no_file_is_too_long(folder):
    lengths = {str(path): len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_LINES}


def build(root: Path, files: dict[str, str]) -> dict[str, Module]:
    """A package `headrace` made of the given sources."""
    for name, source in {"__init__.py": "", **files}.items():
        path = root / "headrace" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        for parent in path.relative_to(root / "headrace").parents:
            if not (init := root / "headrace" / parent / "__init__.py").exists():
                init.write_text("")
    return read(root / "headrace")


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/rng.py", "from headrace.training import loop"),
        ("core/rng.py", "def f():\n    from headrace.data.rollout import Rollout"),
        ("kernels/nn/simd.py", "import headrace.policies.base"),
        ("kernels/nn/simd.py", "from headrace.kernels.learning import rollouts"),
        ("policies/base.py", "from ..envs import base"),
        ("algorithms/ppo.py", "def f():\n    import headrace.envs.base"),
        ("parallel/collector.py", "from headrace import make"),  # a name of the package itself, which is on top
    ],
)
def test_an_import_that_climbs_is_found(tmp_path, file, source):
    names = ("training/loop.py", "data/rollout.py", "envs/base.py", "policies/base.py", "kernels/learning/rollouts.py")
    modules = build(tmp_path, {**dict.fromkeys(names, ""), file: source})
    assert climbing_imports(modules)


def test_an_import_that_goes_down_is_not_blamed(tmp_path):
    files = {
        "core/rng.py": "import torch",
        "envs/base.py": "from headrace.core import rng",
        "training/loop.py": "from ..envs import base",
    }
    assert not climbing_imports(build(tmp_path, files))


def test_a_folder_without_a_floor_is_found(tmp_path):
    assert unnamed_folders(build(tmp_path, {"attic/chest.py": "", "core/rng.py": ""})) == {"attic"}


def test_a_circle_is_found(tmp_path):
    files = {
        "core/a.py": "from headrace.core import b",
        "core/b.py": "def f():\n    from headrace.core.c import d",
        "core/c.py": "import headrace.core.a",
        "core/e.py": "from headrace.core import a",
    }
    assert circles(build(tmp_path, files)) == [["headrace.core.a", "headrace.core.b", "headrace.core.c"]]


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
        "runs/run.py": "def plot():\n    import matplotlib.pyplot\nfrom headrace.kernels.language import ops",
        "kernels/language/ops.py": "try:\n    import numba.core\nexcept ImportError:\n    pass",
        "evaluation/curves.py": "import matplotlib",
    }
    (wrong,) = heavy_imports(build(tmp_path, files), "headrace")
    assert "ops.py:2: loads numba.core" in wrong
