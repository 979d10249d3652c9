"""The recipes of CONTRIBUTING.md, followed in a copy of the repository: what they say is all that is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.documents import ROOT, blocks

FOLDERS = ("headrace", "tests", "docs", "examples", "benchmarks")
FILES = ("pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def follow(copy: Path, title: str) -> None:
    """Write what the blocks of a recipe show into the files that they name."""
    recipe = (ROOT / "CONTRIBUTING.md").read_text().split(f"### {title}\n")[1].split("\n### ")[0]
    pieces = re.split(r"^# (\S+), (in|before) (.*)\n", recipe.split("```py\n")[1].split("```")[0], flags=re.MULTILINE)
    assert not pieces[0] and len(pieces) > 4
    for file, where, mark, piece in zip(*(pieces[start::4] for start in (1, 2, 3, 4)), strict=True):
        assert f"`{file}`" in recipe, f"the recipe names no {file}"
        lines = (copy / file).read_text().splitlines(keepends=True)
        pattern = rf"(if )?{re.escape(mark)}\b.*[({{:]( +#.*)?$" if where == "in" else re.escape(mark)
        (place,) = [number for number, line in enumerate(lines) if re.match(pattern, line)]
        text = piece.rstrip("\n") + "\n"
        if where == "in":
            text = "".join(f"    {line}\n" for line in text.splitlines())
        elif not mark.startswith("|"):
            text += "\n\n" if mark.startswith("def") else "\n"
        (copy / file).write_text("".join([*lines[: place + (where == "in")], text, *lines[place + (where == "in") :]]))


def run(copy: Path, *arguments: str) -> str:
    """Run a program of the copy and return what it prints."""
    environ = os.environ | {"PYTHONPATH": str(copy), "HEADRACE_COMPILE_AHEAD": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environ, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(copy: Path, *arguments: str) -> str:
    short = ("--log-folder", "runs", "--progress", "plain", "--final-episodes", "0")
    return run(copy, "-m", "headrace", "train", *arguments, *short)


def own_tests(copy: Path, *arguments: str) -> str:
    """The copy's own tests."""
    return run(copy, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *arguments)


def test_a_new_environment(copy):
    follow(copy, "A new environment")
    chase = blocks(ROOT / "docs/own-environments.md")[0]
    imports = "from headrace.data.spaces import Box, Discrete\nfrom headrace.envs.compiled.kernel_env import KernelEnv"
    chase = chase.replace("from headrace import Box, Discrete, KernelEnv", imports)  # as in cartpole.py
    (copy / "headrace/envs/builtin/chase.py").write_text(chase)
    assert "Chase" in run(copy, "-m", "headrace", "envs")
    assert "ended by target_return" in train(copy, "ppo", "Chase")
    assert "PASSED" in own_tests(copy, "tests/test_layers.py", "tests/test_examples.py", "-k", "test_layers or list")


def test_a_new_algorithm(copy):
    follow(copy, "A new algorithm")
    source = (ROOT / "examples/vanilla_policy_gradient.py").read_text()
    source = source.replace("VanillaPolicyGradient", "Vanilla").replace('"vanilla_policy_gradient"', '"vanilla"')
    (copy / "headrace/algorithms/vanilla.py").write_text(source)
    run(copy, "tests/test_typed_options.py")
    assert "trained in" in train(copy, "vanilla", "CartPole-v1", "--total-steps", "4000", "--value-coef", "0.4")
    files = ("algorithms/test_public.py", "algorithms/test_registry.py", "test_typed_options.py", "test_layers.py")
    words = "public or every_name or each_is_for or stub or layers"
    assert "[Vanilla] PASSED" in own_tests(copy, *(f"tests/{file}" for file in files), "-k", words)


def test_a_new_loss(copy):
    """The form of docs/own-algorithm.md, in a file of the package."""
    loss = next(block for block in blocks(ROOT / "docs/own-algorithm.md") if "def penalised" in block)
    (copy / "headrace/algorithms/penalised.py").write_text(loss.replace("import headrace as hr\n", ""))
    said = train(copy, "headrace.algorithms.penalised:Penalised", "CartPole-v1", "--total-steps", "4000")
    assert "trained in" in said and "plain PyTorch" not in said
    assert '"penalty"' in next((copy / "runs").rglob("metrics.jsonl")).read_text()


def test_a_new_activation(copy):
    follow(copy, "A new activation")
    said = train(copy, "ppo", "CartPole-v1", "--activation", "softsign", "--total-steps", "4000")
    assert "trained in" in said and "plain PyTorch" not in said
    said = own_tests(copy, "tests/deploy/test_export.py", "-k", "softsign")
    compared = ("softsign-c", "softsign-numpy", "softsign-onnx")
    assert not [name for name in compared if f"[{name}] PASSED" not in said], said
