"""The benchmarks run, quickly, and print and keep what they promise: so they never rot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import forked

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def on_path(monkeypatch):
    """Benchmarks import one another as programs do: from their own folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(name: str, tmp_path: Path, *flags: object) -> tuple[str, dict]:
    """What a benchmark prints, and the JSON object of its last line, which is also kept."""
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--results", str(tmp_path)]
    done = forked.run([*command, *map(str, flags)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert (tmp_path / f"{name}.jsonl").read_text().endswith(last + "\n")
    result = json.loads(last)
    assert result["benchmark"] == name
    assert {"cpu", "cores", "python", "versions"} <= result["machine"].keys()
    return done.stdout, result


@pytest.mark.slow
def test_env_throughput(tmp_path):
    printed, result = run("env_throughput", tmp_path, "--libraries", "headrace", "gymnasium", "--num-envs", 1, 64)
    assert "median of three windows" in printed
    kinds = {(row["library"], row["config"], row["num_envs"]) for row in result["rows"]}
    assert {("headrace", "serial", 64), ("gymnasium", "loop", 1), ("gymnasium", "vectorised", 64)} <= kinds
    for row in result["rows"]:
        assert {"library", "config", "backend", "num_envs", "threads", "sps"} <= row.keys()
        assert 0 < row["sps_min"] <= row["sps"] <= row["sps_max"]


@pytest.mark.slow
def test_discrete_losses(tmp_path):
    _, result = run("discrete_losses", tmp_path, "--only", "C51", "DQN, noisy")
    assert [row["task"] for row in result["rows"]] == ["C51", "DQN, noisy"]
    assert all(row["compiled"] > row["plain"] > 0 for row in result["rows"])


@pytest.mark.slow
def test_together(tmp_path):
    _, result = run("together", tmp_path)
    assert [row["mode"] for row in result["rows"]][::2] == ["jobs 1", "together"] and result["agents"] == 2
    assert all(row["same_bits"] == 2 and row["seconds"] > 0 < row["cpu_s"] for row in result["rows"])
    assert result["ratios"]["ppo"]["ratio"] > 0


@pytest.mark.slow
def test_export_and_serving(tmp_path):
    _, result = run("export", tmp_path)
    assert {row["format"] for row in result["rows"]} == {"onnx", "numpy", "c"}
    assert all(0 < row["difference"] < 1e-4 and 0 < row["us"] < 1e6 for row in result["rows"])
    _, result = run("serving", tmp_path, "--library", "numpy", "onnxruntime")
    assert [(row["library"], row["threads"]) for row in result["rows"]][:2] == [("numpy", 1), ("numpy", 4)]
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in result["rows"])


def test_solve(tmp_path):
    printed, result = run("solve", tmp_path, "--max-steps", 1024, "--set", "num_envs=8", "num_steps=128")
    (row,) = result["rows"]
    names = "library algorithm env seed cache solved held steps train_s total_s held_train_s held_total_s eval_mean"
    assert set(names.split()) <= row.keys()
    assert (row["library"], row["env"], row["seed"], row["cache"]) == ("headrace", "CartPole-v1", 0, "warm")
    assert row["held"] or row["last_step"] >= 1024
    assert "held" in printed


def test_a_task_is_solved_at_the_third_passed_check_in_a_row(on_path, monkeypatch):
    import judge

    means = iter([480.0, 300.0, 475.0, 490.0, 500.0])
    trial = judge.Judge("CartPole-v1", process_start=0.0)
    monkeypatch.setattr(trial.evaluation, "mean", lambda act: (next(means), True))
    over = [trial.check(step, act=None) for step in (1000, 1024, 2048, 3000, 3072, 4096, 5120)]
    assert over == [False] * 6 + [True]  # at 1,000 and 3,000 nothing is checked
    row = trial.row()
    assert (row["steps"], row["eval_mean"]) == (1024, 480.0)
    assert (row["held_steps"], row["held_eval_mean"]) == (5120, 500.0)
    assert row["held_train_s"] >= row["train_s"]


def test_a_run_out_of_steps_is_over_and_not_solved(on_path, monkeypatch):
    import judge

    trial = judge.Judge("CartPole-v1", process_start=0.0, max_steps=1500)
    monkeypatch.setattr(trial.evaluation, "mean", lambda act: (100.0, False))
    assert [trial.check(1200, act=None), trial.check(1500, act=None)] == [False, True]
    assert trial.row()["held"] is False
    assert trial.row()["train_s"] is None


def test_an_evaluation_is_given_up_once_the_threshold_is_out_of_reach(on_path):
    import judge
    import numpy as np

    evaluation = judge.Evaluation("CartPole-v1", judge.TASKS["CartPole-v1"])
    mean, complete = evaluation.mean(lambda observation: np.zeros(len(observation), int))  # pushes left, and falls
    assert not complete
    assert mean < 20


def test_ranges_of_seeds(on_path):
    from solve import seeds

    assert seeds("0-2,7") == [0, 1, 2, 7]


def test_a_failing_program_says_why(on_path):
    from common import run_program

    with pytest.raises(RuntimeError, match="invalid int value: 'one'"):
        run_program(sys.executable, "solve_one.py", "headrace", "--env", "CartPole-v1", "--seed", "one", timeout=1800)


def test_ppo_throughput(tmp_path):
    printed, result = run("ppo_throughput", tmp_path, "--libraries", "headrace", "--config", "zoo")
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


def test_a_ratio_only_between_equal_works(on_path, monkeypatch):
    import ppo_throughput

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
def test_a_disturbed_run_is_run_again(on_path, monkeypatch, busy, kept, tries):
    import ppo_throughput

    others = iter(busy)
    monkeypatch.setattr(ppo_throughput, "run_program", lambda *a, **k: {"sps": 1.0, "others_cpu": next(others)})
    row = ppo_throughput.quiet_run("sb3", "python", "zoo", 0, 1, throughput_options())
    assert (row["others_cpu"], row["tries"]) == (kept, tries)


def test_every_library_has_a_program(on_path):
    from peers import PEERS, WORKS

    assert all((BENCHMARKS / "peers" / f"ppo_{library}.py").is_file() for library in PEERS)
    assert all(work.num_envs * work.num_steps == work.minibatches * work.minibatch_size for work in WORKS.values())


def test_what_solve_is_asked_for(on_path):
    from solve import cases

    options = SimpleNamespace(library=["headrace", "sb3"], config=None, cache=["warm", "cold"])
    own = [("headrace", None, "warm"), ("headrace", None, "cold")]
    assert cases(options) == [*own, ("sb3", "large", None), ("sb3", "zoo", None)]
    options.config = ["large"]
    assert cases(options) == [("headrace", "large", "warm"), ("sb3", "large", None)]


@pytest.mark.slow
def test_step_time(tmp_path):
    _, result = run("step_time", tmp_path)
    ways = {row["config"] for row in result["rows"]}
    assert {"subprocess", "torch", "kernel", "kernel-threads"} <= ways
    for row in result["rows"]:
        assert 0 < row["step_s_min"] <= row["step_s"] <= row["step_s_max"]
        assert row["sps"] == pytest.approx(row["num_envs"] / row["step_s"])
    assert is_png(tmp_path / "step_time.png")


def test_turning_points(on_path):
    from step_time import turning_points

    times = {1: 1.0, 2: 1.5, 4: 2.1, 8: 4.0}
    rows = [{"config": "torch", "num_envs": n, "step_s": time} for n, time in times.items()]
    assert turning_points([*rows, {"config": "kernel", "num_envs": 1, "step_s": 1.0}]) == {"torch": 4, "kernel": None}


@pytest.mark.slow
def test_work_per_step(tmp_path):
    _, result = run("work_per_step", tmp_path)
    assert {(row["config"], row["times"]) for row in result["rows"]} == {("subprocess", 4), ("torch", 4), ("kernel", 4)}
    assert is_png(tmp_path / "work_per_step.png")


def test_repeated_work_is_the_same_in_both(on_path):
    import numpy as np
    import repeated

    from headrace.envs.compiled.single_env import single

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
def test_return_over_time(tmp_path):
    _, result = run("return_over_time", tmp_path, "--lines", "kernel, tuned")
    (row,) = result["rows"]
    times = [point["seconds"] for point in row["points"]]
    assert times == sorted(times)
    assert times[-1] >= 0.3
    assert all(0 < point["mean_return"] <= 500 for point in row["points"])
    assert is_png(tmp_path / "return_over_time.png")


@pytest.mark.slow
def test_profile_steps(tmp_path):
    _, result = run("profile_steps", tmp_path)
    assert [row["backend"] for row in result["rows"]] == ["subprocess", "inline", "torch", "cpu"]
    for row in result["rows"]:
        parts = sum(row[f"{part}_ms"] for part in ("env", "inference", "learning", "other"))
        assert parts == pytest.approx(row["total_ms"])
        assert row["hot"]
    assert is_png(tmp_path / "profile_steps.png")


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_scaling(tmp_path):
    printed, result = run("scaling", tmp_path)
    rows = {(row["settings"], row["num_envs"]): row for row in result["rows"]}
    assert rows["rule", 16]["num_steps"] * 16 == rows["rule", 8]["num_steps"] * 8
    assert rows["fixed", 16]["num_steps"] == rows["fixed", 8]["num_steps"]
    assert all(row["updates"] > 0 and row["train_s"] > 0 for row in result["rows"])
    assert "rule_envs" in printed
    assert (tmp_path / "scaling.png").exists()


@pytest.mark.slow
def test_entities(tmp_path, on_path):
    import entities

    printed, result = run("entities", tmp_path, "--entities", 4, "--num-envs", 1, 16)
    assert "16 environments: across-entities is as many times as fast as numpy: 4 entities" in printed
    kinds = {(row["config"], row["num_envs"]) for row in result["rows"]}
    alone = {(config, n) for config in ("across-entities", "within", "one-lane", "torch", "numpy") for n in (1, 16)}
    assert kinds == alone | {("across-environments", 16), ("threads", 16)}
    table = entities.markdown(result).splitlines()
    assert table[2] == f"| environments | entities | {' | '.join(entities.CONFIGS)} |" and len(table) == 6
    assert all(row["entity_sps"] == row["sps"] * 4 and row["sps"] > 0 for row in result["rows"])


def test_the_image_of_the_readme_shows_the_newest_measurement_of_all_libraries(on_path, tmp_path):
    import solve_figure

    found = solve_figure.bars(solve_figure.newest(solve_figure.read_rows(solve_figure.FILE)))
    assert [bar.label for bar in found] == list(solve_figure.LIBRARIES.values())
    ours, *others = [f"{bar.median:.2g}" for bar in found]
    readme = (BENCHMARKS.parent / "README.md").read_text()
    assert f"Headrace {ours}, the others {min(others, key=float)} to {max(others, key=float)}]" in readme
    solve_figure.draw(found, tmp_path / "image.png")
    assert (tmp_path / "image.png").stat().st_size > 10_000


def test_rows_of_several_sittings_are_not_compared(on_path):
    import solve_figure

    def run(when, library, seconds, config=None):
        row = {"library": library, "config": config, "env": "CartPole-v1", "cache": None, "held": seconds is not None}
        rows = [{**row, "held_train_s": seconds}, {**row, "held_train_s": 2.0, "held": True}]
        return {"when": f"2026-01-01T{when}:00Z", "machine": {"cpu": "a"}, "settings": [], "quick": False, "rows": rows}

    first = [run(f"08:{10 * place:02}", library, 4.0) for place, library in enumerate(solve_figure.LIBRARIES)]
    slow = run("08:35", "rejax", 3.0, "zoo"), run("08:40", "rejax", None, "large")
    found = solve_figure.bars(solve_figure.newest([*first, *slow, run("12:00", "headrace", 1.0)]))
    assert [(bar.config, bar.median, len(bar.seconds)) for bar in found] == [(None, 3.0, 2)] * 3 + [("zoo", 2.5, 2)]
    with pytest.raises(ValueError, match="no sitting with"):
        solve_figure.newest([run(f"0{place}:00", library, 4.0) for place, library in enumerate(solve_figure.LIBRARIES)])
