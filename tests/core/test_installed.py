"""Owner of a module: Headrace, an installed package, or the user."""

import functools
import importlib
import re
from pathlib import Path

import pytest

import headrace
from headrace.core import closure
from headrace.core.packages import of_headrace


@pytest.mark.parametrize(
    ("code", "notes", "installed"),
    {
        "as by pip": ("site-packages", "site-packages", True),
        "as by pip --target": ("ü libs", "ü libs", True),
        "editable": ("sources", "site-packages", False),
        "a folder whose name has the words": ("my-site-packages", "none", False),
    }.values(),
)
def test_what_is_installed_is_found_wherever_it_is(code, notes, installed, tmp_path, monkeypatch):
    name = f"of_others_{code.encode().hex()}"
    for folder, file, text in (
        (code, f"{name}/__init__.py", ""),
        (notes, f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"),
    ):
        if folder != "none":
            (tmp_path / folder / file).parent.mkdir(parents=True)
            (tmp_path / folder / file).write_text(text)
            monkeypatch.syspath_prepend(str(tmp_path / folder))
    importlib.import_module(name)
    assert closure._is_others(name) is installed


def test_code_of_headrace_is_told_by_the_package_of_its_module():
    class Own(headrace.PPO):
        def update(self, rollout):
            return super().update(rollout)

    for code in ("headrace", "headrace.runs.run", headrace.PPO, headrace.PPO.update, Own.state_dict, of_headrace):
        assert of_headrace(code)
    for code in (
        "headrace_tasks.maze",
        "my.headrace",
        "",
        Own,
        Own.update,
        functools.partial(of_headrace, ""),
        3,
        None,
    ):
        assert not of_headrace(code)


def test_code_of_headrace_is_told_in_one_place():
    root = Path(headrace.__file__).parent
    by_name = re.compile(r"""__module__.*["']headrace[."']""")
    found = [path.name for path in root.rglob("*.py") if by_name.search(path.read_text())]
    assert found == [] and by_name.search("kind.__module__.startswith('headrace.')")
