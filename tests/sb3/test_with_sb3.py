"""Tests with Stable-Baselines3 itself: in this Python, or in the environment `torch` of benchmarks/peers/setup.sh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("PEERS_HOME", ROOT / ".peers"))
PROGRAM = """
import importlib.util, inspect, json, sys
sys.path.append(sys.argv[1])  # behind this Python's own packages
import gymnasium, numpy as np, stable_baselines3
from torch import nn
from headrace import sb3
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

found = {}
for name in ("PPO", "A2C", "SAC", "TD3", "DQN", "DDPG"):
    theirs, ours = (inspect.signature(getattr(m, name).__init__).parameters for m in (stable_baselines3, sb3))
    same = [a.default == b.default for a, b in zip(theirs.values(), ours.values())]
    found[name] = list(theirs) == list(ours) and all(same)

small = {"n_steps": 64, "batch_size": 64, "n_epochs": 2, "seed": 0, "device": "cpu"}
env = sb3.make_vec_env("CartPole-v1", 4, seed=0)
theirs = stable_baselines3.PPO("MlpPolicy", VecMonitor(env), **small).learn(512)
found["their PPO"] = isinstance(env, VecEnv) and theirs.num_timesteps == 512 and len(theirs.ep_info_buffer) > 5

ours = sb3.PPO("MlpPolicy", make_vec_env("CartPole-v1", 4), **small)
check = EvalCallback(gymnasium.make("CartPole-v1"), eval_freq=100, n_eval_episodes=3, log_path="log", verbose=0)
ours.learn(2000, callback=CallbackList([check, CheckpointCallback(100, "saved")]))
found["evaluations"] = len(np.load("log/evaluations.npz")["timesteps"]) >= 3
found["checkpoints"] = sb3.PPO.load(sorted(__import__("pathlib").Path("saved").iterdir())[0]).num_timesteps > 0
found["evaluate_policy"] = evaluate_policy(ours, ours.get_env(), 5)[0] > 8
normalized = sb3.PPO("MlpPolicy", VecNormalize(make_vec_env("Pendulum-v1", 2)), **small).learn(300)
found["VecNormalize"] = normalized.get_env().obs_rms.count > 300

theirs.save("theirs")
read = sb3.PPO.load("theirs")
observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
def missing(theirs, ours, base):
    # their public members that ours has not, where the error says no more than that
    names = [name for name in dir(theirs) if name not in dir(base) and not name.startswith("_")]
    for name in names:
        try:
            getattr(ours, name)
        except AttributeError as error:
            if ": " not in str(error):
                yield name

INNER = {"to_tuple", "actions", "keys", "buf_dones", "buf_infos", "buf_obs", "buf_rews"}  # of a logger, a DummyVecEnv
bare = set()
for name in ("PPO", "A2C", "SAC", "TD3", "DQN"):
    task = "Pendulum-v1" if name in ("SAC", "TD3") else "CartPole-v1"
    how = {"device": "cpu", **({"buffer_size": 100} if name in ("SAC", "TD3", "DQN") else {})}
    pair = [getattr(m, name)("MlpPolicy", task, **how) for m in (stable_baselines3, sb3)]
    bare |= {*missing(*pair, object)} | {*missing(pair[0].policy, pair[1].policy, nn.Module())}
    bare |= {*missing(pair[0].get_env(), pair[1].get_env(), object)}
    for m in pair:
        m.learn(5)
    bare |= {*missing(pair[0].logger, pair[1].logger, object)}
print(bare - INNER, file=sys.stderr)
found["members"] = not bare - INNER

found["file"] = np.array_equal(*(m.predict(observations, deterministic=True)[0] for m in (theirs, read)))
print(json.dumps({name: bool(value) for name, value in found.items()}))
"""


def site_packages() -> str | None:
    """The folder that has Stable-Baselines3, of this version of Python."""
    name = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    for folder in (Path(sys.prefix) / name, HOME / "torch" / name):
        if (folder / "stable_baselines3").is_dir():
            return str(folder)
    return None


@pytest.mark.skipif(site_packages() is None, reason="needs stable-baselines3, see benchmarks/peers/setup.sh")
def test_both_work_with_each_other(tmp_path):
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(site_packages())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(found.values()), (found, done.stderr)
