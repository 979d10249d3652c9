"""One training with environments that only take time, in a process of its own: started by actors.py.

PPO, or APPO where collection is asynchronous, with the same small network, steps per update and minibatches in every
library. The environments compute a fixed count of operations, or sleep.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from benchmarks.common import versions
from benchmarks.speed.counted_env import CountedEnv

WINDOWS = 3


class Updates(NamedTuple):
    """A training that is stepped update by update."""

    update: Callable[[], int]  # takes one, and gives the environment steps that it learned from
    facts: Callable[[], dict[str, Any]]  # what else there is to report
    close: Callable[[], None]


def make_env(options: argparse.Namespace) -> Callable[[], gymnasium.Env]:
    """Function that makes one environment."""
    return partial(CountedEnv, options.count, options.sleep, options.heavy)


def headrace(options: argparse.Namespace) -> Updates:
    """Headrace, with the settings of parallel collection that are given."""
    from headrace.training.trainer import Trainer

    settings: dict[str, Any] = {"scale": False, "epochs": options.epochs, "minibatch_size": 256}
    if options.algorithm != "appo":
        options.algorithm = "ppo"
    notes: list[str] = []
    trainer = Trainer(
        options.algorithm,
        options.task or make_env(options),
        num_envs=options.num_envs,
        num_steps=options.num_steps,
        progress="none",
        total_steps=10**9,
        **settings,
        **json.loads(options.settings),
    )
    lags: list[float] = []

    def update() -> int:
        result = trainer.iterate()
        notes.extend(result.notes)
        lag = trainer.collector.rollout.lag
        if lag is not None:
            lags.append(float(lag.mean()))
        return trainer.collector.rollout.num_steps * trainer.collector.rollout.num_envs

    def facts() -> dict[str, Any]:
        parts = {name: round(share, 3) for name, share in trainer.result().fractions.items()}
        chosen = {name: getattr(trainer.config, name) for name in ("actors", "workers")}
        lag = {"lag": round(statistics.fmean(lags), 3), "lag_max": max(lags)} if lags else {}
        return {**chosen, **lag, "fractions": parts, "forecast": notes[0] if notes else None}

    return Updates(update, facts, trainer.close)


def sb3(options: argparse.Namespace) -> Updates:
    """Stable-Baselines3's PPO on SubprocVecEnv, a process for each environment, or for several where they compute."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    kind = DummyVecEnv if options.processes == 0 else SubprocVecEnv
    env = kind([make_env(options)] * options.num_envs)
    rows = options.num_steps * options.num_envs
    batch = min(256, rows)
    model = PPO("MlpPolicy", env, n_steps=options.num_steps, batch_size=batch, n_epochs=options.epochs, device="cpu")
    model._setup_learn(10**9)

    def update() -> int:
        model.collect_rollouts(env, _no_callback(model), model.rollout_buffer, options.num_steps)
        model.train()
        return rows

    return Updates(update, dict, env.close)


def _no_callback(model: Any) -> Any:
    from stable_baselines3.common.callbacks import ConvertCallback

    callback = ConvertCallback(None)
    callback.init_callback(model)
    return callback


def torchrl(options: argparse.Namespace, asynchronous: bool = False) -> Updates:
    """TorchRL's collectors in `processes` processes, and its clipped PPO loss."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
    from torchrl.envs import GymWrapper, SerialEnv
    from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.set_num_threads(1)
    make, processes = make_env(options), options.processes
    each = options.num_envs // processes

    def make_some() -> Any:
        return SerialEnv(each, lambda: GymWrapper(make()))

    def network(out: int) -> nn.Module:
        return MLP(in_features=4, out_features=out, num_cells=[64, 64], activation_class=nn.Tanh)

    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    kind = MultiAsyncCollector if asynchronous else MultiSyncCollector
    rows = options.num_steps * options.num_envs
    frames = options.num_steps * each if asynchronous else rows
    collector = kind(
        [make_some] * processes,
        actor,
        frames_per_batch=frames,
        total_frames=-1,
        device="cpu",
        update_at_each_batch=True,
    )
    loss_module = ClipPPOLoss(actor, critic)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), 3e-4)
    batches = iter(collector)

    def update() -> int:
        data = [next(batches) for _ in range(processes if asynchronous else 1)]
        with torch.no_grad():
            data = [advantage(part.clone()) for part in data]
        flat = torch.cat([part.reshape(-1) for part in data])
        for _ in range(options.epochs):
            for rows_of in torch.randperm(len(flat)).split(256):
                losses = loss_module(flat[rows_of])
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                total.backward()
                optimizer.step()
                optimizer.zero_grad()
        return len(flat)

    return Updates(update, dict, collector.shutdown)


def rllib(options: argparse.Namespace, asynchronous: bool = False) -> Updates:
    """RLlib's PPO or APPO, with `processes` env runners and the learner in this process."""
    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    ray.init(address="local", num_cpus=options.processes + 1, include_dashboard=False, log_to_driver=False)
    register_env("counted", lambda _: make_env(options)())
    rows = options.num_steps * options.num_envs
    config = (APPOConfig if asynchronous else PPOConfig)().environment("counted")
    config.env_runners(
        num_env_runners=options.processes,
        num_envs_per_env_runner=options.num_envs // options.processes,
        rollout_fragment_length=options.num_steps,
    )
    config.training(train_batch_size_per_learner=rows, minibatch_size=min(256, rows), num_epochs=options.epochs)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=rows)
    algorithm = config.build_algo()
    before = 0

    def update() -> int:
        nonlocal before
        result = algorithm.train()
        steps = int(result["num_env_steps_sampled_lifetime"])
        before, taken = steps, steps - before
        return taken

    return Updates(update, dict, ray.shutdown)


