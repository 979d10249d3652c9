"""The benchmark of MuJoCo's tasks: which trainings are wanted, and what is compared."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.returns.mujoco_returns import digest, marks_of, summary, verdict, wanted
from benchmarks.returns.mujoco_tasks import PLANS, ZOO

ALL = {"only": ["ppo", "sac"], "tasks": [], "library": ["headrace", "default", "sb3"], "seeds": None, "steps": None}


def test_trainings_of_every_library():
    found = list(wanted(Namespace(quick=False, **ALL)))
    assert len(set(found)) == len(found)
    count = {(t.algorithm, t.library): 0 for t in found}
    for training in found:
        count[training.algorithm, training.library] += 1
    assert (count["ppo", "default"], count["ppo", "sb3"]) == (9 * 3, 4 * 3)
    assert (count["sac", "default"], count["sac", "sb3"]) == (4 * 3, 2 * 2)
    assert count["ppo", "headrace"] < count["ppo", "default"]  # registered for some tasks alone
    assert all(env in ZOO[name] for name, plan in PLANS.items() for env in plan.tasks)
    sb3 = next(t for t in found if t.library == "sb3")
    assert (sb3.steps, marks_of(sb3)) == (300_000, [100_000, 200_000, 300_000])
    assert marks_of(sb3._replace(steps=5_000)) == [5_000]


def test_libraries_are_compared_at_equal_steps():
    def row(library, seed, *points):
        about = {"library": library, "algorithm": "sac", "env": "Hopper-v5", "seed": seed}
        points = [dict(zip(("steps", "return", "seconds", "cpu_s"), point, strict=True)) for point in points]
        settings = digest(library, "sac", "Hopper-v5")
        return {
            **about,
            **points[-1],
            "points": points,
            "settings": settings,
            "steps": 100 if library == "sb3" else 100_000,
        }

    rows = [
        row("default", 0, (50, 100.0, 1.0, 2.0), (100, 300.0, 2.0, 4.0), (200, 0.0, 4.0, 8.0)),
        row("default", 1, (50, 100.0, 1.0, 2.0), (104, 500.0, 4.0, 8.0), (200, 0.0, 8.0, 16.0)),
        row("sb3", 0, (50, 900.0, 5.0, 5.0), (100, 350.0, 12.0, 24.0)),
    ]
    ours, theirs = summary([*rows, rows[0] | {"settings": "others", "return": 1e6}])
    assert (ours["seeds"], ours["steps"], ours["return"], ours["lowest"]) == (2, 100_000, 0.0, 0.0)
    assert (ours["return_at"], ours["sb3_return"], ours["cpu_s_at"]) == (400.0, 350.0, 6.0)
    assert ours["times_faster"] == 4.0 and "sb3_return" not in theirs
    longer = summary([*rows, rows[0] | {"steps": 1_000_000}])
    assert len(longer) == 3 and "in 1 of 1; 4.0 times" in verdict(longer)
