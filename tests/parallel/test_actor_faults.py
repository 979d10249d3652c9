"""Actors that are killed, hang or fail, at any moment: nothing is lost, or the error says what happened.

benchmarks/faults/kill_actors.py does this at random moments."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from helpers.saved import Drifting, Faulty, Slow, Unsaved, limited

import headrace as hr
from headrace.core import fused
from headrace.core.stopping import Stopped
from headrace.envs.workers.process import WorkerError
from headrace.parallel.actors import Actors
from headrace.runs import checkpoint
from headrace.training.trainer import Trainer

SMALL = {"num_envs": 4, "num_steps": 8, "minibatch_size": 16, "epochs": 1, "hidden": (4,), "progress": "none"}


@pytest.fixture
def plain():
    """Run plain functions: kernels would be compiled for these tests alone."""
    with fused.plain_only():
        yield


def bits(trainer: Trainer) -> str:
    weights = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def pids(trainer: Trainer) -> list[int]:
    return [worker.process.pid for worker in trainer.env.transport.workers]


def kill(trainer: Trainer, count: int = 1) -> None:
    for pid in pids(trainer)[:count]:
        os.kill(pid, signal.SIGKILL)


def learned(env, iterations: int, kills: dict[int, int] | None = None, **options) -> tuple[str, int]:
    """The weights after so many updates, and the restarts. kills: update -> number of actors that are killed before
    it."""
    trainer = Trainer("ppo", env, **{**SMALL, **options})
    try:
        for number in range(iterations):
            if kills and number in kills:
                kill(trainer, kills[number])
            result = trainer.iterate()
        return bits(trainer), result.details.get("restarts", 0)
    finally:
        trainer.close()


@pytest.mark.parametrize("collection", [pytest.param("sync", marks=pytest.mark.slow), "overlapped"])
def test_kernel_environments_end_with_the_same_bits(collection):
    options = {"actors": 2, "collection": collection, "num_envs": 8}
    whole = learned("CartPole-v1", 4, **options)
    assert learned("CartPole-v1", 4, {0: 1, 2: 2}, **options) == whole


@functools.cache
def undisturbed() -> tuple[str, int]:
    return learned(partial(limited, partial(Faulty, "never", "")), 3, actors=2)


STATE = "the state after 14"  # it is killed between writing the second fragment and its state


@pytest.mark.parametrize(
    ("when", "what"),
    [
        *(("make", "exit"), ("reset", "kill"), (STATE, "kill"), (11, "hang")),
        *(pytest.param(11, what, marks=pytest.mark.slow) for what in ("kill", "exit", "stop")),
    ],
)
def test_environments_that_can_be_saved_end_with_the_same_bits(plain, tmp_path, when, what):
    make = partial(limited, partial(Faulty, when, what, str(tmp_path / "once")))
    assert learned(make, 3, actors=2, step_timeout=3.0) == undisturbed() and (tmp_path / "once").exists()


def test_others_end_the_training_or_begin_again_and_are_counted(plain, tmp_path):
    make = partial(Unsaved, 11, "kill", str(tmp_path / "first"))
    with pytest.raises(WorkerError, match=r"actor . \(envs . to .\) was ended by SIGKILL") as caught:
        learned(make, 3, actors=2)
    assert "on_error='restart' begins new episodes" in caught.value.__notes__[0]
    for what in ("kill", "hang"):
        make = partial(Unsaved, 11, what, str(tmp_path / what))
        assert learned(make, 3, actors=2, on_error="restart", step_timeout=3.0)[1] == 2
    # their first fragment is known: it begins by a seed
    make = partial(Unsaved, 5, "kill", str(tmp_path / "at once"))
    assert learned(make, 2, actors=2) == learned(partial(Unsaved, "never", ""), 2, actors=2)


def test_an_actor_that_is_lost_at_the_same_fragment_again_and_again_is_an_error(plain):
    for when, fragments in (("reset", 0), (11, 1)):
        with pytest.raises(WorkerError, match="was ended by SIGKILL") as caught:
            learned(partial(Faulty, when, "kill"), 3, actors=2, on_error="restart")
        assert f"3 times in a row, each time after as many answers, {fragments}" in caught.value.__notes__[-1]


def test_exceptions_keep_their_traceback(plain, tmp_path):
    for what in ("step", "unpicklable"):
        error = ZeroDivisionError if what == "step" else RuntimeError
        with pytest.raises(error) as caught:
            learned(partial(Faulty, 11, what), 3, actors=2)
        assert "ZeroDivisionError: the step went wrong" in "".join(caught.value.__notes__)
        assert "saved.py" in caught.value.__notes__[-1]
    assert learned(partial(Faulty, 11, "step", str(tmp_path / "x")), 3, actors=2, on_error="restart")[1] == 1


def test_a_slow_fragment_is_not_a_hanging_one(plain):
    learned(partial(Slow, 0.1), 1, actors=2, num_steps=10, step_timeout=1.5)  # a fragment takes 2 s


def saved(trainer: Trainer, folder: Path) -> dict:
    checkpoint.save(folder, {"training": trainer.state_dict()})
    return checkpoint.load(folder, "training")


RESUMED = {
    "ppo": ("ppo", "CartPole-v1", 2, {"num_envs": 8}),
    "agents": ("ppo", "Pursuit", 2, {}),
    "recurrent": ("a2c", "CartPole-v1", 4, {"recurrent": "gru", "sequence_length": 4, "hidden": (16,), "num_envs": 8}),
    "dqn": ("dqn", "CartPole-v1", 20, {"num_envs": 6, "learning_starts": 60, "buffer_size": 2000}),
    "sac": ("sac", "Pendulum-v1", 20, {"num_envs": 6, "learning_starts": 60, "hidden": (16, 16), "buffer_size": 2000}),
    "savable": ("ppo", partial(limited, Drifting), 2, SMALL),
}


FAST = (("savable", "sync"), ("ppo", "overlapped"))
PAIRS = product(RESUMED, ("sync", "overlapped"))
SLOW = [pytest.param(*pair, marks=pytest.mark.slow) for pair in PAIRS if pair not in FAST]


@pytest.mark.parametrize(("case", "collection"), [*FAST, *SLOW])
def test_resuming_gives_the_bits_of_an_uninterrupted_training(case, collection, tmp_path):
    """A training is resumed with as many actors, or with another number."""
    algorithm, env, iterations, options = RESUMED[case]
    options = {**options, "progress": "none", "collection": collection}
    another = {"sync": 3, "overlapped": 1}.get(collection, 2)
    whole, first, second = (Trainer(algorithm, env, **options, actors=number) for number in (2, 2, another))
    try:
        for _ in range(2 * iterations):
            whole.iterate()
        for _ in range(iterations):
            first.iterate()
        with pytest.raises(Stopped):  # as by Ctrl-C
            first.iterate(lambda: True)
        second.load_state_dict(saved(first, tmp_path / "saved"))
        kill(second)
        for _ in range(iterations):
            second.iterate()
        assert bits(second) == bits(whole) != bits(first)
    finally:
        for trainer in (whole, first, second):
            trainer.close()


def test_what_cannot_be_resumed_is_refused_by_name(plain, tmp_path):
    given = {name: x for name, x in SMALL.items() if name not in ("minibatch_size", "epochs")}
    given |= {"total_steps": 32, "log_folder": str(tmp_path), "actors": 2}
    run = hr.train("a2c", Drifting, **given, exchange="gradients")
    with pytest.raises(
        ValueError, match=r"actors is 2 in .* cannot become 4 on resuming: .* that send gradients, sums"
    ):
        hr.train(resume=run.path, env=Drifting, actors=4)
    trainer = Trainer("ppo", Drifting, **SMALL, actors=2)
    state = trainer.collector.state_dict()
    with pytest.raises(ValueError, match="policies 2 updates old, and here they may be 0: keep collection"):
        trainer.collector.load_state_dict({**state, "version": 2, "waiting": {"0.1": 0}})
    trainer.close()


def test_a_run_goes_on_with_another_number_of_actors(plain, tmp_path):
    options = {**SMALL, "total_steps": 64, "log_folder": str(tmp_path), "collection": "overlapped"}
    whole = hr.train("ppo", Drifting, **options | {"total_steps": 128}, actors=3)
    run = hr.train("ppo", Drifting, **options, actors=2)
    run = hr.train(resume=run.path, env=Drifting, actors=3, total_steps=128)
    assert "actors = 3" in (run.path / "config.toml").read_text()
    for mine, its in zip(run.policy.parameters(), whole.policy.parameters(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(
    ("algorithm", "saved", "given"),
    [
        ("ppo", {"actors": 2}, {"num_envs": 6}),
        ("ppo", {"actors": 2}, {"actors": None}),
        ("ppo", {}, {"actors": 3, "num_steps": 16}),
        ("appo", {"actors": 2, "collection": "async"}, {"actors": 4}),
        ("appo", {"actors": 2, "collection": "async"}, {"collection": "sync"}),
    ],
)
def test_a_run_goes_on_in_new_episodes_with_other_actors(algorithm, saved, given, plain, tmp_path, capsys):
    options = {**SMALL, "log_folder": str(tmp_path), "progress": "plain"}
    run = hr.train(algorithm, Drifting, **options, **saved, total_steps=64)
    with hr.Training(resume=run.path, env=Drifting, total_steps=160, **given) as training:
        trainer = training.trainer
        before = hr.load(run.path, which="last").state_dict()
        assert all(torch.equal(x, before[name]) for name, x in trainer.policy.state_dict().items())
        assert trainer.steps == run.steps and trainer.env.num_envs == given.get("num_envs", SMALL["num_envs"])
        done = trainer.collector.steps
        assert done * SMALL["num_envs"] >= run.steps  # no seed of episodes is drawn again
        trainer.iterate()
        assert trainer.collector.steps == done + trainer.collector.rollout.num_steps
    assert "new episodes begin: the run is not the one that it would have been" in "".join(capsys.readouterr())


def test_environments_that_cannot_be_saved_resume_with_fresh_episodes(plain, tmp_path, capsys):
    options = {"actors": 2, "collection": "overlapped", "log_folder": str(tmp_path)}
    make = partial(Unsaved, "never", "")
    run = hr.train("ppo", make, **{**SMALL, "progress": "plain"}, **options, total_steps=64)
    resumed = hr.train(resume=run.path, env=make, total_steps=160)
    assert resumed.steps >= 160 and "cannot be saved: resuming with fresh episodes" in capsys.readouterr().out


@pytest.mark.slow
def test_two_hundred_updates_with_losses_leave_nothing_behind(plain):
    def held(pid: int) -> tuple[int, int]:
        statm = Path(f"/proc/{pid}/statm").read_text().split()
        return len(os.listdir(f"/proc/{pid}/fd")), int(statm[1]) * os.sysconf("SC_PAGE_SIZE")

    trainer = Trainer("ppo", Drifting, **SMALL, actors=2, collection="overlapped")
    try:
        for number in range(240):
            if number in (10, 30, 60, 90, 120, 150, 180):
                kill(trainer)
            trainer.iterate()
            if number == 40:
                gc.collect()
                before, others = held(os.getpid()), held(pids(trainer)[1])
        gc.collect()
        after = held(os.getpid()), held(pids(trainer)[1])
        assert after[0][0] == before[0] and after[1][0] == others[0]
        assert max(after[0][1] - before[1], after[1][1] - others[1]) < 8e6
        assert not zombies(os.getpid())
    finally:
        trainer.close()


def zombies(parent: int) -> list[str]:
    """Processes that have ended and were not waited for."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().partition(") ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if rest.split()[:2] == ["Z", str(parent)]:
            found.append(name)
    return found


