"""Messages of an export to C without a compiler to check it."""

from __future__ import annotations

import shutil

import pytest

import headrace as hr


def test_a_header_needs_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    policy = hr.ActorCritic(hr.Box(-3, 3, (5,)), hr.Discrete(2), hidden=(8,))
    with pytest.raises(FileNotFoundError, match="there is no C compiler: install gcc or clang"):
        hr.export(policy, "c", tmp_path / "policy.h")
