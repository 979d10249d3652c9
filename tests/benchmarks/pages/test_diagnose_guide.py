"""The guide's script of docs/my-gpu-is-at-2-percent.md: each step changes it."""

from __future__ import annotations

from benchmarks.pages import diagnose_guide


def test_the_guides_steps_change_its_script():
    text = diagnose_guide.START.lstrip()
    for _, changes in diagnose_guide.CHANGES:
        text = diagnose_guide.apply(text, changes)
        compile(text, "train.py", "exec")
    for piece in ("set_num_threads(1)", "eval_freq=1_250", "n_envs=8", "n_steps=256", "batch_size=256", "fused=True"):
        assert piece in text
