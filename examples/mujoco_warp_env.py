"""Physics on a GPU: HalfCheetah-v5's own model in MuJoCo Warp (pip install mujoco-warp "headrace[mujoco]").

All data stay on the device. It also runs on a CPU, slowly; Warp compiles for minutes when first used.
"""

from pathlib import Path

import gymnasium
import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

import headrace as hr
from headrace.data.spaces import Box

MODEL = Path(gymnasium.__file__).parent / "envs/mujoco/assets/half_cheetah.xml"


class Cheetahs:
    """Reward: forward speed in m/s minus 0.1 times the squared action. An episode has 1000 steps of 0.05 s."""

    observation_space, action_space = Box(-np.inf, np.inf, (17,)), Box(-1, 1, (6,))
    autoreset, max_steps = "Disabled", 1000  # reset by calling reset_some()

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.device = num_envs, "cuda" if torch.cuda.is_available() else "cpu"
        wp.set_device(self.device)
        if self.device == "cuda":  # both libraries use the same stream
            wp.set_stream(wp.stream_from_torch(torch.cuda.current_stream()))
        model = mujoco.MjModel.from_xml_path(str(MODEL))
        self.model, self.data = mjw.put_model(model), mjw.make_data(model, nworld=num_envs)
        # torch tensors that share the simulator's memory
        shared = (self.data.qpos, self.data.qvel, self.data.ctrl)
        self.position, self.velocity, self.control = map(torch.from_dlpack, shared)
        self.start, self.age = self.position.clone(), torch.zeros(num_envs, device=self.device)

    def reset(self, seed: int | None) -> torch.Tensor:
        self.random = torch.Generator(self.device).manual_seed(seed or 0)
        return self.reset_some(torch.ones_like(self.age, dtype=torch.bool))

    def reset_some(self, mask: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(self.start.shape, generator=self.random, device=self.device) * 0.2 - 0.1
        self.position.copy_(torch.where(mask.unsqueeze(1), self.start + noise, self.position))
        self.velocity.masked_fill_(mask.unsqueeze(1), 0.0)
        self.age.masked_fill_(mask, 0)
        return torch.cat([self.position[:, 1:], self.velocity], 1)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.position[:, 0].clone()
        self.control.copy_(action)
        for _ in range(5):
            mjw.step(self.model, self.data)
        self.age += 1
        reward = (self.position[:, 0] - before) / 0.05 - 0.1 * action.square().sum(1)
        seen = torch.cat([self.position[:, 1:], self.velocity], 1)
        return seen, reward, torch.zeros_like(reward, dtype=torch.bool), self.age >= self.max_steps


if __name__ == "__main__":
    hr.train("ppo", Cheetahs, num_envs=2048, num_steps=32, minibatch_size=16_384, total_steps=20_000_000, device="auto")
