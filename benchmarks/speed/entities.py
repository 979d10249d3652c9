"""Steps per second of an environment with many entities: Headrace in SIMD lanes and one entity at a time, torch, NumPy.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.entities    # about eight minutes
    python -m benchmarks.speed.entities --table              # the last such run's table, into docs/entities.md

A flock on a torus in which every bird looks at every other one. An entity-step is a step of one bird. Headrace's lanes
are across the entities of an environment or across environments, as CpuEnvs has them, or one; "threads" has two
threads, and the lanes that CpuEnvs chooses. "within" has lanes across entities, and finds the birds in reach by a loop
over within(), for which CpuEnvs makes a grid. NumPy and torch do the same arithmetic on arrays [environments, birds,
birds], their sums as matrix products, NumPy's in arrays that are made once. A step of each, and of "within", is
compared with Headrace's before it is timed. All but "threads" run on one thread. The birds keep apart, so that they
stay spread over the torus: a grid gains nothing where all are near all. Environments and entities go up to 4,096, as
far as --pairs allows: birds * birds * environments, for NumPy and torch a thirty-second part of it, which is memory.
"""

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.common import ROOT, Neighbours, Row, finish, parser, read_rows, table, throughput
from benchmarks.tables import replace_table
from headrace import Box, Discrete, KernelEnv
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.kernels.language.ops import array, f32, floor, max_over, sum_over, uniform, within
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.codegen_cpu import ENVS_AT_ONCE
from headrace.kernels.targets.cpu.codegen_entities_cpu import faster_across
from headrace.kernels.targets.cpu.env import CpuEnvs

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
KERNELS: dict[str, Row] = {  # options of CpuEnvs
    "across-entities": {"across": "entities", "threads": 1},
    "within": {"across": "entities", "threads": 1},
    "across-environments": {"across": "environments", "threads": 1},
    "one-lane": {"lanes": 1, "across": "entities", "threads": 1},
    "threads": {"threads": 2},
}
CONFIGS = (*KERNELS, "torch", "numpy")
FLOORS = {"one-lane": 4.0, "numpy": 20.0}  # so many times as fast are BESIDE, of the birds below
BESIDE = ("across-entities", "within")
FLOOR_BIRDS = 1024  # in one environment
MOST_ACROSS = 256  # birds up to which CpuEnvs has lanes across environments (MOST_STACK in codegen_envs_cpu)
REACH, PUSH, ALIGN, TURN = 0.15, 0.01, 0.1, 0.002  # of a side of 1; fractions a step; speed a step
NAMES = ("x", "y", "right", "up")
COLUMNS = ("config", "entities", "num_envs", "sps", "entity_sps", "sps_min", "sps_max")
STYLES = {config: f"C{k}" for k, config in enumerate(CONFIGS)}
PAGE = ROOT / "docs" / "entities.md"


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
            s.new_right[i] = s.right[i] - PUSH * x / count + ALIGN * (right / count - s.right[i])
            s.new_up[i] = s.up[i] - PUSH * y / count + ALIGN * (up / count - s.up[i])

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


def flock_within(birds: int) -> type[KernelEnv]:
    """The same with a loop over the birds within reach."""
    plain = flock(birds)

    class FlockWithin(plain):  # type: ignore[misc, valid-type]
        def sense(s, p, i):
            count, x, y, right, up = 1.0, 0.0, 0.0, s.right[i], s.up[i]
            for j in within(s.x, s.y, i, REACH):
                count += 1.0
                x += s.x[j] - s.x[i]
                y += s.y[j] - s.y[i]
                right += s.right[j]
                up += s.up[j]
            s.new_right[i] = s.right[i] - PUSH * x / count + ALIGN * (right / count - s.right[i])
            s.new_up[i] = s.up[i] - PUSH * y / count + ALIGN * (up / count - s.up[i])

        phases = (sense, plain.phases[1])

    return FlockWithin


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--entities", nargs="+", type=int, default=SIZES)
    flags.add_argument("--num-envs", nargs="+", type=int, default=(1, 16, 256, 4096))
    flags.add_argument("--configs", nargs="+", choices=CONFIGS, default=CONFIGS)
    flags.add_argument("--seconds", type=float, default=0.4, help="of each of the three windows")
    flags.add_argument("--pairs", type=int, default=1 << 28, help="most pairs of birds in a step")
    flags.add_argument("--table", action="store_true", help="write the last full run into docs/entities.md, no more")
    options = flags.parse_args()
    if options.table:
        replace_table("speed/entities", markdown(last_run(options.results)), PAGE)
        return
    if options.quick:
        options.seconds, options.pairs = 0.02, 1 << 20
    elif os.environ.get("OMP_NUM_THREADS") != "1":  # read when NumPy is loaded, whose products would have two threads
        raise SystemExit("set the environment variable OMP_NUM_THREADS=1, so that NumPy computes on one thread")
    torch.set_num_threads(1)
    neighbours, rows = Neighbours(), list[Row]()
    for birds in options.entities:
        for num_envs in options.num_envs:
            rows += [
                measured(config, birds, num_envs, options.seconds)
                for config in options.configs
                if possible(config, birds, num_envs, options.pairs)
            ]
    print(table(rows, COLUMNS))
    print("sps: environment steps a second, median of three windows; entity_sps: times the birds of an environment")
    print("\n".join(comparisons(rows)))
    if not options.quick:
        print(f"figure: {figure(rows, options.results)}")
    finish("entities", rows, options, neighbours)


