"""Evaluation in a process of its own gives what evaluation in the training's process gives, even if its process
dies."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from helpers import forked, user_file
from helpers.strict_device import strict_device
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.data.spaces import Box, Discrete
from headrace.envs.workers.process import RUNNING, WorkerError
from headrace.evaluation import history
from headrace.evaluation.evaluator import evaluate
from headrace.policies.actor_critic import ActorCritic
from headrace.runs import checkpoint, evaluations
from headrace.runs.logs import Logs, last_metrics

OPTIONS = TINY | {"num_steps": 32, "num_envs": 4, "total_steps": 1500, "eval_freq": 200, "eval_episodes": 3}
TIMES = ("seconds", "steps_per_second")
linux = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="looks at processes as Linux shows them")


pytestmark = pytest.mark.usefixtures("in_tmp")


class Line(gymnasium.Env):
    """A walk of up to 30 steps from a place that the seed decides. Action 1 earns what that place is worth.

    fault: what happens at the first reset of some evaluation in a process of its own, see _happen(). home: the process
    in which the environment was asked for.
    """

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, home=0, folder=None, fault="", at=3, times=1):
        self.home, self.folder, self.fault, self.at, self.times = home, folder and Path(folder), fault, at, times

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fault and os.getpid() != self.home:
            self._happen()
        self.place, self.left = self.np_random.uniform(-1, 1), int(self.np_random.integers(5, 30))
        return self._seen(), {}

    def step(self, action):
        self.left -= 1
        reward = float(action) * self.place
        self.place = self.np_random.uniform(-1, 1)
        return self._seen(), reward, self.left == 0, False, {}

    def _seen(self):
        return np.array([self.place, self.left / 30], np.float32)

    def _happen(self):
        """Fail at the reset number `at`, and at those that follow until the fault has happened so many times."""
        log, happened = self.folder / "resets", self.folder / "happened"
        with log.open("a") as file:
            file.write("r")
        if log.stat().st_size < self.at or (happened.exists() and happened.stat().st_size == self.times):
            return
        with happened.open("a") as file:
            file.write("h")
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "raise":
            raise ZeroDivisionError("the line broke")
        time.sleep(1000)


def rows(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def evaluated(path):
    """Results of the evaluations of a run, by step."""
    found = [row for row in rows(path) if "eval_return" in row]
    assert len({row["steps"] for row in found}) == len(found)
    return {row["steps"]: {name: row[name] for name in row if name.startswith("eval_")} for row in found}


def best(path):
    facts = checkpoint.read_manifest(path / "best")
    weights = hashlib.sha256((path / "best/policy.safetensors").read_bytes()).hexdigest()
    return weights, facts["score"], facts["steps"]


def trained(env, parallel, **options):
    return hr.train("ppo", env, parallel_evaluation=parallel, **OPTIONS | options)


def duel():
    from helpers.duel import Duel

    return Duel()


@pytest.mark.parametrize("env", ["CartPole-v1", Line, duel])
def test_it_gives_the_same_evaluations_and_the_same_best(env):
    inline, beside = (trained(env, parallel) for parallel in (False, True))
    assert len(evaluated(inline.path)) > 4 and evaluated(inline.path) == evaluated(beside.path)
    assert best(inline.path) == best(beside.path)
    assert best(inline.path)[2] == (inline.steps if env is duel else best(inline.path)[2])
    merged = {}
    for row in rows(beside.path):
        merged[row["steps"]] = merged.get(row["steps"], {}) | row
    times = dict.fromkeys(TIMES, 0.0)
    known = {row["steps"]: row | times for row in rows(inline.path) if "eval_return" in row}
    assert known == {steps: merged[steps] | times for steps in known}
    assert beside.metrics == merged[beside.steps] and beside.metrics.keys() == inline.metrics.keys()


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_dies_is_started_again_and_repeats_the_evaluation(times, tmp_path):
    undisturbed = trained(Line, True)
    run = trained(lambda: Line(HOME, tmp_path, "kill", 11, times), True)  # in the fourth evaluation
    assert (tmp_path / "happened").stat().st_size == times
    assert evaluated(run.path) == evaluated(undisturbed.path) and best(run.path) == best(undisturbed.path)


def test_one_that_dies_three_times_at_an_evaluation_is_an_error(tmp_path):
    with pytest.raises(WorkerError, match=r"evaluator 0 .* was ended by SIGKILL") as caught:
        trained(lambda: Line(HOME, tmp_path, "kill", 11, 99), True)
    assert "3 times in a row" in caught.value.__notes__[0] and (tmp_path / "happened").stat().st_size == 3


def test_an_exception_of_the_environment_is_raised_in_the_training(tmp_path):
    with pytest.raises(ZeroDivisionError, match="the line broke") as caught:
        trained(lambda: Line(HOME, tmp_path, "raise", 5), True)
    notes = "".join(caught.value.__notes__)
    assert "env 1 of 3" in notes and "in a worker process:" in notes and "_happen" in notes


def test_what_cannot_be_evaluated_elsewhere_is_refused_at_once():
    lock = threading.Lock()

    def locked():
        return lock and Line()

    class Held(hr.PPO):
        pass

    for env, why in ((Walk(), "cannot be made again"), (locked, r"cannot be sent to a worker process: .*lock")):
        with pytest.raises(TypeError, match=why) as caught:
            hr.train("ppo", env, parallel_evaluation=True, eval_freq=100, **TINY)
        assert "\n" not in str(caught.value)
    trainer = hr.Trainer("ppo", Line, num_envs=2, **TINY)
    trainer.policy.lock = lock
    with pytest.raises(TypeError, match=r"ActorCritic cannot be sent to a process: .*Leave parallel_evaluation out"):
        hr.train(hr.PPO(trainer.policy), Line, num_envs=2, parallel_evaluation=True, eval_freq=100, progress="none")
    with pytest.raises(ValueError, match="give eval_freq"):
        hr.train("ppo", Line, parallel_evaluation=True, **TINY)
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        hr.train("ppo", Line, eval_device="gpu", **TINY)


def test_names_registered_by_the_user_are_known_to_the_process():
    gymnasium.register("Line-v5", entry_point=Line)
    hr.envs.register("Named-v5", Line)
    ends = [evaluated(trained(env, True).path) for env in (Line, "Line-v5", "Named-v5")]
    ready = hr.make(Line, 4, backend="inline")
    own = {name: value for name, value in OPTIONS.items() if name != "num_envs"}
    ends.append(evaluated(hr.train("ppo", ready, parallel_evaluation=True, **own).path))
    assert ends[0] and all(end == ends[0] for end in ends)


SCRIPT = """
if __name__ == "__main__":
    import headrace as hr

    options = {options}
    for parallel in (False, True):
        hr.train("ppo", MyEnv, parallel_evaluation=parallel, **options)
