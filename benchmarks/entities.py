"""Steps per second of an environment with many entities: Headrace in SIMD lanes and one entity at a time, torch, NumPy.

A flock on a torus in which every bird looks at every other one. An entity-step is a step of one bird. NumPy and torch
do the same arithmetic on arrays [environments, birds, birds], their sums as matrix products; a step of each is compared
with Headrace's before it is timed. All run on one thread, except "threads". Environments and entities go up to 4,096,
as far as --pairs allows: birds * birds * environments, for NumPy and torch a thirty-second part of it, which is memory.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import Neighbours, Row, finish, parser, table, throughput

from headrace import Box, Discrete, KernelEnv
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.kernels.language.ops import array, f32, floor, max_over, sum_over, uniform
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.env import CpuEnvs

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
CONFIGS = ("lanes", "one-lane", "threads", "torch", "numpy")
REACH, PULL, ALIGN, TURN = 0.15, 0.01, 0.1, 0.002  # of a side of 1; fractions a step; speed a step
COLUMNS = ("config", "entities", "num_envs", "sps", "entity_sps", "sps_min", "sps_max")
STYLES = {"lanes": "C0", "one-lane": "C1", "threads": "C2", "torch": "C3", "numpy": "C4"}


def flock(birds: int) -> type[KernelEnv]:
    """The environment with so many birds. Its agent turns them all, to the left or to the right."""

    class Flock(KernelEnv):
        observation_space = Box(-np.inf, np.inf, (2,))
        action_space = Discrete(2)
        num_entities = birds

        class State(NamedTuple):
            x: array(f32, birds)
            y: array(f32, birds)
            right: array(f32, birds)  # velocity
            up: array(f32, birds)
            new_right: array(f32, birds)
            new_up: array(f32, birds)

        def reset(s, p, key):
            return s

        def place(s, p, i, key):
            s.x[i] = uniform(key, 0, 0.0, 1.0)
            s.y[i] = uniform(key, 1, 0.0, 1.0)
            s.right[i] = uniform(key, 2, -0.01, 0.01)
            s.up[i] = uniform(key, 3, -0.01, 0.01)

        def sense(s, p, i):
            count, x, y, right, up = 0.0, 0.0, 0.0, 0.0, 0.0
            for j in range(birds):
                dx, dy = s.x[j] - s.x[i], s.y[j] - s.y[i]
                near = dx * dx + dy * dy < REACH * REACH
                count += 1.0 if near else 0.0
                x += dx if near else 0.0
                y += dy if near else 0.0
                right += s.right[j] if near else 0.0
                up += s.up[j] if near else 0.0
            s.new_right[i] = s.right[i] + PULL * x / count + ALIGN * (right / count - s.right[i])
            s.new_up[i] = s.up[i] + PULL * y / count + ALIGN * (up / count - s.up[i])

        def move(s, p, i, action):
            s.right[i] = s.new_right[i] + TURN * (2 * action - 1)
            s.up[i] = s.new_up[i]
            x, y = s.x[i] + s.right[i], s.y[i] + s.up[i]
            s.x[i] = x - floor(x)
            s.y[i] = y - floor(y)

        phases = (sense, move)
        reset_phases = (place,)

        def step(s, p, action, key):
            return s, sum_over(s.up), False

        def observe(s, p):
            return sum_over(s.right) / birds, max_over(s.up)

    return Flock


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--entities", nargs="+", type=int, default=SIZES)
    flags.add_argument("--num-envs", nargs="+", type=int, default=(1, 16, 256, 4096))
    flags.add_argument("--configs", nargs="+", choices=CONFIGS, default=CONFIGS)
    flags.add_argument("--seconds", type=float, default=0.5, help="of each of the three windows")
    flags.add_argument("--pairs", type=int, default=1 << 29, help="most pairs of birds in a step")
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.pairs = 0.02, 1 << 20
    torch.set_num_threads(1)
    neighbours, rows = Neighbours(), list[Row]()
    for birds in options.entities:
        for num_envs in options.num_envs:
            pairs = birds * birds * num_envs
            rows += [
                measured(config, birds, num_envs, options.seconds)
                for config in options.configs
                if pairs <= (options.pairs >> 5 if config in ("torch", "numpy") else options.pairs)
                and (config != "threads" or num_envs > 1)
            ]
    print(table(rows, COLUMNS))
    print("sps: environment steps a second, median of three windows; entity_sps: times the birds of an environment")
    turning_points(rows)
    if not options.quick:
        print(f"figure: {figure(rows, options.results)}")
    finish("entities", rows, options, neighbours)


def measured(config: str, birds: int, num_envs: int, seconds: float) -> Row:
    """Steps per second of one way of stepping these environments."""
    step = kernel(config, birds, num_envs) if config not in ARRAYS else checked(config, birds, num_envs)
    rate = throughput(step, num_envs, seconds)
    return {"config": config, "entities": birds, "num_envs": num_envs, "entity_sps": rate["sps"] * birds, **rate}


def environments(birds: int, num_envs: int, lanes: int | None = None, threads: int = 1) -> tuple[CpuEnvs, Rollout]:
    """Environments that were reset, and a rollout of one step with actions."""
    ir = read(flock(birds))
    envs = CpuEnvs(ir, num_envs, lanes=lanes, threads=threads)
    columns = Rollout(
        1, num_envs, env_columns(ir.observation_space) | {"action": action_column(ir.action_space)}, "cpu"
    )
    envs.reset(columns, 1)
    columns.action.copy_(torch.arange(num_envs) % 2)
    return envs, columns


def kernel(config: str, birds: int, num_envs: int) -> Callable[[], object]:
    """A step of Headrace's."""
    lanes, threads = {"lanes": (None, 1), "one-lane": (1, 1), "threads": (None, 2)}[config]
    envs, columns = environments(birds, num_envs, lanes, threads)
    return partial(envs.step, columns, 0)


