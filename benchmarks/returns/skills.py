"""Skills without a reward: SAC, or PPO, with DIAYN moves a point in a square, and a classifier tells its eight skills
by where episodes end.

`accuracy` is that of a nearest-centroid classifier of final states, fitted to 100 episodes of each skill and asked
about 100 others of each, all with actions drawn from the policy; `worst` is that of the skill that it knows least. The
picture results/skills.png has the paths of ten episodes of each skill, for the first three seeds.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from benchmarks.figures import PAGE, canvas, dress
from headrace.data.rollout import Group
from headrace.kernels.language.ops import clip, f32

SKILLS, EPISODES, DRAWN = 8, 100, 10
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {"total_steps": 40_000, "num_envs": 8, "num_steps": 4, "utd_ratio": 0.25},
    "ppo": {"total_steps": 400_000, "num_envs": 32, "num_steps": 60, "entropy_coef": 0.01},
}
COLUMNS = ("algorithm", "seed", "accuracy", "worst", "cpu_s")


class Plane(hr.KernelEnv):
    """Move a point from the middle of a square; there is no reward, and episodes take 30 steps."""

    observation_space = hr.Box(-1.0, 1.0, (2,))
    action_space = hr.Box(-1.0, 1.0, (2,))
    max_steps = 30

    class State(NamedTuple):
        x: f32
        y: f32

    def reset(s, p, key):
        return Plane.State(0.0, 0.0)

    def step(s, p, action, key):
        x, y = clip(s.x + 0.1 * action[0], -1.0, 1.0), clip(s.y + 0.1 * action[1], -1.0, 1.0)
        return Plane.State(x, y), 0.0, False

    def observe(s, p):
        return s.x, s.y


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    flags.add_argument("--algorithm", choices=tuple(SETTINGS), default="sac")
    options = flags.parse_args()
    neighbours = Neighbours()
    seeds = options.seeds[:1] if options.quick else options.seeds
    trained = [learned(options.algorithm, seed, options.quick) for seed in seeds]
    rows = [row for row, _ in trained]
    print(table(rows, COLUMNS))
    draw([paths for _, paths in trained[:3]], options.results / "skills.png")
    finish("skills", rows, options, neighbours)


def learned(algorithm: str, seed: int, quick: bool) -> tuple[Row, Tensor]:
    """One training; and the paths of episodes, [skills, episodes, steps + 1, 2]."""
    options, start = SETTINGS[algorithm] | ({"total_steps": 2_000} if quick else {}), time.process_time()
    options |= {"seed": seed, "hidden": (64, 64), "skills": SKILLS, "intrinsic": "diayn", "progress": "none"}
    with closing(hr.Trainer(algorithm, Plane, **options)) as trainer:
        while trainer.steps < options["total_steps"]:
            trainer.iterate()
    seconds = round(time.process_time() - start, 1)
    fitted, others = (torch.stack([walked(trainer.policy, skill, s) for skill in range(SKILLS)]) for s in (1, 2))
    right = told(fitted[:, :, -1], others[:, :, -1])
    found = {"accuracy": round(right.mean().item(), 3), "worst": round(right.min().item(), 3)}
    return {"algorithm": algorithm, "seed": seed, **found, "cpu_s": seconds}, others


@torch.no_grad()
def walked(policy: Any, skill: int, seed: int) -> Tensor:
    """The states of episodes of a skill, [episodes, steps + 1, 2]."""
    env = hr.make(Plane, EPISODES)
    rollout = env.rollout(Plane.max_steps, env.columns())
    env.reset(rollout, seed)
    drawn = torch.rand(len(rollout.reward), EPISODES, policy.num_draws, generator=torch.Generator().manual_seed(seed))
    info = torch.full((EPISODES,), skill, dtype=torch.int32)
    for t in range(rollout.num_steps):
        seen = Group({"observation": rollout.observation[t], "agent_info": info})
        rollout.action[t] = policy.act_without_exploration(seen, None, drawn[t]).action
        env.step(rollout, t)
    return rollout.observation.transpose(0, 1).clone()


def told(fitted: Tensor, others: Tensor) -> Tensor:
    """The fraction of other final states that are nearest to the mean of their skill, [skills]."""
    centers = fitted.mean(1)
    nearest = (others.unsqueeze(2) - centers).norm(dim=-1).argmin(-1)
    return (nearest == torch.arange(len(centers)).unsqueeze(1)).float().mean(1)


def draw(paths: list[Tensor], file: Path) -> None:
    """Paths of each skill in a colour, a panel for each training."""
    figure, panels = canvas(PAGE, PAGE / len(paths) + 0.2, len(paths), squeeze=False)
    for seed, (panel, of_skills) in enumerate(zip(panels[0], paths, strict=True)):
        for skill, of_one in enumerate(of_skills):
            for path in of_one[:DRAWN]:
                panel.plot(*path.t().numpy(), color=f"C{skill}", linewidth=0.6, alpha=0.8)
        panel.set(title=f"seed {seed}", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        dress(panel)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


if __name__ == "__main__":
    main()
