"""The Python examples of Stable-Baselines3's documentation with headrace.sb3 in the place of its models, by file.

    python -m benchmarks.pages.sb3_examples FOLDER/docs [--only guide/examples.md] [--write]

FOLDER: a checkout of Stable-Baselines3. A block that has a model is run as it is, but that learn() takes 600 steps at
most. `passed`: runs to its end. `not offered`: ends with an error that names what headrace.sb3 does not have.
`neither`: ends with an error with Stable-Baselines3 too, as what needs a network or a file. `failed`: the rest. Needs
Stable-Baselines3 and its contrib in this Python. --write makes the table of docs/from_sb3.md of all rows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

from benchmarks.common import Row, environment
from benchmarks.pages import counted_files

STEPS, LIMIT = 600, 60  # of a call of learn(); s of a block
MODELS = r"\b(PPO|A2C|SAC|TD3|DQN|DDPG|TQC|CrossQ|TRPO|RecurrentPPO|QRDQN)\b"
REFUSALS = "ArgumentError|no counterpart|has no attribute|is no member|policy must be|the optimizer is Adam|refused"
REFUSALS += "|render nothing"
COLUMNS = ("file", "examples", "passed", "failed", "not offered", "neither")
BEFORE = f"""
import sys
import cv2, stable_baselines3, sb3_contrib
from headrace import sb3
cv2.imshow = cv2.waitKey = lambda *given: None  # without a screen
ours = sys.argv[1] == "headrace"
for package in (stable_baselines3, sb3_contrib):
    for name in {MODELS[3:-3].split("|")}:
        if hasattr(package, name):
            kind = getattr(sb3 if ours else package, name)
            setattr(package, name, kind)
            def learn(self, total_timesteps, *args, learn=kind.learn, **options):
                return learn(self, min(total_timesteps, {STEPS}), *args, **options)
            kind.learn = learn
"""


def files(docs: Path) -> list[str]:
    """Names of the files with examples."""
    return sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md") if examples(path.read_text()))


def examples(text: str) -> list[str]:
    """The blocks of Python that have a model."""
    found = re.findall(r"^ *```(?:\{code-block\} )?python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found if re.search(rf"import .*{MODELS}", block)]


def counted(docs: Path, name: str) -> tuple[Row, list[str]]:
    """Run the examples of a file, and count what became of them. Also returns how those ended that did not pass."""
    blocks = examples((docs / name).read_text())
    outcomes, errors = Counter[str](), []
    for number, block in enumerate(blocks):
        error = run(block, "headrace")
        outcome = "passed"
        if error:
            outcome = "neither" if run(block, "sb3") else "not offered" if re.search(REFUSALS, error) else "failed"
            errors.append(f"{number} {outcome}: {error}")
        outcomes[outcome] += 1
    counts = {column: outcomes[column] for column in COLUMNS[2:]}
    return {"file": name, "examples": len(blocks), **counts, "errors": errors}, errors


def run(block: str, library: str) -> str:
    """The last line of what a block says where it fails; empty where it does not."""
    with tempfile.TemporaryDirectory() as folder:
        settings = environment(OMP_NUM_THREADS="1", SDL_VIDEODRIVER="dummy")
        (Path(folder) / "example.py").write_text(BEFORE + block)
        command = [sys.executable, "-W", "ignore", "example.py", library]
        try:
            done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"not done in {LIMIT} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"


if __name__ == "__main__":
    counted_files.main("sb3_examples", __doc__ or "", COLUMNS, files, counted)
