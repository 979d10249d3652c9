"""Trainings on Ray clusters, in processes of their own: `python cluster_runs.py NAME` prints what came of it, as JSON.

Clusters of several nodes run in a network namespace, which this process enters first of all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.faults.ray_nodes import TOKEN, Nodes, bits, kill_actor, wait_for
from headrace.parallel.cluster import namespace

SMALL = {"progress": "none", "num_envs": 8, "num_steps": 16, "minibatch_size": 64, "epochs": 2, "hidden": (8,)}
OF_OTHERS = ("headrace-kernels-", "sem.mp-")  # in /dev/shm: of tests and programs that run at the same time


def learned(iterations: int, env: Any = "CartPole-v1", **options: Any) -> str:
    """The weights after so many updates."""
    from headrace.training.trainer import Trainer

    trainer = Trainer("ppo", env, **{**SMALL, **options})
    try:
        for _ in range(iterations):
            trainer.iterate()
        return bits(trainer)
    finally:
        trainer.close()


def closed() -> dict:
    """A cluster of its own: bits, sockets, processes, shared memory, session folder."""
    from headrace.parallel.cluster.connection import own_processes
    from headrace.training.trainer import Trainer

    whole = learned(3)
    before, others = set(os.listdir("/dev/shm")), set(own_processes())
    trainer = Trainer("ppo", "CartPole-v1", **SMALL, actors=2, cluster="local")
    for _ in range(3):
        result = trainer.iterate()
    family = set(own_processes()) - others
    sockets = namespace.listening([os.getpid(), *family])
    session = Path(trainer.collector.executor.connection._session)
    was = session.is_dir()
    same = bits(trainer) == whole
    trainer.close()
    until(lambda: not any(map(alive, family)), 600)
    return {
        "same": same,
        "resources": trainer.resources,
        "details": result.details,
        "listening": [str(one) for one in sockets],
        "beyond": [str(one) for one in sockets if not one.loopback],
        "processes": len(family),
        "left": [pid for pid in family if alive(pid)],
        # kernels that another process is loading at this moment are not the cluster's
        "shared": sorted(x for x in set(os.listdir("/dev/shm")) - before if not x.startswith(OF_OTHERS)),
        "session": [was, session.exists()],
    }


def numbers(algorithm: str, collection: str) -> dict:
    """Compare the bits of 1, 2 and 4 actors of a cluster with those of local ones."""
    from headrace.parallel.cluster.cluster_executor import INLINE

    iterations, own = {
        "ppo": (4, {**SMALL, "hidden": (128, 128)}),  # more weights than orders carry
        "dqn": (12, {"progress": "none", "num_envs": 8, "learning_starts": 200, "buffer_size": 4000}),
    }[algorithm]

    def learns(**options: Any) -> str:
        from headrace.training.trainer import Trainer

        trainer = Trainer(algorithm, "CartPole-v1", **own, collection=collection, **options)
        for _ in range(iterations):
            trainer.iterate()
        trainer.close()
        size = trainer.collector.executor.job.spec.layout.size
        assert (size > INLINE) == (algorithm == "ppo"), size
        return bits(trainer)

    local = learns(actors=2)
    return {str(actors): learns(actors=actors, cluster="local") == local for actors in (1, 2, 4)}


def gradients() -> dict:
    """Gradients of two actors: on a cluster that loses actors, and asynchronous."""
    from headrace.training.trainer import Trainer

    nodes = Nodes(2, 1)
    options = {"progress": "none", "num_envs": 4, "num_steps": 16, "normalize_advantage": True, "actors": 2}

    def learns(losses: tuple[int, ...] = (), **mode: Any) -> tuple[str, list[dict[str, float]]]:
        trainer = Trainer("a2c", "CartPole-v1", exchange="gradients", **options, **mode)
        details = []
        for number in range(8):
            if number in losses:
                kill_actor(trainer, 0)
            details.append(trainer.iterate().details)
        trainer.close()
        return bits(trainer), details

    local = learns()
    found: dict[str, Any] = {"same": learns(cluster=nodes.address)[0] == local[0]}
    weights, details = learns((2, 5), cluster=nodes.address)
    found["after losses"] = [weights == local[0], details[-1]["actors_lost"]]
    _, details = learns((3,), cluster=nodes.address, collection="async")
    found["lag"] = max(row["lag_max"] for row in details)
    nodes.close()
    return found


def lost() -> dict:
    """Three nodes; an actor is killed, then a node, then both others; one comes later."""
    from headrace.training.trainer import Trainer

    nodes = Nodes(3, 1)
    iterations = 40
    whole = learned(iterations, actors=3)
    trainer = Trainer("ppo", "CartPole-v1", **SMALL, actors=3, cluster=nodes.address)
    seen = []
    for number in range(iterations):
        if number == 5:
            kill_actor(trainer, 1)
        if number == 15:
            nodes.kill()
        if number == 25:
            nodes.kill()
            nodes.kill()
            nodes.add_later(3, 3.0)
        seen.append(trainer.iterate().details["actors"])
        time.sleep(0.2)
    wait_for(trainer, 3)
    details = trainer.result().details
    same = bits(trainer) == whole
    resources = trainer.resources
    trainer.close()
    nodes.close()
    return {"same": same, "actors": seen, "details": details, "resources": resources}


def late() -> dict:
    """A node with room for half of the actors; another one comes."""
    from headrace.training.trainer import Trainer

    nodes = Nodes(1, 2)
    whole = learned(8, actors=4, collection="overlapped")
    trainer = Trainer("ppo", "CartPole-v1", **SMALL, actors=4, collection="overlapped", cluster=nodes.address)
    for _ in range(4):
        before = trainer.iterate().details["actors"]
    nodes.add(2)
    wait_for(trainer, 4)
    for _ in range(4):
        after = trainer.iterate().details["actors"]
    same = bits(trainer) == whole
    trainer.close()
    nodes.close()
    return {"same": same, "before": before, "after": after}


def late_for_unsaved() -> dict:
    """Same as late(), with environments that cannot be saved, so that they are not moved."""
    from helpers.saved import Unsaved

    from headrace.training.trainer import Trainer

    nodes = Nodes(1, 1)
    make = partial(Unsaved, "never", "")
    trainer = Trainer("ppo", make, **{**SMALL, "num_envs": 4}, actors=2, cluster=nodes.address)
    trainer.iterate()
    nodes.add(1)
    wait_for(trainer, 2)
    for _ in range(3):
        details = trainer.iterate().details
    trainer.close()
    nodes.close()
    return details


def faults(folder: str) -> dict:
    """Environments that fail, hang, or cannot be saved, on a cluster of its own."""
    from helpers.saved import Faulty, Unsaved, limited

    from headrace.training.trainer import Trainer

    options = {**SMALL, "num_envs": 4, "num_steps": 8, "minibatch_size": 16, "actors": 2, "cluster": "local"}
    found: dict[str, Any] = {}
    found["error"] = raised(partial(learned, 3, partial(Faulty, 11, "step"), **options))
    found["import"] = raised(partial(learned, 1, partial(Missing, os.getpid()), **options))
    make = partial(limited, partial(Faulty, 11, "hang", f"{folder}/hang"))
    whole = learned(3, partial(limited, partial(Faulty, "never", "")), **{**options, "cluster": None})
    found["hang"] = learned(3, make, step_timeout=3.0, **options) == whole
    make = partial(Unsaved, 11, "kill", f"{folder}/raise")
    found["unsaved"] = raised(partial(learned, 3, make, **options))
    trainer = Trainer("ppo", partial(Unsaved, 11, "kill", f"{folder}/restart"), on_error="restart", **options)
    for _ in range(3):
        result = trainer.iterate()
    found["restarts"] = result.details["restarts"]
    trainer.close()
    return found


class Missing:
    """Environments whose package is on the learner's machine alone."""

    def __new__(cls, learner: int) -> Any:
        if os.getpid() != learner:
            import a_package_that_is_not_here  # noqa: F401
        import gymnasium

        return gymnasium.make("CartPole-v1")


