"""Parts of gpu.py: environments, whole iterations in each way that there is, trainings, sums by NCCL, and peers."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.common import ROOT, Row, environment, interpreter_with, run_program
from benchmarks.speed.gpu_card import Card, bijection, errors_of, one_launch, tensor_cores
from benchmarks.speed.own_networks import Residual
from headrace import envs
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.checks import parity
from headrace.core.fused import plain_only
from headrace.core.precision import PRECISIONS, computing
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.cuda_graphs import GraphedIteration, cuda_graph
from headrace.parallel.cuda.device_sum import nccl_group
from headrace.policies.actor_critic import ActorCritic
from headrace.training.trainer import Trainer

NUM_ENVS = (1024, 16_384, 131_072, 1_048_576)
ENTITIES = {"Tag": (64, 512, 4096), "Flock": (64, 512, 4096)}  # environments; 100 and 16 agents in each
LARGE: dict[str, Any] = {"num_steps": 32, "epochs": 4, "hidden": (64, 64)}  # of PPO, as in ppo_throughput.py
ITERATIONS = [(256, 2048), (4096, 32_768), (16_384, 131_072)]  # environments, minibatch
SUMS = {20_000: 200, 1_000_000: 50}  # floats of a gradient -> sums of a measurement
SEVERAL: dict[str, Any] = {"num_envs": 8192, "num_steps": 32, "minibatch_size": 65_536, "epochs": 4}


def check(card: Card) -> None:
    """`headrace check --device cuda`."""
    command = [sys.executable, "-m", "headrace", "check", "--device", str(card.device), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment())
    if not done.stdout.strip():
        raise RuntimeError(done.stderr[-2000:])
    for one in json.loads(done.stdout)["checks"]:
        card.tell(**one)
    if done.returncode:
        raise RuntimeError(f"headrace check ended with {done.returncode}: {done.stderr[-1000:]}")


def tests(card: Card) -> None:
    """Tests marked gpu; in a dry run they are counted."""
    options = ["-m", "gpu", "-p", "no:cacheprovider", "-q", *card.of([], ["--collect-only", "tests/checks"])]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment())
    card.tell(exit_code=done.returncode, output=done.stdout[-8000:])
    if done.returncode:
        raise RuntimeError(f"pytest ended with {done.returncode}")


def steps_alone(card: Card) -> None:
    """Valid steps a second of environments alone: launched one by one, as a graph, and many steps in one launch."""
    for name in card.of(("CartPole-v1", "Pendulum-v1", "GridWorld"), ("CartPole-v1",)):
        for num_envs in card.of(NUM_ENVS, (8,)):
            for backend in ("cuda", "torch") if name != "GridWorld" and not card.dry else (card.backend,):
                facts = {"env": name, "backend": backend, "num_envs": num_envs}
                errors_of(card.tell, facts, partial(_ways, card, name, num_envs, backend))


def entities(card: Card) -> None:
    """Valid steps a second, of all agents, of environments with entities: a block of threads each."""
    for name, sizes in card.of(ENTITIES, {}).items():
        for size in sizes:
            errors_of(card.tell, {"env": name, "num_envs": size}, partial(_ways, card, name, size, "cuda"))


def _ways(card: Card, name: str, num_copies: int, backend: str) -> None:
    env: Any = envs.make(name, num_copies, backend=backend, device=card.device)
    num_envs = env.num_envs  # columns: of several agents, copies times agents
    steps = card.of(max(8, min(128, 2**24 // num_envs)), 8)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(steps, num_envs, columns, card.device)
    env.reset(rollout, 0)
    rollout.action.zero_()
    if backend == "cuda":
        env.run_random(rollout, 0)

    def one_by_one() -> None:
        for t in range(steps):
            env.step(rollout, t)

    ways: dict[str, Callable[[], object]] = {"one by one": one_by_one, "graph": card.graph(one_by_one)}
    if backend == "cuda":
        ways["one launch"] = lambda: env.run(rollout)
        ways["one launch, random"] = lambda: env.run_random(rollout, 0)
    share = rollout.valid_steps() / (steps * num_envs)
    tensors = [getattr(rollout, column) for column in rollout.columns]
    moved = sum(x.numel() * x.element_size() for x in tensors) / (steps * num_envs)  # bytes a step
    for way, call in ways.items():
        rate = steps * num_envs / card.timed(call)
        block = getattr(env.target, "_block", None)
        facts = {"env": name, "backend": backend, "way": way, "num_envs": num_envs, "block": block}
        card.tell(**facts, sps=rate * share, gb_s=rate * moved / 1e9)


def ways_of_iterations(card: Card) -> dict[str, tuple[str, Callable[[], AbstractContextManager[object]]]]:
    """Ways to run an iteration, by name: the precision, and the context that it runs within. The kernels of numba-cuda
    come last: once offered, they serve."""
    found: dict[str, Any] = {f"plain torch, {name}": (name, plain_only) for name in card.of(PRECISIONS, PRECISIONS[:1])}
    found |= {"row programs": ("float32", nullcontext), "row programs, tensor cores": ("float32", tensor_cores)}
    found["row programs, one launch"] = "float32", one_launch
    found |= card.of({"row programs, TF32": ("tf32", tensor_cores)}, {})
    if card.backend == "cuda":
        found |= {"kernels": ("float32", nullcontext), "kernels, bijection": ("float32", bijection)}
    return found


def iterations(card: Card) -> None:
    """A whole PPO iteration on CartPole in each way, replayed from a graph, in turns: microseconds."""
    for num_envs, minibatch_size in card.of(ITERATIONS, [(8, 64)]):
        replays: dict[str, Callable[[], object]] = {}
        facts = {"num_envs": num_envs, "minibatch_size": minibatch_size}
        for name, (precision, within) in ways_of_iterations(card).items():
            if name.startswith("kernels"):
                import_module("headrace.bindings.rng_returns_cuda")
                parity.offer_kernels(card.device)
            try:
                with computing(precision, card.device), within(), card.kernels():
                    replays[name] = _iteration(card, num_envs, minibatch_size)
            except Exception as error:
                card.tell(**facts, way=name, error=f"{type(error).__name__}: {str(error)[:1000]}")
        for name, took in card.in_turns(replays).items():
            card.tell(**facts, way=name, us=took, sps=1e6 * num_envs * LARGE["num_steps"] / took)


def own_network(card: Card) -> None:
    """The same with a policy of a user's, with a LayerNorm and a residual block: next to the built-in one. `ratio` is
    how much longer it takes; plain torch is measured, too."""
    for num_envs, minibatch_size in card.of([ITERATIONS[0], ITERATIONS[-1]], [(8, 64)]):
        replays: dict[str, Callable[[], object]] = {}
        ways: dict[str, Any] = {"built-in": (ActorCritic, nullcontext), "own": (Residual, nullcontext)}
        ways |= card.of({"own, plain torch": (Residual, plain_only)}, {})
        for name, (policy, within) in ways.items():
            with within():
                replays[name] = _iteration(card, num_envs, minibatch_size, policy)
        found = card.in_turns(replays)
        facts = {"num_envs": num_envs, "minibatch_size": minibatch_size}
        card.tell(**facts, us=found, ratio=found["own"] / found["built-in"])


def _iteration(
    card: Card, num_envs: int, minibatch_size: int, policy: Callable[..., ActorCritic] = ActorCritic
) -> Callable[[], object]:
    """The graph of an iteration. Raises RuntimeError where there is none."""
    env = envs.make("CartPole-v1", num_envs, backend=card.backend, device=card.device)
    config = PPOConfig(minibatch_size=minibatch_size, **LARGE)
    own = policy(env.observation_space, env.action_space, hidden=config.hidden, seed=0)
    learner = PPO(own.to(card.device), config, 0)
    collector = InlineCollector(env, learner.policy, config.num_steps, learner.columns(), 0)
    capture = (lambda body: body) if card.dry else None
    graphed = GraphedIteration(collector, learner, capture)
    learner.update(collector.collect(), 0.0)
    if graphed.iterate(0.0) is None:
        if card.dry:
            return lambda: learner.update(collector.collect(), 0.0)
        raise RuntimeError(f"no graph: {graphed.refused}")
    return lambda: graphed.iterate(0.0)


def learners(card: Card) -> None:
    """Sums by NCCL, one by one and in a graph, and PPO by one learner and by one on each GPU. With one GPU sums are
    those of a group of one, and several learners are not measured."""
    gpus = 1 if card.dry else torch.cuda.device_count()
    for number in () if card.dry else dict.fromkeys((1, gpus)):
        errors_of(card.tell, {"learners": number, "work": "sums"}, partial(_sums, card, number))
    for number in dict.fromkeys((1, gpus)):
        for graphs in (True, False):
            own = SEVERAL | card.of({"hidden": (256, 256)}, {"num_envs": 8, "minibatch_size": 64, "hidden": (8, 8)})
            where: dict[str, Any] = {"device": str(card.device), "backend": card.backend}
            where |= {"learners": number, "graphs": graphs}
            trainer = Trainer("ppo", "CartPole-v1", progress="none", **where, **own)
            try:
                for _ in range(card.of(3, 1)):
                    trainer.iterate()
                steps, spent = trainer.steps, trainer.seconds
                trainer.iterate()
                while trainer.seconds - spent < 10 * card.seconds:
                    trainer.iterate()
                rate, way = (trainer.steps - steps) / (trainer.seconds - spent), way_of(trainer)
            finally:
                trainer.close()
            card.tell(learners=number, work="PPO on CartPole", way=way, us=None, sps=rate)


def way_of(trainer: Trainer) -> str:
    """Describe how its iterations ran."""
    if trainer._graph is None:
        return "step by step"
    return f"refused: {trainer._graph.refused}" if trainer._graph.refused else "graph"


def _sums(card: Card, number: int) -> None:
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
    for row in found:
        card.tell(**row)


def sums_of_rank(path: str, rank: int, number: int, answer: Connection | None) -> None:
    """One of the processes; rank 0 sends what was measured."""
    torch.cuda.set_device(rank)
    group, rows = nccl_group(path, rank, number, 60.0), []
    for floats, calls in SUMS.items():
        gradient = torch.zeros(floats, device="cuda")

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


def gymnax(card: Card, home: Path) -> None:
    """gymnax on the GPU, where a Python with it and a CUDA build of JAX is found."""
    python = interpreter_with("gymnax", home)
    if python is None:
        card.tell(left_out=f"gymnax is not installed, here or in {home}")
        return
    flags = ("gymnax", "scan", "--env", "CartPole-v1", "--seconds", card.seconds, "--num-envs", *NUM_ENVS)
    found = run_program(python, "speed/env_steppers.py", *flags, timeout=150, env={"JAX_PLATFORMS": "cuda,cpu"})
    card.tell(**found)


def rejax(card: Card, home: Path) -> None:
    """rejax's PPO on the GPU, at the sizes of `iterations`, where a Python with it and a CUDA build of JAX is found."""
    python = interpreter_with("rejax", home)
    if python is None:
        card.tell(left_out=f"rejax is not installed, here or in {home}")
        return
    for num_envs, minibatch_size in ITERATIONS:
        flags: list[object] = ["rejax", "--config", "large", "--seed", 0, "--threads", os.cpu_count(), "--warm", 1]
        flags += ["--seconds", 5 * card.seconds, "--num-envs", num_envs, "--minibatch-size", minibatch_size]
        flags += ["--every", 8 * num_envs * LARGE["num_steps"]]
        facts = {"num_envs": num_envs, "minibatch_size": minibatch_size}
        call = partial(run_program, python, "speed/ppo_one.py", *flags, timeout=60, env={"JAX_PLATFORMS": "cuda,cpu"})
        errors_of(card.tell, facts, lambda call=call, facts=facts: card.tell(**call(), **facts))  # type: ignore[misc]
