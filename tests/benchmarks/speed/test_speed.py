"""The benchmarks of speed run, quickly, and print and keep what they promise: so they never rot."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.benchmark import ROOT, is_png, run

from benchmarks.common import run_program
from benchmarks.peers import PEERS, WORKS
from benchmarks.speed import entities, ppo_throughput, repeated
from benchmarks.speed.step_time import turning_points
from headrace.envs.compiled.single_env import single


@pytest.mark.slow
def test_env_throughput(tmp_path):
    printed, result = run("speed.env_throughput", tmp_path, "--libraries", "headrace", "gymnasium", "--num-envs", 1, 64)
    assert "median of three windows" in printed
    kinds = {(row["library"], row["config"], row["num_envs"]) for row in result["rows"]}
    assert {("headrace", "serial", 64), ("gymnasium", "loop", 1), ("gymnasium", "vectorised", 64)} <= kinds
    for row in result["rows"]:
        assert {"library", "config", "backend", "num_envs", "threads", "sps"} <= row.keys()
        assert 0 < row["sps_min"] <= row["sps"] <= row["sps_max"]


@pytest.mark.slow
def test_discrete_losses(tmp_path):
    _, result = run("speed.discrete_losses", tmp_path, "--only", "C51", "DQN, noisy")
    assert [row["task"] for row in result["rows"]] == ["C51", "DQN, noisy"]
    assert all(row["compiled"] > row["plain"] > 0 for row in result["rows"])


@pytest.mark.slow
def test_together(tmp_path):
    _, result = run("speed.together", tmp_path)
    assert [row["mode"] for row in result["rows"]][::2] == ["jobs 1", "together"] and result["agents"] == 2
    assert all(row["same_bits"] == 2 and row["seconds"] > 0 < row["cpu_s"] for row in result["rows"])
    assert result["ratios"]["ppo"]["ratio"] > 0


@pytest.mark.slow
def test_export_and_serving(tmp_path):
    _, result = run("speed.export", tmp_path)
    assert {row["format"] for row in result["rows"]} == {"onnx", "numpy", "c"}
    assert all(0 < row["difference"] < 1e-4 and 0 < row["us"] < 1e6 for row in result["rows"])
    _, result = run("speed.serving", tmp_path, "--library", "numpy", "onnxruntime")
    assert [(row["library"], row["threads"]) for row in result["rows"]][:2] == [("numpy", 1), ("numpy", 4)]
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in result["rows"])


def test_a_failing_program_says_why():
    with pytest.raises(RuntimeError, match="invalid int value: 'one'"):
        run_program(
            sys.executable, "returns/solve_one.py", "headrace", "--env", "CartPole-v1", "--seed", "one", timeout=1800
        )


def test_ppo_throughput(tmp_path):
    printed, result = run("speed.ppo_throughput", tmp_path, "--libraries", "headrace", "--config", "zoo")
    (row,) = result["rows"]
    names = "library config threads sps sps_min sps_max repeats others_cpu versions cpu when work"
    assert set(names.split()) <= row.keys()
    assert (row["library"], row["config"]) == ("headrace", "zoo")
    assert 0 < row["sps_min"] <= row["sps"] <= row["sps_max"]
    assert row["work"] == {
        **{"num_envs": 8, "num_steps": 32, "minibatch_size": 256, "epochs": 20, "gamma": 0.98, "gae_lambda": 0.8},
        "parameters": 2 * (4 * 64 + 64 + 64 * 64 + 64) + 64 * 2 + 2 + 64 + 1,
    }
    assert "Headrace" in printed


def throughput_options(**others):
    return SimpleNamespace(**{"repeats": 3, "threads": [1, 2], "retries": 2, "warm": 0.1, "seconds": 0.1} | others)


def test_a_ratio_only_between_equal_works(monkeypatch):
    works = {"headrace": {"epochs": 4}, "sb3": {"epochs": 4}, "rejax": {"epochs": 5}}

    def run(library, python, config, seed, threads, options):
        rate = {"headrace": 100.0, "sb3": 20.0, "rejax": 50.0}[library] * threads
        about = {"library": library, "threads": threads, "versions": {}, "work": works[library], "tries": 1}
        return {**about, "sps": rate + seed % 3, "first_iteration_s": 0.1, "others_cpu": 0.0, "core_ns": 50.0}

    monkeypatch.setattr(ppo_throughput, "quiet_run", run)
    rows = ppo_throughput.compare("zoo", dict.fromkeys(works, "python"), throughput_options())
    assert [row["threads"] for row in rows] == [2, 2, 2]  # the faster of those tried
    assert [(row["sps"], row["sps_min"], row["sps_max"]) for row in rows] == [
        (201, 200, 202),
        (41, 40, 42),
        (101, 100, 102),
    ]
    assert [row.get("headrace_ratio") for row in rows] == [None, 201 / 41, None]


@pytest.mark.parametrize("busy, kept, tries", [([0.4, 0.05, 0.0], 0.05, 2), ([0.5, 0.3, 0.4], 0.3, 3)])
def test_a_disturbed_run_is_run_again(monkeypatch, busy, kept, tries):
    others = iter(busy)
    monkeypatch.setattr(ppo_throughput, "run_program", lambda *a, **k: {"sps": 1.0, "others_cpu": next(others)})
    row = ppo_throughput.quiet_run("sb3", "python", "zoo", 0, 1, throughput_options())
    assert (row["others_cpu"], row["tries"]) == (kept, tries)


def test_every_library_has_a_program():
    assert all((ROOT / "benchmarks" / "peers" / f"ppo_{library}.py").is_file() for library in PEERS)
    assert all(work.num_envs * work.num_steps == work.minibatches * work.minibatch_size for work in WORKS.values())


@pytest.mark.slow
def test_step_time(tmp_path):
    _, result = run("speed.step_time", tmp_path)
    ways = {row["config"] for row in result["rows"]}
    assert {"subprocess", "torch", "kernel", "kernel-threads"} <= ways
    for row in result["rows"]:
        assert 0 < row["step_s_min"] <= row["step_s"] <= row["step_s_max"]
        assert row["sps"] == pytest.approx(row["num_envs"] / row["step_s"])
    assert is_png(tmp_path / "step_time.png")


def test_turning_points():
    times = {1: 1.0, 2: 1.5, 4: 2.1, 8: 4.0}
    rows = [{"config": "torch", "num_envs": n, "step_s": time} for n, time in times.items()]
    assert turning_points([*rows, {"config": "kernel", "num_envs": 1, "step_s": 1.0}]) == {"torch": 4, "kernel": None}


@pytest.mark.slow
def test_work_per_step(tmp_path):
    _, result = run("speed.work_per_step", tmp_path)
    assert {(row["config"], row["times"]) for row in result["rows"]} == {("subprocess", 4), ("torch", 4), ("kernel", 4)}
    assert is_png(tmp_path / "work_per_step.png")


def test_repeated_work_is_the_same_in_both():
    ours, theirs = single(repeated.kernel(3)), repeated.original(3)()
    observation, _ = ours.reset(seed=0)
    theirs.reset(seed=0)
    for step in range(20):
        theirs.unwrapped.state = observation.astype(np.float64)
        observation, *_, terminated, _, _ = ours.step(step % 2)
        expected, _, fallen, _, _ = theirs.step(step % 2)
        np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-6)
        assert terminated == fallen


@pytest.mark.slow
def test_profile_steps(tmp_path):
    _, result = run("speed.profile_steps", tmp_path)
    assert [row["backend"] for row in result["rows"]] == ["subprocess", "inline", "torch", "cpu"]
    for row in result["rows"]:
        parts = sum(row[f"{part}_ms"] for part in ("env", "inference", "learning", "other"))
        assert parts == pytest.approx(row["total_ms"])
        assert row["hot"]
    assert is_png(tmp_path / "profile_steps.png")


@pytest.mark.slow
def test_entities(tmp_path):
    printed, result = run("speed.entities", tmp_path, "--entities", 4, "--num-envs", 1, 16)
    assert "16 environments: across-entities is as many times as fast as numpy: 4 entities" in printed
    kinds = {(row["config"], row["num_envs"]) for row in result["rows"]}
    alone = {(config, n) for config in ("across-entities", "within", "one-lane", "torch", "numpy") for n in (1, 16)}
    assert kinds == alone | {("across-environments", 16), ("threads", 16)}
    table = entities.markdown(result).splitlines()
    assert table[2] == f"| environments | entities | {' | '.join(entities.CONFIGS)} |" and len(table) == 6
    assert all(row["entity_sps"] == row["sps"] * 4 and row["sps"] > 0 for row in result["rows"])