def _counted(count: int, sleep: float, heavy: bool, *_: object, **__: object) -> gymnasium.Env:
    return CountedEnv(count, sleep, heavy)


def sample_factory(options: argparse.Namespace, asynchronous: bool = False) -> None:
    """Sample Factory's APPO. Its runner steps itself: a thread counts, prints the row, and ends everything."""
    import threading

    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    rows = options.num_steps * options.num_envs
    register_env("counted", partial(_counted, options.count, options.sleep, options.heavy))
    each = options.num_envs // options.processes
    flags = {
        **{"algo": "APPO", "env": "counted", "experiment": "timed", "train_dir": tempfile.mkdtemp(), "device": "cpu"},
        **{"num_workers": options.processes, "num_envs_per_worker": each, "worker_num_splits": 2 - each % 2},
        **{"rollout": options.num_steps, "batch_size": min(256, rows), "num_epochs": options.epochs},
        **{"num_batches_per_epoch": max(1, rows // 256), "async_rl": asynchronous, "use_rnn": False},
        **{"normalize_input": False, "restart_behavior": "overwrite", "train_for_env_steps": 10**9},
    }
    words = [f"--{name}={value}" for name, value in flags.items()] + ["--encoder_mlp_layers", "64", "64"]
    _, runner = make_runner(parse_full_cfg(parse_sf_args(argv=words)[0], argv=words))

    def count() -> None:
        def steps() -> int:
            return sum(runner.env_steps.values())

        while steps() < 2 * rows:
            time.sleep(0.05)
        rates, began = [], (time.perf_counter(), _cpu_seconds())
        for _ in range(WINDOWS):
            before, start = steps(), time.perf_counter()
            time.sleep(max(options.seconds, 4.0))  # it counts every few seconds
            rates.append((steps() - before) / (time.perf_counter() - start))
        spent = (_cpu_seconds() - began[1]) / (time.perf_counter() - began[0])
        row = {"sps": statistics.median(rates), "sps_min": min(rates), "sps_max": max(rates)}
        row |= {"cores_busy": round(spent, 2), "megabytes": round(_memory() / 1e6)}
        print("\n" + json.dumps({**row, "versions": versions()}), flush=True)
        for folder in _processes():
            if folder.name != str(os.getpid()):
                os.kill(int(folder.name), signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=count, daemon=True).start()
    runner.init()
    runner.run()


LIBRARIES: dict[str, Callable[[argparse.Namespace], Updates | None]] = {
    "headrace": headrace,
    "sb3": sb3,
    "torchrl": torchrl,
    "torchrl_async": partial(torchrl, asynchronous=True),
    "rllib": rllib,
    "rllib_async": partial(rllib, asynchronous=True),
    "sample_factory": sample_factory,
    "sample_factory_async": partial(sample_factory, asynchronous=True),
}


def measure(training: Updates, seconds: float) -> dict[str, Any]:
    """Steps per second in the median of some windows; the cores that were busy; the memory of all processes."""
    for _ in range(2):
        training.update()
    rates, began = [], (time.perf_counter(), _cpu_seconds())
    for _ in range(WINDOWS):
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            steps += training.update()
        rates.append(steps / (time.perf_counter() - start))
    spent = (_cpu_seconds() - began[1]) / (time.perf_counter() - began[0])
    found = {"sps": statistics.median(rates), "sps_min": min(rates), "sps_max": max(rates)}
    return {**found, "cores_busy": round(spent, 2), "megabytes": round(_memory() / 1e6)}


def _processes() -> list[Path]:
    """Paths of this process and of all of its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    mine, more = {os.getpid()}, True
    while more:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine |= more
    return [Path(f"/proc/{pid}") for pid in mine]


def _cpu_seconds() -> float:
    """Seconds of a core that these processes have had."""
    ticks = 0
    for folder in _processes():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> float:
    """Bytes of memory of these processes, what they share counted once."""
    total = 0.0
    for folder in _processes():
        try:
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=LIBRARIES)
    flags.add_argument("--task", help="an environment by name, in place of one that takes time")
    flags.add_argument("--count", type=int, default=0, help="operations of a step that computes")
    flags.add_argument("--sleep", type=float, default=0.0, help="s of a step that sleeps")
    flags.add_argument("--heavy", action="store_true", help="one step in a hundred sleeps a hundred times as long")
    flags.add_argument("--num-envs", type=int, default=16)
    flags.add_argument("--num-steps", type=int, default=64)
    flags.add_argument("--epochs", type=int, default=4)
    flags.add_argument("--algorithm", default="ppo", choices=("ppo", "appo"))
    flags.add_argument("--processes", type=int, default=0, help="of peers")
    flags.add_argument("--settings", default="{}", help="of Headrace's parallel collection, as JSON")
    flags.add_argument("--seconds", type=float, default=2.0)
    options = flags.parse_args()
    made = time.perf_counter()
    training = LIBRARIES[options.library](options)
    assert training is not None
    row: dict[str, Any] = {"start": round(time.perf_counter() - made, 2)}
    row |= measure(training, options.seconds) | training.facts()
    training.close()
    row["peak_megabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    print(json.dumps({**row, "versions": versions()}))


if __name__ == "__main__":
    main()
