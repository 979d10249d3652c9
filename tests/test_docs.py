"""The documents are true: paths and links exist, commands parse and run, blocks of Python run, small."""

from __future__ import annotations

import ast
import contextlib
import glob
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tyro
from helpers.documents import DOCUMENTS, ROOT, SMALL, blocks, commands, name

import headrace
from headrace.cli.main import main
from headrace.cli.several import seeds

OTHER_FILES = {
    "my_algorithm.py",  # the reader's, and one of Gymnasium's
    *(
        "chase.py",
        "vanilla.py",
        "herd.py",
        "hover.py",
        "balance.py",
        "mover.py",
        "drift.py",
        "my_kernel.py",
        "my_policy.py",
        "policy.py",
        "train.py",
        "path/to/file.py",
        "file.py",
    ),
    "discrete.py",
}
NOT_RUN = {  # what a command contains that is parsed alone -> why
    "LunarLander": "needs Box2D",
    "headrace cluster": "needs a cluster",
    "headrace hub": "needs a network",
    "headrace compare": "needs Stable-Baselines3",
    "headrace record": "needs h5py",
    "--replay": "data that an earlier command wrote; test_first_rows.py begins with such",
    "cleanrl/runs": "folders of other libraries",
    "HalfCheetah": "needs MuJoCo",
    "simple_spread": "needs MPE2",
    "minigrid": "needs MiniGrid",
    "ALE/": "needs ALE",
    "envpool/": "needs EnvPool",
    "mjlab": "needs mjlab",
    "cuda": "needs a GPU",
    "diagnose": "takes a minute",
    "headrace tune": "takes a minute",
    "headrace population": "tests/populations runs it",
    "drift.py": "a file of the reader's",
    "ppo Tag": "compiles for seconds; test_entity_envs.py trains it",
    "herd.py": "takes seconds; test_entity_envs.py steps it",
    "check --": "takes a minute",
    "--help": "prints and exits",
}
SMALLER = "import runpy\nimport headrace as hr\ntrain_, evaluate_ = hr.train, hr.evaluate\n" + (
    "def fewer(options):\n"
    "    rows = {} if 'replay' in options else {'num_steps': options.get('sequence_length', 16)}\n"
    "    return options | {'total_steps': 1} | rows\n"
    "hr.train = lambda *args, **options: train_(*args, **fewer(options))\n"
    "Training_ = hr.Training\n"
    "hr.Training = lambda *args, **options: Training_(*args, **options | {'total_steps': 1, 'num_steps': 8})\n"
    "hr.evaluate = lambda *args, **options: evaluate_(*args, **options | {'episodes': 2})\n"
)
TRAINED = "policy = hr.train('ppo', 'CartPole-v1').policy\nobservations = np.zeros((3, 4), np.float32)\n"
PRELUDES = {  # document -> what its blocks of Python need; those of other documents are parsed alone
    "README.md": "",
    "docs/compile.md": "",
    "docs/schedules.md": "",
    "docs/populations.md": "",
    "docs/curricula.md": "",
    "docs/intrinsic.md": "",
    "docs/self-play.md": "",
    **dict.fromkeys(("docs/qrdqn.md", "docs/c51.md", "docs/discrete_sac.md", "docs/hybrid_sac.md"), ""),
    "docs/algorithms.md": f"""{TRAINED}
from headrace.kernels.language.ops import f32
observation, state = observations[0], None
class Reach(hr.KernelEnv):
    observation_space, action_space, max_steps = hr.Box(-1, 1, (1,)), hr.Discrete(2), 9
    class Params(NamedTuple):
        goal: f32 = 0.0
    class State(NamedTuple):
        x: f32
    def reset(s, p, key):
        return Reach.State(0.0)
    def step(s, p, action, key):
        return Reach.State(s.x + 0.1 * action), -abs(s.x - p.goal), False
    def observe(s, p):
        return (s.x,)
""",
    "docs/checking.md": """
from headrace.parallel.collector import InlineCollector
env = hr.make('CartPole-v1', 2)
policy = hr.ActorCritic(env.observation_space, env.action_space)
num_steps, columns, seed = 4, {}, 0
""",
    **dict.fromkeys(("docs/environments.md", "docs/workers.md"), "MyWrapper = gymnasium.Wrapper\n"),
    "docs/own-environments.md": "",
    "docs/multi-agent.md": "",
    "docs/simulators.md": "make_env = lambda: gymnasium.make('CartPole-v1')\n",
    "docs/gpu.md": f"""{TRAINED}
import torch
observation, random = torch.zeros(2, 4), torch.zeros(2, policy.num_draws)
""",
    "docs/entities.md": "",
    "docs/robots.md": (  # a renderer needs OpenGL
        "import contextlib, mujoco\nfrom unittest import mock\n"
        "mujoco.Renderer = lambda model: contextlib.nullcontext(mock.Mock())\n"
    ),
    "docs/from_sb3.md": "",
    "docs/vector_envs.md": "",
    "docs/own-loop.md": """
class Tracker:
    def __init__(self, settings): pass
    def log(self, row, step): pass
""",
    "docs/own-algorithm.md": "",
    "docs/own-policy.md": """
make_env = lambda: gymnasium.wrappers.ReshapeObservation(gymnasium.make('CartPole-v1'), (2, 2))
""",
    "docs/runs.md": f"{TRAINED}observation = observations[0]\n",
    "docs/tutorials/first-training.md": TRAINED,
    "docs/tutorials/your-environment.md": "",
    "docs/tutorials/from-cleanrl.md": "",
    "docs/tutorials/many-cores.md": "",
}
SLOW_PRELUDES = {  # likewise, where it takes longer, or packages that need not be there
    "docs/td3.md": "",
    "docs/deploy.md": """
policy = hr.ActorCritic(hr.Box(-5, 5, (4,)), hr.Discrete(2))
for to in ('numpy', 'onnx', 'c'):
    hr.export(policy, to=to, output={'numpy': 'policy.py', 'onnx': 'policy.onnx', 'c': 'policy.h'}[to])
observation = np.full(4, 0.1, np.float32)
""",
    "docs/parallel.md": """
env = hr.make('CartPole-v1', 2)
policy, learn = hr.ActorCritic(env.observation_space, env.action_space), lambda rollout: None
""",
    "docs/data.md": "",
    "docs/offline.md": "",
    "docs/my-gpu-is-at-2-percent.md": "",
    "docs/tuning.md": "tune_ = hr.tune\nhr.tune = lambda *args, **options: tune_(*args, **options | {'seconds': 5})\n",
}
NEEDED = {
    "docs/data.md": ("h5py",),
    "docs/deploy.md": ("onnx", "onnxruntime"),
    "docs/tuning.md": ("Box2D",),
    "docs/my-gpu-is-at-2-percent.md": ("stable_baselines3",),
}
FRAGMENT = re.compile(r"^ *\.\.\.$", re.MULTILINE)  # a block with left-out lines is parsed alone
SUBSTITUTES = {  # smaller, and without packages that need not be there
    "LunarLander-v3": "CartPole-v1",
    "Workers(8)": "Workers(2)",
    "workers=8": "workers=2",
    "range(5)": "range(1)",
    "range(8)": "range(2)",
    "[0] * 8": "[0] * 2",
    "episodes=100": "episodes=2",
    "range(100)": "range(2)",
    "actors=4": "actors=2",
    "learn(10_000_000": "learn(2_048",
    'params={"goal": goal})': 'params={"goal": goal}, backend="torch")',
    '"reach": 0.4})': '"reach": 0.4}, backend="torch")',
}