def raised(function: Callable[[], object]) -> list[str]:
    """The kind and the text of what a function raises, and its notes."""
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
    return []


def resumed(folder: str) -> dict:
    """Resume a training of local actors on a cluster, and a training on a cluster by local actors."""
    from headrace.runs import checkpoint
    from headrace.training.trainer import Trainer

    options = {**SMALL, "actors": 2, "collection": "overlapped"}
    whole = learned(6, **options)
    found = {}
    for name, first, second in (("to", None, "local"), ("from", "local", None)):
        trainer = Trainer("ppo", "CartPole-v1", **options, cluster=first)
        for _ in range(3):
            trainer.iterate()
        checkpoint.save(Path(folder) / name, {"training": trainer.state_dict()})
        trainer.close()
        trainer = Trainer("ppo", "CartPole-v1", **options, cluster=second)
        trainer.load_state_dict(checkpoint.load(Path(folder) / name, "training"))
        for _ in range(3):
            trainer.iterate()
        found[name] = bits(trainer) == whole
        trainer.close()
    return found


def learners(cluster: str) -> dict:
    """Two learners with two actors each on a cluster, one of which is lost: their own cluster, or one of two nodes."""
    from headrace.training.trainer import Trainer

    nodes = Nodes(2, 2) if cluster == "nodes" else None
    own = {"cluster": nodes.address if nodes else "local", "learners": 2, "actors": 4, "collection": "overlapped"}
    trainer = Trainer("ppo", "CartPole-v1", **SMALL, **own)
    for number in range(6):
        if number == 3:
            kill_actor(trainer, 0)
        trainer.iterate()
    wait_for(trainer, 2)
    details = trainer.iterate().details
    found = bits(trainer)
    trainer.close()
    if nodes:
        nodes.close()
    return {"same": found == learned(7, **{**own, "cluster": None}), "details": details}


