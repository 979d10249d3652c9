"""PixelPendulum and PixelCatch: the environments that they draw, and their pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from helpers.kernel_envs import rollout

from headrace import envs
from headrace.envs.builtin.catch import Catch
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.builtin.pixel_catch import PixelCatch
from headrace.envs.builtin.pixel_pendulum import PixelPendulum
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.training.trainer import Trainer


def shown(cls, **fields):
    """The newest frames [N, H, W] of environments in these states."""
    source = read(cls)
    count = len(next(iter(fields.values())))
    worlds, columns = CpuEnvs(source, count, threads=1), rollout(source, 1, count)
    worlds.reset(columns, 0)
    worlds.set_state({name: torch.tensor(values) for name, values in fields.items()})
    worlds._pixels.draw(0)
    return columns.observation[1, :, -1].numpy().astype(int)


@pytest.mark.parametrize(("pixels", "numbers"), [(PixelPendulum, Pendulum), (PixelCatch, Catch)])
def test_the_world_behind_is_the_same(pixels, numbers):
    ours, theirs = CpuEnvs(read(pixels), 20, threads=1), CpuEnvs(read(numbers), 20, threads=1)
    mine, wanted = rollout(ours.ir, 210, 20), rollout(theirs.ir, 210, 20)
    ours.reset(mine, 3)
    theirs.reset(wanted, 3)
    for t in range(210):
        ours.step(mine, t)
        theirs.step(wanted, t)
    for name in ("reward", "valid", "terminated", "truncated", "episode_return", "episode_length"):
        assert torch.equal(getattr(mine, name), getattr(wanted, name)), name
    assert not wanted.valid.all()


def test_the_rod_points_where_the_angle_says():
    angles = np.linspace(-np.pi, np.pi, 33, dtype=np.float32)
    frames = shown(PixelPendulum, angle=angles.tolist(), spin=[0.0] * 33)
    rows, columns = np.mgrid[0:42, 0:42]
    for angle, frame in zip(angles, frames, strict=True):
        bright = frame * (frame > 120)  # without the hub
        right = (bright * (columns - 20.5)).sum() / bright.sum()
        up = (bright * (20.5 - rows)).sum() / bright.sum()
        assert np.hypot(right, up) == pytest.approx(10.0, abs=0.7)
        assert (right, up) == pytest.approx((-10.0 * np.sin(angle), 10.0 * np.cos(angle)), abs=0.6)
    assert set(frames[:, 20, 20]) == {110}  # the hub's grey
    between = np.mean((frames > 0) & (frames < 255) & (frames != 110))
    assert 0.01 < between < 0.06  # edges are smooth


def test_two_frames_tell_the_spin():
    frames = shown(PixelPendulum, angle=[0.5, 0.5, 0.5 + 0.05], spin=[0.0, 5.0, 0.0])
    assert np.array_equal(frames[0], frames[1])  # one does not
    assert np.abs(frames[2] - frames[0]).sum() > 1000  # a twentieth of a radian is seen


def test_catch_shows_ball_and_paddle():
    (frame,) = shown(PixelCatch, row=[3], column=[1], paddle=[4])
    assert frame.shape == (20, 10)
    cells = frame[::2, ::2]
    assert np.array_equal(np.kron(cells, np.ones((2, 2))), frame)
    assert cells[3, 1] == 255 and cells[9, 4] == 160 and (cells > 0).sum() == 2
    (landed,) = shown(PixelCatch, row=[9], column=[4], paddle=[4])
    assert landed[18, 8] == 255 and (landed > 0).sum() == 4


@pytest.mark.parametrize("cls", [PixelPendulum, PixelCatch])
def test_passes_gymnasiums_checker(cls):
    check_env(single(cls), skip_render_check=True)


@pytest.mark.parametrize(
    ("algorithm", "name", "options"),
    [
        ("ppo", "PixelCatch", {"num_envs": 8, "num_steps": 8, "minibatch_size": 32, "epochs": 1}),
        ("ppo", "PixelPendulum", {"num_envs": 2, "num_steps": 4, "minibatch_size": 8, "epochs": 1, "stagger": False}),
        ("dqn", "PixelCatch", {"num_envs": 4, "learning_starts": 16, "batch_size": 8, "buffer_size": 64}),
    ],
)
def test_algorithms_train_on_pictures(algorithm, name, options):
    trainer = Trainer(algorithm, name, seed=1, total_steps=1000, **options)
    before = [weight.clone() for weight in trainer.policy.parameters()]
    for _ in range(8):
        metrics = trainer.iterate().metrics
    assert all(np.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    assert trainer.collector.rollout.observation.dtype == torch.uint8
    trainer.close()


def test_registered_with_their_spaces():
    pendulum = envs.make("PixelPendulum", 2)
    assert pendulum.observation_space.shape == (2, 42, 42)
    assert pendulum.observation_space.dtype == np.uint8 and pendulum.max_steps == 200
    assert envs.make("PixelCatch", 2, backend="torch").observation_space.shape == (1, 20, 10)
