"""Parts of gpu.py: whole trainings, most of which never ran on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.common import ROOT, environment
from benchmarks.speed.gpu_card import Card, errors_of
from benchmarks.speed.gpu_measures import way_of
from headrace.training.trainer import Trainer

HIDDEN: dict[str, Any] = {"hidden": (256, 256), "activation": "relu"}
REPLAY: dict[str, Any] = {"num_steps": 1, "gradient_steps": 8, **HIDDEN}
FAST: dict[str, Any] = {"config": "fasttd3", "v_min": -1600.0, "v_max": 0.0, "num_steps": 1, "gradient_steps": 8}
# name -> algorithm, environment, number of environments and of rows of a gradient step, settings
OFF_POLICY: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "SAC, batch 256": ("sac", "Pendulum-v1", 64, 256, REPLAY | {"gradient_steps": 64}),
    "SAC": ("sac", "Pendulum-v1", 4096, 8192, REPLAY),
    "TD3": ("td3", "Pendulum-v1", 4096, 8192, REPLAY),
    "TQC": ("tqc", "Pendulum-v1", 4096, 8192, REPLAY),
    "CrossQ": ("crossq", "Pendulum-v1", 4096, 8192, REPLAY),
    "DQN": ("dqn", "CartPole-v1", 4096, 8192, REPLAY),
    "FastTD3's preset": ("td3", "Pendulum-v1", 4096, 32_768, FAST),
}
SIMULATORS = {"mjlab": "mjlab/Mjlab-Cartpole-Balance", "mujoco_playground": "playground/CartpoleBalance"}
SIMULATORS |= {"brax": "brax/inverted_pendulum", "mani_skill": "maniskill/PushCube-v1"}
SOLVED = 475.0  # CartPole-v1's return
SIZES = {256: 2048, 4096: 32_768, 16_384: 131_072}  # environments -> minibatch
MOST_STEPS = 300_000_000


def off_policy(card: Card) -> None:
    """Gradient steps and steps of environments a second of trainings from a replay buffer on the GPU."""
    for name, case in card.of([*OFF_POLICY.items()], [*OFF_POLICY.items()][:1]):
        errors_of(card.tell, {"training": name}, partial(_off_policy, card, name, *case))


def _off_policy(card: Card, name: str, algorithm: str, env: str, envs: int, batch: int, own: dict[str, Any]) -> None:
    envs, batch = card.of(envs, 8), card.of(batch, 16)
    steps = card.of(own["gradient_steps"], 1)
    settings = own | {"gradient_steps": steps, "num_envs": envs, "batch_size": batch, "learning_starts": 2 * envs}
    settings |= {"buffer_size": card.of(max(1_000_000, 16 * envs), 1000)}
    trainer = _trainer(card, algorithm, env, **settings)
    try:
        for _ in range(card.of(16, 3)):
            trainer.iterate()
        seconds = card.timed(trainer.iterate)
        facts = {"training": name, "num_envs": envs, "batch_size": batch, "way": way_of(trainer)}
        card.tell(**facts, gradient_steps_per_second=steps / seconds, sps=envs / seconds)
    finally:
        trainer.close()


def _trainer(card: Card, algorithm: str, env: str, **settings: Any) -> Trainer:
    where = {"device": str(card.device), "progress": "none"} | ({"backend": card.backend} if "/" not in env else {})
    return Trainer(algorithm, env, **where | settings)


def _tell_rate(card: Card, trainer: Trainer, warm_up: int, seconds: float, facts: dict[str, Any]) -> None:
    """Tell a row with the steps per second of so many seconds, after `warm_up` iterations. Closes the trainer."""
    try:
        for _ in range(warm_up):
            trainer.iterate()
        steps = trainer.steps
        began = time.perf_counter()
        trainer.iterate()
        while time.perf_counter() - began < seconds:
            trainer.iterate()
        rate = (trainer.steps - steps) / (time.perf_counter() - began)
        card.tell(**facts, way=way_of(trainer), sps=rate)
    finally:
        trainer.close()


def device_env(card: Card) -> None:
    """PPO with environments on the CPU: compiled ones and Gymnasium's, learned from on the GPU and on the CPU."""
    for backend in ("cpu", "inline"):
        for device in dict.fromkeys((str(card.device), "cpu")):
            facts = {"env": "CartPole-v1", "backend": backend, "device": device}
            errors_of(card.tell, facts, partial(_device_env, card, facts))


