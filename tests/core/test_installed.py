"""Owner of a module: an installed package, or the user."""

import importlib

import pytest

from headrace.core import closure


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