def checked(config: str, birds: int, num_envs: int) -> Callable[[], object]:
    """A step of NumPy's or torch's, which agrees with Headrace's from the same state. Raises RuntimeError otherwise."""
    envs, columns = environments(birds, num_envs)
    state = [envs.state()[name] for name in ("x", "y", "right", "up")]
    envs.step(columns, 0)
    turn = TURN * (2 * columns.action[0].float() - 1).view(-1, 1)
    library = np if config == "numpy" else torch
    fields = [(x.numpy().copy() if library is np else x.clone()) for x in (*state, turn)]
    step = partial(ARRAYS[config], fields)
    step()
    for name, ours in zip(("x", "y", "right", "up"), fields, strict=False):
        apart = np.abs(np.asarray(ours) - envs.state()[name].numpy())
        if np.minimum(apart, 1 - apart).max() > 1e-3:
            raise RuntimeError(f"{config} steps {name} {apart.max()} apart from Headrace's kernel")
    return step


def step_numpy(fields: list[np.ndarray]) -> None:
    """A step of fields x, y, right, up [N, E] by NumPy, in place."""
    x, y, right, up, turn = fields
    dx = x[:, None, :] - x[:, :, None]
    dy = y[:, None, :] - y[:, :, None]
    np.multiply(dx, dx, out=dx)
    np.multiply(dy, dy, out=dy)
    dx += dy
    near = np.less(dx, np.float32(REACH * REACH), out=dy, casting="unsafe")
    seen = near @ np.stack([np.ones_like(x), x, y, right, up], -1)
    count = seen[..., 0]
    wanted_right = right + PULL * (seen[..., 1] / count - x) + ALIGN * (seen[..., 3] / count - right)
    wanted_up = up + PULL * (seen[..., 2] / count - y) + ALIGN * (seen[..., 4] / count - up)
    right[...] = wanted_right + turn
    up[...] = wanted_up
    x += right
    y += up
    x -= np.floor(x)
    y -= np.floor(y)


def step_torch(fields: list[torch.Tensor]) -> None:
    """The same by torch."""
    x, y, right, up, turn = fields
    dx = x[:, None, :] - x[:, :, None]
    dy = y[:, None, :] - y[:, :, None]
    near = (dx.mul_(dx).add_(dy.mul_(dy)) < REACH * REACH).float()
    seen = near @ torch.stack([torch.ones_like(x), x, y, right, up], -1)
    count = seen[..., 0]
    wanted_right = right + PULL * (seen[..., 1] / count - x) + ALIGN * (seen[..., 3] / count - right)
    wanted_up = up + PULL * (seen[..., 2] / count - y) + ALIGN * (seen[..., 4] / count - up)
    right.copy_(wanted_right + turn)
    up.copy_(wanted_up)
    x.add_(right)
    y.add_(up)
    x.sub_(x.floor())
    y.sub_(y.floor())


ARRAYS: dict[str, Callable[..., None]] = {"numpy": step_numpy, "torch": step_torch}


def turning_points(rows: list[Row]) -> None:
    """Print how many times as fast lanes are, and from how many entities on they are the fastest."""
    rates = {(row["config"], row["entities"], row["num_envs"]): row["sps"] for row in rows}
    for num_envs in sorted({row["num_envs"] for row in rows}):
        for other in ("one-lane", "torch", "numpy"):
            sizes = sorted({e for config, e, n in rates if n == num_envs and config == other})
            sizes = [e for e in sizes if ("lanes", e, num_envs) in rates]
            ratios = {e: rates["lanes", e, num_envs] / rates[other, e, num_envs] for e in sizes}
            told = ", ".join(f"{e} entities {ratio:.1f}" for e, ratio in ratios.items())
            if told:
                print(f"{num_envs} environments: lanes as many times as fast as {other}: {told}")


def figure(rows: list[Row], folder: Path) -> Path:
    """Entity-steps per second against entities, a panel for each number of environments."""
    from figures import PAGE, canvas, dress, save

    counts = sorted({row["num_envs"] for row in rows})
    drawn, panels = canvas(PAGE, 2.4, len(counts), sharey=True, squeeze=False)
    for panel, num_envs in zip(panels[0], counts, strict=True):
        for config, colour in STYLES.items():
            own = [row for row in rows if row["config"] == config and row["num_envs"] == num_envs]
            panel.plot(
                *zip(*[(r["entities"], r["entity_sps"]) for r in own], strict=True) if own else ([], []),
                color=colour,
                marker="o",
                markersize=3,
                label=config,
            )
        panel.set(xscale="log", yscale="log", xlabel="entities", title=f"{num_envs} environments")
        dress(panel)
    panels[0][0].set_ylabel("entity-steps a second")
    panels[0][-1].legend()
    return save(drawn, folder, "entities")


if __name__ == "__main__":
    main()