def possible(config: str, birds: int, num_envs: int, pairs: int) -> bool:
    """Tell whether a config is measured: lanes across environments need 16 of them, of few birds, and arrays need
    memory."""
    least = {"across-environments": ENVS_AT_ONCE, "threads": 2}.get(config, 1)
    if config == "across-environments" and birds > MOST_ACROSS:
        return False
    return num_envs >= least and birds * birds * num_envs <= (pairs >> 5 if config in ARRAYS else pairs)


def measured(config: str, birds: int, num_envs: int, seconds: float) -> Row:
    """Steps per second of one way of stepping these environments."""
    step = (checked if config in (*ARRAYS, "within") else kernel)(config, birds, num_envs)
    rate = throughput(step, num_envs, seconds)
    return {"config": config, "entities": birds, "num_envs": num_envs, "entity_sps": rate["sps"] * birds, **rate}


def environments(birds: int, num_envs: int, config: str) -> tuple[CpuEnvs, Rollout]:
    """Environments that were reset, and a rollout of one step with actions."""
    ir = read((flock_within if config == "within" else flock)(birds))
    envs = CpuEnvs(ir, num_envs, **KERNELS[config])
    columns = Rollout(
        1, num_envs, env_columns(ir.observation_space) | {"action": action_column(ir.action_space)}, "cpu"
    )
    envs.reset(columns, 1)
    columns.action.copy_(torch.arange(num_envs) % 2)
    return envs, columns


def kernel(config: str, birds: int, num_envs: int) -> Callable[[], object]:
    """A step of Headrace's."""
    envs, columns = environments(birds, num_envs, config)
    return partial(envs.step, columns, 0)


def checked(config: str, birds: int, num_envs: int) -> Callable[[], object]:
    """A step of NumPy's, torch's or "within", which agrees with Headrace's from the same state. Raises RuntimeError
    otherwise."""
    envs, columns = environments(birds, num_envs, "across-entities")
    state = [envs.state()[name] for name in NAMES]
    envs.step(columns, 0)
    turn = TURN * (2 * columns.action[0].float() - 1).view(-1, 1)
    if config == "within":
        others, its_columns = environments(birds, num_envs, config)
        step = partial(others.step, its_columns, 0)
    elif config == "numpy":
        fields = [x.numpy().copy() for x in (*state, turn)]
        step = partial(step_numpy, fields, scratch_numpy(birds, num_envs))
    else:
        fields = [x.clone() for x in (*state, turn)]
        step = partial(step_torch, fields)
    step()
    found = [others.state()[name] for name in NAMES] if config == "within" else fields
    for name, theirs in zip(NAMES, found, strict=False):
        apart = np.abs(np.asarray(theirs) - envs.state()[name].numpy())
        if np.minimum(apart, 1 - apart).max() > 1e-3:
            raise RuntimeError(f"{config} steps {name} {apart.max()} apart from Headrace's kernel")
    return step


def scratch_numpy(birds: int, num_envs: int) -> list[np.ndarray]:
    """The arrays that a step by NumPy computes in: made in each step, their pages would have to be found again."""
    sizes = [(birds, birds)] * 2 + [(birds, 5)] * 2 + [(birds,)] * 2
    return [np.ones((num_envs, *size), np.float32) for size in sizes]


def step_numpy(fields: list[np.ndarray], scratch: list[np.ndarray]) -> None:
    """A step of fields x, y, right, up [N, E] by NumPy, in place. scratch: of scratch_numpy."""
    x, y, right, up, turn = fields
    dx, near, ones_and_fields, seen, part, way = scratch
    np.subtract(x[:, None, :], x[:, :, None], out=dx)
    np.subtract(y[:, None, :], y[:, :, None], out=near)
    np.multiply(dx, dx, out=dx)
    np.multiply(near, near, out=near)
    np.add(dx, near, out=dx)
    np.less(dx, np.float32(REACH * REACH), out=near, casting="unsafe")
    for k, field in enumerate((x, y, right, up), 1):
        ones_and_fields[..., k] = field
    np.matmul(near, ones_and_fields, out=seen)
    seen[..., 1:] /= seen[..., :1]
    for place, speed, k in ((x, right, 1), (y, up, 2)):
        np.subtract(seen[..., k], place, out=way)
        np.multiply(way, np.float32(-PUSH), out=way)
        np.subtract(seen[..., k + 2], speed, out=part)
        np.multiply(part, np.float32(ALIGN), out=part)
        speed += way
        speed += part
    right += turn
    for place, speed in ((x, right), (y, up)):
        place += speed
        place -= np.floor(place, out=part)


