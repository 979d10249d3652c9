"""Everything that needs a GPU, in one call of under ten minutes: tests, throughput, iterations with and without graphs.

    python -m benchmarks.speed.gpu --output results.json

Each part is tried by itself: one that fails is reported with its error, and the others run. Environments are counted in
valid steps. Iterations are counted in steps of all environments.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.common import HERE, ROOT, Row, environment, interpreter_with, machine, run_program, table
from headrace import envs
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.checks import parity
from headrace.core.precision import PRECISIONS, computing
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration, cuda_graph
from headrace.parallel.cuda.device_sum import nccl_group
from headrace.training.trainer import Trainer

CUDA = torch.device("cuda")
NUM_ENVS = (1024, 16_384, 131_072, 1_048_576)
ENTITIES = {"Tag": (64, 512, 4096), "Flock": (64, 512, 4096)}  # environments; 100 and 16 agents in each
LARGE = {"num_steps": 32, "epochs": 4, "hidden": (64, 64)}  # of PPO, as in ppo_throughput.py
ITERATIONS = [(256, 2048), (4096, 32_768), (16_384, 131_072)]  # environments, minibatch
SUMS = {20_000: 200, 1_000_000: 50}  # floats of a gradient -> sums of a measurement
SEVERAL = {"num_envs": 8192, "num_steps": 32, "minibatch_size": 65_536, "epochs": 4, "hidden": (256, 256)}
COLUMNS = {
    "envs": ("env", "backend", "way", "num_envs", "block", "sps", "gb_s"),
    "entities": ("env", "backend", "way", "num_envs", "block", "sps", "gb_s"),
    "iterations": ("num_envs", "minibatch_size", "networks", "precision", "way", "ms", "sps"),
    "learners": ("learners", "work", "way", "us", "sps"),
    "off_policy": ("algorithm", "way", "gradient_steps_per_second"),
    "rejax": ("num_envs", "minibatch_size", "first_iteration_s", "sps"),
}
OFF_POLICY = {"sac": ("Pendulum-v1", 256), "td3": ("Pendulum-v1", 256), "dqn": ("CartPole-v1", 64)}  # env, batch


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", HERE / "results")) / "gpu.json"
    flags.add_argument("--output", type=Path, default=default, help="a JSON file; by default in $OUT, if that is set")
    flags.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    flags.add_argument("--without", nargs="+", default=[], help="parts to leave out: tests, check, envs, ...")
    flags.add_argument("--peers-home", type=Path, default=ROOT / ".peers")
    options = flags.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/speed/gpu.py needs an NVIDIA GPU that torch can use, and there is none here")
    parts: dict[str, Callable[[], object]] = {
        "check": check,
        "envs": lambda: environments(options.seconds),
        "entities": lambda: entities(options.seconds),
        "iterations": lambda: iterations(options.seconds),
        "losses": lambda: program("speed/gpu_losses.py"),
        "off_policy": lambda: off_policy(options.seconds),
        "learners": lambda: learners(options.seconds),
        "crossover": lambda: program("speed/cpu_or_gpu.py", "--seconds", "0.2"),
        "peers": lambda: peers(options.peers_home, options.seconds),
        "rejax": lambda: rejax(options.peers_home, options.seconds),
        "tests": tests,
    }
    result: Row = {"benchmark": "gpu", "machine": machine(), "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        if name not in options.without:
            result[name] = tried(name, part)
            # written after each part: of a call that is cut short, what was measured stays
            options.output.write_text(json.dumps(result, indent=1))
    print(f"wrote {options.output}")


def tried(name: str, part: Callable[[], object]) -> object:
    """What a part gives, or its error."""
    print(f"--- {name}", flush=True)
    began = time.perf_counter()
    try:
        found = part()
    except Exception:
        found = {"error": traceback.format_exc()[-2000:]}
        print(found["error"])
    if isinstance(found, list):
        print(table(found, COLUMNS[name]))
    print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    return found


def tests() -> Row:
    """Tests marked gpu."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    print(done.stdout[-3000:])
    return {"exit_code": done.returncode, "output": done.stdout[-8000:]}