"""


def test_a_compiled_environment_of_the_main_script_needs_no_module():
    """The environment's annotations are strings, which name what the script has imported."""
    text = user_file.changed("s.n > 3", "action == 1")
    Path("script.py").write_text(user_file.HEAD + text + SCRIPT.format(options=OPTIONS))
    done = forked.run([sys.executable, "script.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    inline, beside = (evaluated(Path(f"runs/ppo/MyEnv_{number}")) for number in (1, 2))
    assert inline == beside and len(inline) > 4


def test_training_waits_only_where_four_are_queued(monkeypatch):
    class Slow:
        """Evaluation with a result at every third look that may take time."""

        idle, looks = True, 0

        def start(self, weights, statistics):
            self.idle = False

        def get(self, timeout):
            waits.append((timeout > 0, len(recorded[-1].queue)))
            self.looks += timeout > 0
            if self.looks < 3:
                return None
            self.looks, self.idle = 0, True
            return evaluate(recorded[-1].trainer.policy, Line, 1)

        def close(self):
            closed.append(True)

    def begin(self, *arguments):
        before(self, *arguments)
        self._process.close()
        self._process = Slow()
        recorded.append(self)

    waits, recorded, closed, before = [], [], [], evaluations.Evaluations.__init__
    monkeypatch.setattr(evaluations.Evaluations, "__init__", begin)
    run = trained(Line, True)
    during = [queued for waited, queued in waits if waited]
    steps = len(evaluated(run.path))
    assert steps > 4 and during == [4] * 3 * (steps - 3) + [3] * 3 + [2] * 3 + [1] * 3  # at the end, for all of them
    assert max(queued for _, queued in waits) == 4 and closed == [True]


def test_evaluations_on_another_device_are_the_same(monkeypatch):
    @torch.no_grad()
    def load(policy, weights):  # torch copies nothing into what says to be on `meta`
        for name, tensor in policy.state_dict().items():
            tensor.copy_(weights[name])
        devices.append(tensor.device)

    monkeypatch.setattr(ActorCritic, "load_state_dict", load)
    devices = []
    with strict_device() as device:  # within which both learn in the same way
        here = trained(Line, False)
        devices.clear()
        there = trained(Line, False, eval_device=str(device))
    assert evaluated(there.path) == evaluated(here.path) and best(there.path) == best(here.path)
    assert devices.count(device) == 2 * len(evaluated(here.path))  # the weights, and those from before


def test_a_signal_ends_it_at_once_and_what_was_queued_is_evaluated_on_resuming(tmp_path):
    def env():
        return Line(HOME, tmp_path, "hang", 5)  # in the second evaluation

    def interrupt():
        while not (tmp_path / "happened").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    undisturbed, others = evaluated(trained(Line, False).path), set(RUNNING)
    threading.Thread(target=interrupt).start()
    run = trained(env, True, on_interrupt="return", total_steps=100_000)
    assert run.reason == "SIGINT"
    assert others == RUNNING
    queue = checkpoint.load(run.path / "last", "training")["evaluations"]
    assert queue and len(evaluated(run.path)) == 1
    resumed = evaluated(hr.train(resume=run.path, env=env, total_steps=run.steps + 1).path)
    asked = {queued["counters"]["steps"] for queued in queue}
    assert asked <= resumed.keys() and all(resumed[steps] == undisturbed[steps] for steps in asked & undisturbed.keys())


KILLED = """
import os, signal, sys
import headrace as hr
from headrace.runs import recorder

def save(self, **facts):
    before(self, **facts)
    self._saver.wait()
    if self._evaluations._process is None:
        return
    evaluator = self._evaluations._process._transport.workers[0].process.pid
    os.kill(evaluator, signal.SIGSTOP)  # so that evaluations wait in the queue, however fast the machine
    if self._result.steps > 600 and len(self._evaluations.queue) > 1:
        print(evaluator, flush=True)
        os.kill(evaluator, signal.SIGCONT)
        os.kill(os.getpid(), signal.SIGKILL)

before, recorder.SAVE_EVERY, recorder.SAVE_SHARE = recorder.Recorder._save_last, 0.0, 1e9
recorder.Recorder._save_last = save
hr.train("ppo", "CartPole-v1", **eval(sys.argv[1]))
"""


@linux
def test_a_killed_run_leaves_no_process_and_a_resumed_one_has_every_evaluation():
    options = OPTIONS | {"eval_episodes": 20, "parallel_evaluation": True}
    straight = hr.train("ppo", "CartPole-v1", **options | {"parallel_evaluation": False})
    killed = forked.run([sys.executable, "-c", KILLED, repr(options)], stdout=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL
    while runs(int(killed.stdout)):
        time.sleep(0.05)
    path = Path("runs/ppo/CartPole-v1_2")
    queue = checkpoint.load(path / "last", "training")["evaluations"]
    assert 2 <= len(queue) <= 4 and len(evaluated(path)) < len(evaluated(straight.path))
    shutil.copytree(path, "inline")
    for folder, parallel in ((path, True), (Path("inline"), False)):
        hr.train(resume=folder, parallel_evaluation=parallel)
        assert evaluated(folder) == evaluated(straight.path) and best(folder) == best(straight.path)


def runs(pid):
    """Tell whether a process is there, and no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_first_evaluation_is_best_whatever_training_episodes_gave():
    short = trained(Line, False, total_steps=100)
    assert not evaluated(short.path) and best(short.path)[1] is None
    longer = hr.train(resume=short.path, total_steps=1500)
    assert best(longer.path)[1] == max(row["eval_return"] for row in evaluated(longer.path).values())


def test_readers_take_rows_that_come_late(tmp_path):
    late = [{"steps": 10, "seconds": 1.0, "a": 1}, {"steps": 30, "seconds": 3.0, "a": 2}]
    late += [{"steps": 20, "seconds": 2.0, "eval_return": 5}, {"steps": 30, "seconds": 3.0, "eval_return": 6}]
    lines = [json.dumps(row) + "\n" for row in late]
    for order in ([0, 1, 2, 3], [0, 2, 1, 3]):
        (tmp_path / "metrics.jsonl").write_text("".join(lines[i] for i in order) + '{"steps": 40, "se')
        assert last_metrics(tmp_path / "metrics.jsonl") == {"steps": 30, "seconds": 3.0, "a": 2, "eval_return": 6}
        steps = history._steps_at(tmp_path / "metrics.jsonl", np.array([0.5, 1.5, 2.5]), np.ones(3))
        assert steps.tolist() == [5.0, 15.0, 25.0]
    logs = Logs(tmp_path, "test")
    for seconds in (100.0, 1.0):
        logs.row({"steps": 1, "seconds": seconds})
    assert not logs.due(100.5) and logs.due(101.0)
    logs.close()


def test_in_tensorboard_each_curve_goes_forwards():
    from tensorboardX.proto.event_pb2 import Event

    run = trained(Line, True)
    (path,) = run.path.glob("events.out.tfevents*")
    data, steps = path.read_bytes(), {}
    while data:
        size = int.from_bytes(data[:8], "little")  # then 4 bytes of checksum, the record, 4 bytes of checksum
        event = Event.FromString(data[12 : 12 + size])
        for value in event.summary.value:
            steps.setdefault(value.tag, []).append(event.step)
        data = data[16 + size :]
    assert steps["eval/mean_reward"] == list(evaluated(run.path)) and len(steps) > 6
    assert all(points == sorted(set(points)) for points in steps.values())


HOME = os.getpid()