def prose(document: Path) -> str:
    """A document without what its links lead to."""
    return re.sub(r"\]\([^)]*\)", "]", document.read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_python_file_that_is_named_exists(document):
    named = set(re.findall(r"[\w./-]*\w\.py\b", prose(document))) - OTHER_FILES
    named |= {f"{name.replace('.', '/')}.py" for name in re.findall(r"-m (benchmarks[\w.]*\w)", document.read_text())}
    tracked = {
        path.name
        for folder in ("headrace", "benchmarks", "tests", "examples", "docs")
        for path in (ROOT / folder).rglob("*.py")
    }
    missing = {path for path in named if not ((ROOT / path).exists() if "/" in path else path in tracked)}
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        other = (document.parent / path).resolve() if path else document
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                target
            )


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_extra_and_every_make_target_exists(document):
    text = document.read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {extra for listed in re.findall(r'(?:headrace|-e "\.)\[([\w,]+)\]', text) for extra in listed.split(",")}
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert asked <= extras.keys()
    assert set(re.findall(r"(?:^ {4}|`)make (?:\w+=\S+ )?([\w-]+)", text, re.MULTILINE)) <= set(targets)


def test_a_section_of_the_benchmarks_begins_with_the_question_that_it_answers():
    sections = (ROOT / "benchmarks" / "README.md").read_text().split("\n## ")[1:]
    firsts = {title: text.strip().split("\n\n")[0] for title, _, text in (part.partition("\n") for part in sections)}
    assert not [title for title, first in firsts.items() if not re.match(r"((?!\.\s)[^?])+\?\s", first)]


