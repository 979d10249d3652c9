"""The Python examples of Stable-Baselines3's documentation with headrace.sb3 in the place of its models, by file.

    python benchmarks/sb3_examples.py FOLDER/docs [--only guide/examples.md] [--write]

FOLDER: a checkout of Stable-Baselines3. A block that has a model is run as it is, but that learn() takes 600 steps at
most. `passed`: runs to its end. `not offered`: ends with an error that names what headrace.sb3 does not have.
`neither`: ends with an error with Stable-Baselines3 too, as what needs a network or a file. `failed`: the rest. Needs
Stable-Baselines3 and its contrib in this Python. --write makes the table of docs/from_sb3.md of all rows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

from common import Neighbours, Row, finish, last_rows, parser, table
from sb3_tests import write_table

ROOT = Path(__file__).parents[1]
STEPS, LIMIT = 600, 60  # of a call of learn(); s of a block
MODELS = r"\b(PPO|A2C|SAC|TD3|DQN|DDPG|TQC|CrossQ|TRPO|RecurrentPPO|QRDQN)\b"
REFUSALS = "ArgumentError|no counterpart|has no attribute|is no member|policy must be|the optimizer is Adam|refused"
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


def main() -> None:
    flags = parser(__doc__ or "")
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("docs", type=Path)
    flags.add_argument("--only", nargs="+", metavar="FILE", help="files in that folder; without it, all with examples")
    flags.add_argument("--write", action="store_true", help="write the table of docs/from_sb3.md, and run nothing")
    options = flags.parse_args()
    if options.write:
        write_table("sb3_examples", last_rows(options.results / "sb3_examples.jsonl", "file"), COLUMNS)
        return
    for name in options.only or sorted(str(path.relative_to(options.docs)) for path in options.docs.rglob("*.md")):
        if blocks := examples((options.docs / name).read_text()):
            neighbours = Neighbours()
            row = counted(name, blocks[:1] if options.quick else blocks)
            print(table([row], COLUMNS), *row["errors"], sep="\n", flush=True)
            finish("sb3_examples", [row], options, neighbours)


def examples(text: str) -> list[str]:
    """The blocks of Python that have a model."""
    found = re.findall(r"^ *```(?:\{code-block\} )?python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found if re.search(rf"import .*{MODELS}", block)]


def counted(name: str, blocks: list[str]) -> Row:
    """Run the blocks of a file, and count what became of them."""
    outcomes, errors = Counter[str](), []
    for number, block in enumerate(blocks):
        error = run(block, "headrace")
        outcome = "passed"
        if error:
            outcome = "neither" if run(block, "sb3") else "not offered" if re.search(REFUSALS, error) else "failed"
            errors.append(f"{number} {outcome}: {error}")
        outcomes[outcome] += 1
    return {
        "file": name,
        "examples": len(blocks),
        **{column: outcomes[column] for column in COLUMNS[2:]},
        "errors": errors,
    }


def run(block: str, library: str) -> str:
    """The last line of what a block says where it fails; empty where it does not."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
        (Path(folder) / "example.py").write_text(BEFORE + block)
        command = [sys.executable, "-W", "ignore", "example.py", library]
        try:
            done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"not done in {LIMIT} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"exit code {done.returncode}"


if __name__ == "__main__":
    main()
