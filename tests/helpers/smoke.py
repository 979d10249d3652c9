"""A smoke test of an installed package, in a folder outside of the sources: train, load, evaluate, export.

python tests/helpers/smoke.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    sys.path.remove(str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        import headrace as hr

        sources = Path(hr.__file__).parents[1] / "pyproject.toml"
        assert not sources.exists(), f"these are the sources: {hr.__file__}"
        run = hr.train("ppo", "CartPole-v1", total_steps=20_000, log_folder="runs", progress="none")
        policy = hr.load(run.path)
        mean = float(hr.evaluate(policy, "CartPole-v1", episodes=10).mean)
        assert mean > 15, f"a return of {mean} after {run.steps} steps"
        from headrace.core.fused import _said

        assert not _said, f"kernels that do not serve here: {_said}"
        written = hr.export(policy, "numpy")
        program = "from policy import Policy; print(Policy().predict([0, 0, 0.1, 0])[0])"
        action = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        assert int(action) in (0, 1)
        shown = subprocess.run([sys.executable, "-m", "headrace", "envs"], capture_output=True, text=True, check=True)
        assert "CartPole-v1" in shown.stdout
        python = ".".join(map(str, sys.version_info[:3]))
        print(f"headrace {version('headrace')} on Python {python}: return {mean:.0f}, {written.comparison}")


if __name__ == "__main__":
    main()
