"""The number of threads a block is measured once, and found again."""

from __future__ import annotations

import json

from headrace.kernels.targets.cuda import block_size


def test_the_fastest_is_taken_and_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(block_size, "folder", lambda: tmp_path)
    asked = []

    def seconds(block):
        asked.append(block)
        return abs(block - 256)

    assert block_size.best("this GPU, CartPole", seconds) == 256
    assert asked == list(block_size.CANDIDATES)
    assert block_size.best("this GPU, CartPole", seconds) == 256
    assert len(asked) == len(block_size.CANDIDATES)  # not measured again
    assert block_size.best("another GPU, CartPole", lambda block: block) == 32
    kept = json.loads((tmp_path / block_size.FILE).read_text())
    assert kept == {"this GPU, CartPole": 256, "another GPU, CartPole": 32}
