"""Torch's threads sleep when they wait, unless the user chose otherwise, or loaded torch first, which is said."""

import os
import subprocess
import sys

import pytest

from headrace.core import cores

TRAIN = "headrace.Trainer('sac', 'Pendulum-v1', threads={}, hidden=(4,)).close()"


@pytest.mark.parametrize(
    ("program", "setting", "policy", "said"),
    [
        ("import headrace, torch\n" + TRAIN.format(2), {}, "passive", False),
        ("import headrace", {"OMP_WAIT_POLICY": "active"}, "active", False),
        ("import headrace", {"GOMP_SPINCOUNT": "7"}, None, False),
        ("import torch, headrace\n" + TRAIN.format(2), {}, None, True),
    ],
)
def test_the_setting_is_made_before_torch_is_loaded_and_the_users_wins(program, setting, policy, said):
    clean = {name: value for name, value in os.environ.items() if name not in cores.SETTINGS}
    program += "\nimport os\nprint(os.environ.get('OMP_WAIT_POLICY'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=clean | setting, check=True
    )
    assert done.stdout.strip() == str(policy)
    assert ("its 2 threads spin" in done.stderr) is said


@pytest.mark.parametrize(("setting", "seen"), [({}, None), ({"OMP_WAIT_POLICY": "passive"}, "passive")])
def test_a_script_that_is_diagnosed_has_the_threads_that_it_has_alone(setting, seen, tmp_path):
    """Torch's threads in a script that does not import headrace spin as they do without a diagnosis."""
    clean = {name: value for name, value in os.environ.items() if name not in cores.SETTINGS}
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint('policy', os.environ.get('OMP_WAIT_POLICY'), 'headrace' in sys.modules)")
    words = [sys.executable, "-m", "headrace", "diagnose", "--output", str(tmp_path / "out"), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, env=clean | setting)
    assert f"policy {seen} False" in done.stdout, done.stderr