def _device_env(card: Card, facts: dict[str, Any]) -> None:
    where = {"backend": facts["backend"], "device": facts["device"]}
    sizes = card.of({"num_envs": 64, "num_steps": 128, "minibatch_size": 2048}, {"num_envs": 4, "num_steps": 8})
    trainer = _trainer(card, "ppo", facts["env"], **where, **sizes)
    _tell_rate(card, trainer, card.of(3, 1), 5 * card.seconds, facts)


def crossover(card: Card) -> None:
    """cpu_or_gpu.py --keep: from which size of a network on the GPU is faster."""
    own = card.of(["--seconds", "0.2", "--keep"], ["--quick"])
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.speed.cpu_or_gpu", "--results", folder, *own]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    card.tell(crossover=found["crossover"], gpu=found["gpu"])
    for row in found["rows"]:
        card.tell(**row)


def simulator(card: Card) -> None:
    """PPO with the first of the simulators of robots that is installed."""
    name = next((name for name in SIMULATORS if find_spec(name)), None)
    if name is None:
        card.tell(left_out=f"none of {', '.join(SIMULATORS)} is installed")
        return
    envs = card.of(2048, 8)
    trainer = _trainer(card, "ppo", SIMULATORS[name], num_envs=envs, num_steps=card.of(24, 4), epochs=1)
    facts = {"simulator": name, "env": SIMULATORS[name], "num_envs": envs}
    _tell_rate(card, trainer, card.of(5, 1), 10 * card.seconds, facts)


def solved(card: Card) -> None:
    """PPO on CartPole until the mean of the last 100 episodes is 475: seconds without compiling, steps."""
    for envs, minibatch in card.of(SIZES, {8: 64}).items():
        facts = {"env": "CartPole-v1", "num_envs": envs}
        errors_of(card.tell, facts, partial(_solved, card, facts, minibatch))


def _solved(card: Card, facts: dict[str, Any], minibatch: int) -> None:
    own = {"num_envs": facts["num_envs"], "num_steps": 32, "minibatch_size": minibatch, "hidden": (64, 64), "seed": 0}
    trainer, most = _trainer(card, "ppo", facts["env"], **own), card.of(MOST_STEPS, 500)
    try:
        result = trainer.iterate()
        while trainer.steps < most and not (result.window_full and (result.mean_return or 0) >= SOLVED):
            result = trainer.iterate()
        reached = result.window_full and (result.mean_return or 0) >= SOLVED
        card.tell(
            **facts, reached=reached, steps=trainer.steps, seconds=trainer.seconds, mean_return=result.mean_return
        )
    finally:
        trainer.close()


def evaluation(card: Card) -> None:
    """A run whose evaluations are on a device of their own."""
    here = str(card.device)
    others = ["cpu", *(["cuda:1"] if not card.dry and torch.cuda.device_count() > 1 else [])]
    for own, other in dict.fromkeys([*((here, other) for other in others), ("cpu", here)]):
        facts = {"device": own, "eval_device": other}
        flags = [
            "--eval-device",
            other,
            "--eval-freq",
            card.of("100_000", "200"),
            "--eval-episodes",
            card.of("20", "2"),
        ]
        errors_of(card.tell, facts, partial(_run, card, facts, "ppo", own, flags))


def gradient_actors(card: Card) -> None:
    """Runs whose actors act on the GPU: they send gradients, or what they collected."""
    here = str(card.device)
    for algorithm, exchange in (("a2c", "gradients"), ("ppo", "experience")):
        facts = {"algorithm": algorithm, "exchange": exchange, "collect_device": here}
        flags = ["--actors", "2", "--exchange", exchange, "--collect-device", here]
        errors_of(card.tell, facts, partial(_run, card, facts, algorithm, here, flags))


def _run(card: Card, facts: dict[str, Any], algorithm: str, device: str, flags: list[str]) -> None:
    """A run of the command line: its seconds, its last row, its evaluations."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headrace", "train", algorithm, "CartPole-v1", "--device", device]
        command += ["--total-steps", card.of("400_000", "600"), "--num-envs", card.of("64", "4")]
        began = time.perf_counter()
        done = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True, env=environment())
        seconds = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
        rows = {name: _lines(Path(folder), name) for name in ("metrics", "evaluations")}
        card.tell(**facts, seconds=seconds, last=rows["metrics"][-1:], evaluations=rows["evaluations"])


def _lines(folder: Path, name: str) -> list[Any]:
    found = next(folder.rglob(f"{name}.jsonl"), None)
    return [] if found is None else [json.loads(line) for line in found.read_text().splitlines()]