def step_torch(fields: list[torch.Tensor]) -> None:
    """The same by torch."""
    x, y, right, up, turn = fields
    dx = x[:, None, :] - x[:, :, None]
    dy = y[:, None, :] - y[:, :, None]
    near = (dx.mul_(dx).add_(dy.mul_(dy)) < REACH * REACH).float()
    seen = near @ torch.stack([torch.ones_like(x), x, y, right, up], -1)
    count = seen[..., 0]
    wanted_right = right - PUSH * (seen[..., 1] / count - x) + ALIGN * (seen[..., 3] / count - right)
    wanted_up = up - PUSH * (seen[..., 2] / count - y) + ALIGN * (seen[..., 4] / count - up)
    right.copy_(wanted_right + turn)
    up.copy_(wanted_up)
    x.add_(right)
    y.add_(up)
    x.sub_(x.floor())
    y.sub_(y.floor())


ARRAYS = ("numpy", "torch")


def comparisons(rows: list[Row]) -> list[str]:
    """Compare the speed of the lanes with that of others, by number of entities. Also tells whether CpuEnvs chooses the
    faster ones, and gives the two floors."""
    rates, found = rates_of(rows), []
    pairs = [("across-entities", other) for other in ("across-environments", "one-lane", "torch", "numpy")]
    pairs += [("within", other) for other in ("across-entities", "one-lane", "numpy")]
    for num_envs, (own, other) in product(sorted({row["num_envs"] for row in rows}), pairs):
        ratios = {
            e: rates[own, e, num_envs] / rate
            for (config, e, n), rate in rates.items()
            if n == num_envs and config == other and (own, e, num_envs) in rates
        }
        listed = ", ".join(f"{e} entities {ratio:.2g}" for e, ratio in ratios.items())
        if listed:
            found.append(f"{num_envs} environments: {own} is as many times as fast as {other}: {listed}")
    for (config, birds, num_envs), rate in rates.items():
        ways = {"across-entities", "across-environments"}
        others = ways - {config} if config in ways else set()
        chosen = f"across-{faster_across(read(flock(birds)), num_envs)}"
        if chosen in others and rate > 1.1 * rates.get((chosen, birds, num_envs), rate):
            found.append(f"{birds} entities, {num_envs} environments: {chosen} is chosen, and {config} was faster")
    for own, (other, least) in product(BESIDE, FLOORS.items()):
        pair = [rates.get((config, FLOOR_BIRDS, 1)) for config in (own, other)]
        if None not in pair:
            ratio = pair[0] / pair[1]  # type: ignore[operator]
            verdict = f"{least:.0f} {'reached' if ratio >= least else 'MISSED'}"
            found.append(f"{FLOOR_BIRDS} entities in one environment: {own} is {ratio:.1f} times {other}, {verdict}")
    return found


def rates_of(rows: list[Row]) -> dict[tuple[str, int, int], float]:
    """Environment steps a second by config, entities and environments."""
    return {(row["config"], row["entities"], row["num_envs"]): row["sps"] for row in rows}


def last_run(folder: Path) -> Row:
    """The last result that is not quick. Raises SystemExit where there is none."""
    path = folder / "entities.jsonl"
    whole = [line for line in read_rows(path) if not line["quick"]]
    if not whole:
        raise SystemExit(f"{path} has no full run: run benchmarks/speed/entities.py without --quick first")
    return whole[-1]


def markdown(run: Row) -> str:
    """A run as a table for the page, in millions of entity-steps a second."""
    rows, machine = run["rows"], run["machine"]
    rates = rates_of(rows)
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, of which other programs kept {run['others_cpu']} busy; "
        f"torch {machine['versions']['torch']}, NumPy {machine['versions']['numpy']}; {run['when'][:10]}. "
        "Millions of entity-steps per second:",
        "",
        f"| environments | entities | {' | '.join(CONFIGS)} |",
        "|--:" * (2 + len(CONFIGS)) + "|",
    ]
    for num_envs, birds in sorted({(row["num_envs"], row["entities"]) for row in rows}):
        own = [rates.get((config, birds, num_envs)) for config in CONFIGS]
        cells = ["" if rate is None else f"{rate * birds / 1e6:,.3g}" for rate in own]
        lines.append(f"| {num_envs:,} | {birds:,} | {' | '.join(cells)} |")
    floors = [line for line in comparisons(rows) if line.startswith(f"{FLOOR_BIRDS} entities in one")]
    return "\n".join([*lines, "", *(f"- {line}" for line in floors)])


def figure(rows: list[Row], folder: Path) -> Path:
    """Entity-steps per second against entities, a panel for each number of environments."""
    from benchmarks.figures import PAGE as WIDTH
    from benchmarks.figures import canvas, dress, save

    counts = sorted({row["num_envs"] for row in rows})
    drawn, panels = canvas(WIDTH, 2.4, len(counts), sharey=True, squeeze=False)
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
        panel.set(
            xscale="log", yscale="log", xlabel="entities", title=f"{num_envs:,} environment{'s' * (num_envs > 1)}"
        )
        dress(panel)
    panels[0][0].set_ylabel("entity-steps a second")
    drawn.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STYLES), frameon=False
    )
    return save(drawn, folder, "entities")


if __name__ == "__main__":
    main()