def check() -> Row:
    """`headrace check --device cuda`."""
    command = [sys.executable, "-m", "headrace", "check", "--device", "cuda", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    print(done.stderr[-2000:])
    outcome: Row = json.loads(done.stdout)
    for one in outcome["checks"]:
        print(f"{one['name']:<34} {'agrees' if one['passed'] else 'DIFFERS'}  {one['worst']}  {one['note'][:200]}")
    return outcome


def program(name: str, *arguments: str) -> Row:
    """Another benchmark's result."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment())
    print(done.stdout[-3000:] if done.returncode == 0 else done.stderr[-3000:])
    found: Row = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def environments(seconds: float) -> list[Row]:
    """Valid steps a second of environments alone: launched one by one, as a graph, and many steps in one launch."""
    rows = []
    for name in ("CartPole-v1", "Pendulum-v1", "GridWorld"):
        for num_envs in NUM_ENVS:
            for backend in ("cuda", "torch") if name != "GridWorld" else ("cuda",):
                rows += _ways(name, num_envs, backend, seconds)
    return rows


def entities(seconds: float) -> list[Row]:
    """Valid steps a second, of all agents, of environments with entities: a block of threads each."""
    return [row for name, sizes in ENTITIES.items() for size in sizes for row in _ways(name, size, "cuda", seconds)]


def _ways(name: str, num_copies: int, backend: str, seconds: float) -> list[Row]:
    env = envs.make(name, num_copies, backend=backend, device=CUDA)
    num_envs = env.num_envs  # columns: of several agents, copies times agents
    steps = max(8, min(128, 2**24 // num_envs))
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, num_envs, columns, CUDA)
    env.reset(rollout, 0)
    env.run_random(rollout, 0)  # type: ignore[attr-defined]

    def one_by_one() -> None:
        for t in range(steps):
            env.step(rollout, t)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one_by_one()
    ways: dict[str, Callable[[], None]] = {"one by one": one_by_one, "graph": graph.replay}
    if backend == "cuda":
        ways["one launch"] = lambda: env.run(rollout)  # type: ignore[attr-defined]
        ways["one launch, random"] = lambda: env.run_random(rollout, 0)  # type: ignore[attr-defined]
    share = rollout.valid_steps() / (steps * num_envs)
    moved = sum(x.numel() * x.element_size() for x in _tensors(rollout)) / (steps * num_envs)  # bytes a step
    rows = []
    for way, call in ways.items():
        rate = steps * num_envs / timed(call, seconds)
        block = getattr(env.target, "_block", None)  # type: ignore[attr-defined]
        facts = {"env": name, "backend": backend, "way": way, "num_envs": num_envs, "block": block}
        rows.append({**facts, "sps": rate * share, "gb_s": rate * moved / 1e9})
    return rows


def _tensors(rollout: Rollout) -> list[torch.Tensor]:
    return [getattr(rollout, name) for name in rollout.columns]


def iterations(seconds: float) -> list[Row]:
    """Milliseconds of a whole PPO iteration on CartPole: networks in plain torch, step by step and replayed from a
    graph, and then by kernels of their own."""
    rows = []
    serving = bool(find_spec("numba_cuda"))
    if serving:
        import_module("headrace.bindings.rng_returns_cuda")
    for networks in ("plain torch", "kernels") if serving else ("plain torch",):
        if networks == "kernels":
            parity.offer_kernels(CUDA)
        for num_envs, minibatch_size in ITERATIONS:
            for precision in PRECISIONS if networks == "plain torch" else PRECISIONS[:1]:
                for graph in (False, True):
                    backend = "cuda" if serving else "torch"
                    milliseconds, way = iteration(num_envs, minibatch_size, backend, precision, graph, seconds)
                    facts = {"num_envs": num_envs, "minibatch_size": minibatch_size, "networks": networks}
                    rate = num_envs * LARGE["num_steps"] / milliseconds * 1000  # type: ignore[operator]
                    rows.append({**facts, "precision": precision, "way": way, "ms": milliseconds, "sps": rate})
    return rows


def iteration(
    num_envs: int, minibatch_size: int, backend: str, precision: str, graph: bool, seconds: float
) -> tuple[float, str]:
    """Milliseconds, and how it ran."""
    env = envs.make("CartPole-v1", num_envs, backend=backend, device=CUDA)
    config = PPOConfig(minibatch_size=minibatch_size, **LARGE)  # type: ignore[arg-type]
    learner = PPO.build(config, env.observation_space, env.action_space, 0, CUDA)
    collector = InlineCollector(env, learner.policy, config.num_steps, learner.columns(), 0)
    graphed = GraphedIteration(collector, learner)

    def iterate() -> None:
        metrics = graphed.iterate(0.0) if graph else None
        if metrics is None:
            metrics = learner.update(collector.collect(), 0.0)
        metrics["loss"].item()

    with computing(precision, CUDA):
        iterate()
        iterate()
        milliseconds = timed(iterate, seconds) * 1000
    return milliseconds, f"refused: {graphed.refused}" if graphed.refused else "graph" if graph else "step by step"


def off_policy(seconds: float) -> list[Row]:
    """Gradient steps a second of whole trainings, 64 environments and 64 gradient steps an iteration."""
    rows = []
    for name, (env, batch_size) in OFF_POLICY.items():
        for graphs in (True, False):
            trainer = Trainer(
                name,
                env,
                device="cuda",
                backend="cuda" if find_spec("numba_cuda") else "torch",
                graphs=graphs,
                num_envs=64,
                num_steps=1,
                gradient_steps=64,
                batch_size=batch_size,
                hidden=(256, 256),
                activation="relu",
                learning_starts=640,
                progress="none",
            )
            try:
                for _ in range(16):
                    trainer.iterate()
                rate, way = 64 / timed(trainer.iterate, seconds), way_of(trainer)
            finally:
                trainer.close()
            rows.append({"algorithm": name, "way": way, "gradient_steps_per_second": rate})
    return rows


def way_of(trainer: Trainer) -> str:
    """How its iterations ran."""
    if trainer._graph is None:
        return "step by step"
    return f"refused: {trainer._graph.refused}" if trainer._graph.refused else "graph"


def learners(seconds: float) -> list[Row]:
    """Sums by NCCL, one by one and in a graph, and PPO by one learner and by one on each GPU. With one GPU sums are
    those of a group of one, and several learners are not measured."""
    gpus = torch.cuda.device_count()
    rows = [row for number in dict.fromkeys((1, gpus)) for row in _sums(number)]
    backend = "cuda" if find_spec("numba_cuda") else "torch"
    for number in dict.fromkeys((1, gpus)):
        for graphs in (True, False):
            trainer = Trainer(
                "ppo", "CartPole-v1", learners=number, device="cuda", backend=backend, graphs=graphs, **SEVERAL
            )
            try:
                for _ in range(3):
                    trainer.iterate()
                steps, spent = trainer.steps, trainer.seconds
                while trainer.seconds - spent < 10 * seconds:
                    trainer.iterate()
                rate = (trainer.steps - steps) / (trainer.seconds - spent)
                way = way_of(trainer)
            finally:
                trainer.close()
            rows.append({"learners": number, "work": "PPO on CartPole", "way": way, "us": None, "sps": rate})
    if gpus == 1:
        print("there is one GPU: several learners were not measured")
    return rows


def _sums(number: int) -> list[Row]:
    """Microseconds of sums over so many GPUs, a process each."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with TemporaryDirectory() as folder:
        arguments = [(f"{folder}/ranks", rank, number, there if rank == 0 else None) for rank in range(number)]
        processes = [spawn.Process(target=sums_of_rank, args=each) for each in arguments]
        for process in processes:
            process.start()
        there.close()
        try:
            found: list[Row] = here.recv() if here.poll(120) else []
        finally:
            for process in processes:
                process.join(20)
                process.kill()
    if not found:
        raise RuntimeError(f"sums over {number} GPUs gave nothing in 120 s")
    return found


def sums_of_rank(path: str, rank: int, number: int, answer: Connection | None) -> None:
    """One of the processes; rank 0 sends what was measured."""
    torch.cuda.set_device(rank)
    group, rows = nccl_group(path, rank, number, 60.0), []
    for floats, calls in SUMS.items():
        gradient = torch.zeros(floats, device=CUDA)

        def add(gradient: torch.Tensor = gradient, calls: int = calls) -> None:
            for _ in range(calls):
                group.allreduce([gradient]).wait()

        add()  # connects
        replay = cuda_graph(add, alone=False)
        for way, call in (("one by one", add), ("graph", replay)):
            windows = []
            for _ in range(5):
                torch.cuda.synchronize()
                began = time.perf_counter()
                call()
                torch.cuda.synchronize()
                windows.append((time.perf_counter() - began) / calls * 1e6)
            work = f"sum of {floats:,} floats"
            rows.append({"learners": number, "work": work, "way": way, "us": sorted(windows)[2], "sps": None})
        del replay, call  # before the group
    if answer is not None:
        answer.send(rows)
    group.abort()


def timed(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call: the median of three windows, each waited for."""
    windows = []
    for _ in range(4):  # the first is for warming up
        torch.cuda.synchronize()
        began, calls = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            call()
            torch.cuda.synchronize()
            calls += 1
        windows.append((time.perf_counter() - began) / calls)
    return sorted(windows[1:])[1]


def peers(home: Path, seconds: float) -> Row:
    """gymnax on the GPU, where a Python with it and a CUDA build of JAX is found."""
    python = interpreter_with("gymnax", home)
    if python is None:
        print(f"gymnax is not installed, here or in {home}: left out")
        return {"left_out": "gymnax is not installed"}
    flags = ("gymnax", "scan", "--env", "CartPole-v1", "--seconds", seconds, "--num-envs", *NUM_ENVS)
    return run_program(python, "speed/env_steppers.py", *flags, timeout=150, env={"JAX_PLATFORMS": "cuda,cpu"})


def rejax(home: Path, seconds: float) -> object:
    """rejax's PPO on the GPU, at the sizes of `iterations`, where a Python with it and a CUDA build of JAX is found."""
    python = interpreter_with("rejax", home)
    if python is None:
        print(f"rejax is not installed, here or in {home}: left out")
        return {"left_out": "rejax is not installed"}
    rows = []
    for num_envs, minibatch_size in ITERATIONS:
        flags: list[object] = ["rejax", "--config", "large", "--seed", 0, "--threads", os.cpu_count(), "--warm", 1]
        flags += ["--seconds", 5 * seconds, "--num-envs", num_envs, "--minibatch-size", minibatch_size]
        flags += ["--every", 8 * num_envs * 32]
        row = run_program(python, "speed/ppo_one.py", *flags, timeout=120, env={"JAX_PLATFORMS": "cuda,cpu"})
        rows.append({**row, "minibatch_size": minibatch_size, "num_envs": num_envs})
    return rows


if __name__ == "__main__":
    main()