def test_close_is_called_twice_after_a_loss(plain):
    trainer = Trainer("ppo", Drifting, **SMALL, actors=2, collection="overlapped", step_timeout=1e6)
    trainer.iterate()
    kill(trainer, 2)
    trainer.close()  # does not wait for the lost one
    trainer.close()
    assert isinstance(trainer.collector, Actors)


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
import headrace as hr
from headrace.core import fused
from helpers.saved import Slow

class Noted(Slow):
    def step(self, action):
        Path(sys.argv[1], "stepping").touch()
        return super().step(action)

with fused.plain_only():
    hr.train("ppo", partial(Noted, float(sys.argv[2])), num_envs=4, num_steps=8, minibatch_size=16, epochs=1,
        hidden=(4,), progress="none", actors=2, collection="overlapped", total_steps=10**6, log_folder=sys.argv[1])
"""


def processes(folder: Path) -> list[int]:
    """Processes of a run: its name is in their environment."""
    found = []
    for words in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"RUN={folder}".encode() in words.read_bytes() and runs(int(words.parent.name)):
                found.append(int(words.parent.name))
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "seconds"), [("SIGINT", 120), ("SIGKILL", 120), pytest.param("SIGTERM", 0.01, marks=pytest.mark.slow)]
)
def test_a_signal_ends_all(tmp_path, number, seconds):
    environment = {**os.environ, "RUN": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    learner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(seconds)],
        env=environment, start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until((tmp_path / "stepping").exists)
    time.sleep(0.5)
    family = processes(tmp_path)
    assert len(family) >= 4
    os.killpg(learner.pid, getattr(signal, number))
    learner.wait(60)  # 1.5 s on cores that are idle, and a step takes 120 s
    until(lambda: not any(map(runs, family)))
    if number != "SIGKILL":
        assert list(tmp_path.glob("*/*_1/last/manifest.json"))