class Parsed(BaseException):
    """A command was understood; what it would do next is not done."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Make the folder of a reader of the documents, with the files that these show, the examples, and two runs."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    shown = {
        "docs/own-environments.md": "chase.py",
        "docs/tutorials/your-environment.md": "hover.py",
        "docs/robots.md": "balance.py",
    }
    for document, path in shown.items():
        (block,) = [text for text in blocks(ROOT / document) if text.startswith("from typing import NamedTuple")]
        (folder / path).write_text(block)
    network = blocks(ROOT / "docs/own-policy.md")[0].partition("run = ")[0]
    (folder / "my_policy.py").write_text(network)
    mover = blocks(ROOT / "docs/hybrid_sac.md")[0].partition("run = ")[0]
    (folder / "mover.py").write_text(mover)
    (folder / "herd.py").write_text(blocks(ROOT / "docs/entities.md")[0])
    for path in ("drift.py", "my_kernel.py", "train.py"):
        (folder / path).write_text("")
    (folder / "ppo.yml").write_text("CartPole-v1: {policy: MlpPolicy, n_envs: 2, n_steps: 16, batch_size: 32}")
    (folder / "ppo-LunarLander-v3.toml").write_text('algorithm = "ppo"\nenv = "LunarLander-v3"\n')
    for env in ("CartPole-v1", "Pursuit"):
        words = f"train ppo {env} --log-folder {folder / 'runs'} {SMALL['train']}"
        assert main(words.split()) == 0
    words = f"population ppo CartPole-v1 --folder {folder / 'runs/populations/ppo-CartPole-v1'} --mutate clip=0.1,0.2"
    assert main(f"{words} --members 2 --interval 200 --total-steps 400 --num-envs 4 --num-steps 16".split()) == 0
    return folder


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_documents_is_understood(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(seeds, "_side_by_side", lambda *given: seeds._in_turn(*given[:3]))
    words = [
        found for word in shlex.split(command)[1:] for found in (sorted(glob.glob(word)) if "*" in word else [word])
    ]
    if any(part in command for part in NOT_RUN) or command in ("headrace check", "headrace diagnose"):
        parse = tyro.cli

        def understood(*args, **options):
            parse(*args, **options)
            raise Parsed

        monkeypatch.setattr("tyro.cli", understood)
        with contextlib.suppress(Parsed):
            status, said = main(words), capsys.readouterr().err
            assert (status == 0 and "--help" in words) or "which is not installed: pip install" in said, said
        return
    small = SMALL.get(words[0], "").split()
    in_python = any(name in command for name in ("gymnasium", "balance", "mover"))
    if "train" in words and ".py:" in command and not in_python:
        small += ["--backend", "torch"]  # without compiling
    if "train" in words and "Hidden" in command:  # whose networks have memory: fewer steps to compile
        small += ["--sequence-length", "2", *([] if "ppo" in words else ["--burn-in", "0"])]
    assert main([*words, *small]) == 0, capsys.readouterr().err


def test_the_python_of_the_documents_runs(tmp_path, folder):
    """One script per document, all in one process."""
    (tmp_path / "chase.py").write_text((folder / "chase.py").read_text())
    run_blocks(PRELUDES, tmp_path, [])


@pytest.mark.slow
@pytest.mark.parametrize("document", SLOW_PRELUDES)
def test_the_other_python_of_the_documents_runs(document, tmp_path):
    found = [folder for folder in (None, peers()) if all(map(importable_in(folder), NEEDED.get(document, ())))]
    if not found:
        pytest.skip(f"needs {' and '.join(NEEDED[document])}: see benchmarks/peers/setup.sh")
    run_blocks({document: SLOW_PRELUDES[document]}, tmp_path, [str(found[0])] if found[0] else [])


@pytest.mark.slow
def test_the_c_of_the_documents_runs(tmp_path):
    (block,) = [rest.split("```")[0] for rest in (ROOT / "docs" / "deploy.md").read_text().split("```c\n")[1:]]
    headrace.export(headrace.ActorCritic(headrace.Box(-5, 5, (4,)), headrace.Discrete(2)), "c", tmp_path / "policy.h")
    (tmp_path / "program.c").write_text(block)
    warnings = ("-std=c99", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["cc", *warnings, "program.c", "-o", "program", "-lm"], cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "1")


def test_the_python_of_every_document_is_run_by_a_test():
    run = PRELUDES.keys() | SLOW_PRELUDES.keys()
    assert {name(path) for path in DOCUMENTS if [b for b in blocks(path) if not FRAGMENT.search(b)]} == run


def peers() -> Path:
    """The folder of packages with Stable-Baselines3 that benchmarks/peers/setup.sh made."""
    home = Path(os.environ.get("PEERS_HOME", ROOT / ".peers"))
    return home / f"torch/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def importable_in(folder: Path | None) -> Callable[[str], bool]:
    """Function that tells whether a package is in a folder of packages, or in this Python for None."""
    return lambda package: (folder / package).is_dir() if folder else importlib.util.find_spec(package) is not None


def run_blocks(preludes: dict[str, str], folder: Path, packages: list[str]) -> None:
    """Run documents' blocks of Python in a folder. packages: folders of packages, searched behind this Python's own."""
    imports = "from typing import NamedTuple\nimport gymnasium\nimport numpy as np\nimport headrace as hr\n"
    scripts = []
    for document, prelude in preludes.items():
        kept = [block for block in blocks(ROOT / document) if not FRAGMENT.search(block) and "mpe2" not in block]
        text = "".join(kept)
        for long, short in SUBSTITUTES.items():
            text = text.replace(long, short)
        scripts.append(Path(document).stem + ".py")
        (folder / scripts[-1]).write_text(imports + prelude + text)
    path = f"import sys\nsys.path += {packages}\n"
    guarded = f"if __name__ == '__main__':\n    for script in {scripts}:\n        runpy.run_path(script)\n"
    (folder / "program.py").write_text(path + SMALLER + guarded)
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_block_of_python_parses(document):
    for block in blocks(document):
        ast.parse(block)


BOX = "Box(0.0, 1.0, (2 * SIZE * SIZE,))"
MISTAKES = {  # what is written in examples/my_env.py -> what is written in its place
    "    def observe(s, p, out):": "    def seen(s, p, out):",
    "reward = 0.0\n": "reward = 'hungry'\n",
    "reward = 1.0\n": "cells = []\n",
    ", reward, False": ", reward",
    "def step(s, ": "def step(self, s, ",
    "observe(s, p, out)": "observe(s, p, agent, out)",
    "Collect.State(s.board, 0, 0)": "Collect.State(s.board, 0)",
    BOX: "Box(0, 1, (72,), int)",
}


@pytest.mark.parametrize("right", MISTAKES)
def test_a_mistake_gives_the_error_that_the_documents_show(right, tmp_path):
    text = (ROOT / "docs" / "own-environments.md").read_text()
    section = re.split(r"^## ", text.split("## Errors from the compiler")[1], flags=re.MULTILINE)[0]
    rows = [row.split(" | ")[1] for row in section.splitlines() if " | " in row][1:]
    shown = [re.sub(r"^`+|( ?`+)? \|$", "", row) for row in rows]
    source = (ROOT / "examples" / "my_env.py").read_text()
    assert right in source
    (tmp_path / "my_env.py").write_text(source.replace(right, MISTAKES[right]))
    with pytest.raises(headrace.EnvError) as error:
        headrace.make(f"{tmp_path / 'my_env.py'}:Collect", 1)
    assert any(message in str(error.value) for message in shown), str(error.value)
