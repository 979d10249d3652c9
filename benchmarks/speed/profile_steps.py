"""Time of 100 training steps by part, on each backend: stepping environments, acting, learning, the rest.

PPO on CartPole-v1, 4 iterations of 25 steps with 4 epochs, as the trainer's own timer divides them; then 100 steps of
the environments alone under Python's profiler, to find the functions that take the time. Where a processor does not let
programs read its clock, the kernel's collecting cannot be divided, and counts as other.
"""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path
from typing import Any

import headrace
from benchmarks.common import Neighbours, Row, finish, parser, table
from benchmarks.figures import COLUMN, canvas, save
from benchmarks.speed.async_vector import AsyncEnvs
from headrace import Trainer

STEPS, ITERATIONS = 25, 4
PARTS = {"env": "#0072B2", "inference": "#E69F00", "learning": "#009E73", "other": "#999999"}  # of Okabe & Ito
BACKENDS = {"subprocess": "subprocess (Gymnasium)", "inline": "inline (Gymnasium)", "torch": "torch", "cpu": "kernel"}
COLUMNS = ("backend", "num_envs", *(f"{part}_ms" for part in PARTS), "total_ms", "sps", "others_cpu")
HOT = 4  # functions to name


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--num-envs", type=int, default=64)
    flags.add_argument("--repeats", type=int, default=5, help="of the 100 steps; the median by total time is shown")
    options = flags.parse_args()
    if options.quick:
        options.num_envs, options.repeats = 4, 1
    neighbours, rows = Neighbours(), list[Row]()
    for backend in BACKENDS:
        rows.append(measure(backend, options.num_envs, options.repeats))
    print(table(rows, COLUMNS))
    for row in rows:
        print(f"\n100 steps of the environments alone, {BACKENDS[row['backend']]}: own time by Python's profiler")
        print(table(row["hot"], ("function", "calls", "ms")))
    print(f"figure: {draw(rows, options.results)}")
    finish("profile_steps", rows, options, neighbours, env="CartPole-v1")


def measure(backend: str, num_envs: int, repeats: int) -> Row:
    """The median of some profiles of 100 steps."""
    neighbours = Neighbours()
    source: Any = AsyncEnvs("CartPole-v1", num_envs) if backend == "subprocess" else "CartPole-v1"
    choice = {} if backend == "subprocess" else {"num_envs": num_envs, "backend": backend}
    trainer = Trainer("ppo", source, **choice, **settings(num_envs))
    trainer.iterate()
    profiles = sorted((profile(trainer) for _ in range(repeats)), key=lambda times: times["total_ms"])
    hot = hot_functions(trainer)
    trainer.env.close()
    times = profiles[len(profiles) // 2]
    about = {"library": "headrace", "config": backend, "backend": backend, "num_envs": num_envs}
    spread = {"total_ms_min": profiles[0]["total_ms"], "total_ms_max": profiles[-1]["total_ms"]}
    return {**about, **times, **spread, "hot": hot, "others_cpu": neighbours.busy()}


def settings(num_envs: int) -> dict[str, Any]:
    """The same for all backends."""
    minibatch = num_envs * STEPS // ITERATIONS
    return {"num_steps": STEPS, "minibatch_size": minibatch, "epochs": 4, "hidden": (64, 64), "activation": "tanh"}


def profile(trainer: Trainer) -> Row:
    """Milliseconds of each part in 100 steps."""
    before, seconds, steps = dict(trainer.timer.seconds), trainer.seconds, trainer.steps
    for _ in range(ITERATIONS):
        trainer.iterate()
    total = trainer.seconds - seconds
    spent = trainer.timer.seconds
    parts = {part: spent.get(part, 0.0) - before.get(part, 0.0) for part in ("env", "inference", "learning")}
    parts["other"] = total - sum(parts.values())
    return {f"{part}_ms": 1e3 * parts[part] for part in PARTS} | {
        "total_ms": 1e3 * total,
        "sps": (trainer.steps - steps) / total,
    }


def hot_functions(trainer: Trainer) -> list[Row]:
    """The functions in which 100 steps of the environments spend most time of their own."""
    rollout, env = trainer.collector.rollout, trainer.env
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(ITERATIONS):
        rollout.continue_from(rollout)
        for t in range(STEPS):
            env.step(rollout, t)
    profiler.disable()
    entries = pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]  # {(file, line, name): (.., calls, own, ..)}
    hottest = sorted(entries, key=lambda entry: -entry[1][2])[:HOT]
    return [{"function": _named(*place), "calls": timing[1], "ms": 1e3 * timing[2]} for place, timing in hottest]


def _named(file: str, line: int, name: str) -> str:
    """'env_torch.py: step', or the name alone of what is not Python."""
    if file == "~":
        return name.strip("<>")
    home = Path(headrace.__file__).parent
    path = Path(file)
    return f"{path.relative_to(home) if path.is_relative_to(home) else path.name}: {name}"


def draw(rows: list[Row], folder: Path) -> Path:
    """A bar for each backend, parts by colour; below the total time, since the bars are shares."""
    figure, panel = canvas(COLUMN, 2.3)
    names = [f"{BACKENDS[row['backend']]}\n{row['total_ms']:,.0f} ms" for row in rows]
    left = [0.0] * len(rows)
    for part, colour in PARTS.items():
        shares = [100 * row[f"{part}_ms"] / row["total_ms"] for row in rows]
        panel.barh(names, shares, left=left, color=colour, label=part, height=0.65)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.set_xlabel("share of the time (%)")
    panel.set_title(f"100 steps of {rows[0]['num_envs']} environments", loc="left")
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return save(figure, folder, "profile_steps")


if __name__ == "__main__":
    main()
