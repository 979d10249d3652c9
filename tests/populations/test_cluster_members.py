"""Populations on a Ray cluster: the bits of those on one machine, whatever is lost; nodes that cannot take part."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")
from helpers.ray_runs import needs_namespace, run

import headrace as hr
from headrace.core.packages import installed
from headrace.populations.cluster_members import SOURCES, on_node


@needs_namespace
def test_a_cluster_gives_the_bits_of_one_machine(tmp_path):
    found = run("populations", tmp_path, file="cluster_populations.py")
    assert found["same"] and found["one at a time"]
    assert found["died"] and found["killed"]  # the member has begun its interval again
    assert "interrupted by SIGTERM: the same command goes on with" in found["said"]
    assert 0 < found["rows"] < 14 and found["gone on"]


def test_a_node_needs_the_folder_and_the_same_version(tmp_path):
    own = installed("headrace", SOURCES)
    with pytest.raises(FileNotFoundError, match=r"does not have .*: give a folder on storage that all nodes share"):
        on_node(None, tmp_path, Path.cwd(), own)
    with pytest.raises(ImportError, match=r"has headrace .*, and this machine 0\.0\.1"):
        on_node(None, tmp_path, Path.cwd(), "0.0.1")


def test_threads_are_not_on_a_cluster():
    own = {"mutate": {"learning_rate": "1e-5..1e-2"}, "interval": 100, "total_steps": 200}
    with pytest.raises(
        ValueError, match=r"cluster='auto' trains members in processes of its nodes: leave out together"
    ):
        hr.population("ppo", "CartPole-v1", cluster="auto", together=True, **own)