IMPATIENT = """
import sys
from headrace.cli.main import main
from headrace.parallel.cluster import head

head.EVERY, head.GONE = 0.1, 1.0
sys.exit(main())
"""


def head_lost(folder: str) -> dict:
    """The command line, whose cluster loses its head, resumed with that cluster and without one."""
    from headrace.runs.run import load

    nodes = Nodes(2, 1)
    quiet = ["--progress", "none", "--final-episodes", "0"]
    settings = [
        f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name not in ("hidden", "progress")
    ]
    start = ["train", "ppo", "CartPole-v1", "--actors", "2", "--no-registered", *settings, *quiet]
    start += ["--total-steps", "300000", "--log-folder"]

    def headrace(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", IMPATIENT, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    process, run = headrace(*start, folder, "--cluster", nodes.address), Path(folder) / "ppo" / "CartPole-v1_1"
    until((run / "metrics.jsonl").exists, 600)
    nodes.cluster.head_node.kill_gcs_server(check_alive=False)
    ended = [process.communicate()[0], process.returncode]
    again = headrace("train", "--resume", str(run), *quiet)
    refused = [again.communicate()[0], again.returncode]
    resumed = headrace("train", "--resume", str(run), "--cluster", "none", *quiet)
    resumed.communicate()
    whole = headrace(*start, f"{folder}/whole")
    whole.communicate()
    runs = (run, Path(folder) / "whole" / "ppo" / "CartPole-v1_1")
    weights = [bits(SimpleNamespace(policy=load(path, which="last"))) for path in runs]
    nodes.close()
    return {"ended": ended, "refused": refused, "codes": [resumed.returncode, whole.returncode], "weights": weights}


STRANGER = "import ray; ray.init('{address}', logging_level=50); print('inside')"


def gpu() -> dict:
    """An actor is to act on the GPU of a node that has none in truth."""
    nodes = Nodes(1, 1, gpus=1)
    try:
        learned(1, actors=1, cluster=nodes.address, collect_device="cuda")
        return {"error": ""}
    except RuntimeError as error:
        return {"error": str(error)}
    finally:
        nodes.close()


def stranger() -> dict:
    """A process on the machine of a cluster that does not have its token."""
    nodes = Nodes(1, 1)
    command = [sys.executable, "-c", STRANGER.format(address=nodes.address)]
    answers = {}
    for name, token in (("none", {}), ("another", {**TOKEN, "RAY_AUTH_TOKEN": "f" * 64}), ("right", TOKEN)):
        env = {key: value for key, value in os.environ.items() if key not in TOKEN} | token
        env |= {"RAY_AUTH_MODE": token.get("RAY_AUTH_MODE", "disabled"), "HOME": "/nonexistent"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        answers[name] = [done.stdout.strip().endswith("inside"), "uthenticat" in done.stderr]
    nodes.close()
    return answers


def alive(pid: int) -> bool:
    """Tell whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most so long."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    result = globals()[name](*arguments)
    print(json.dumps(result), flush=True)
