"""The example of physics on a GPU, small, on the CPU where there is none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns

EXAMPLE = Path(__file__).parents[3] / "examples" / "mujoco_warp_env.py"


@pytest.mark.slow  # Warp compiles for minutes
@pytest.mark.timeout(1200)
def test_physics_of_mujoco_warp():
    pytest.importorskip("mujoco_warp")
    spec = importlib.util.spec_from_file_location("mujoco_warp_env", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.Cheetahs.max_steps = 4
    env = envs.make(example.Cheetahs, 2)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(6, 2, columns, env.device)
    rollout.action[:, 0] = 1.0
    env.reset(rollout, 0)
    for t in range(6):
        env.step(rollout, t)
    assert rollout.valid[:, 0].tolist() == [True] * 4 + [False, True, True]
    assert rollout.truncated[3].all() and not rollout.terminated.any()
    assert torch.isfinite(rollout.observation).all()
    assert (rollout.observation[1, 0] - rollout.observation[1, 1]).abs().max() > 0.5, "one of them moved its legs"
    assert rollout.observation[5, :, 8:].abs().max() == 0, "a new episode begins at rest"

    import mujoco

    model = mujoco.MjModel.from_xml_path(str(example.MODEL))
    data = mujoco.MjData(model)
    data.qpos[1:] = rollout.observation[0, 0, :8].cpu().numpy()
    data.ctrl[:] = 1.0
    mujoco.mj_step(model, data, nstep=5)
    torch.testing.assert_close(
        rollout.observation[1, 0, :8].cpu(), torch.tensor(data.qpos[1:], dtype=torch.float32), rtol=0, atol=1e-2
    )
