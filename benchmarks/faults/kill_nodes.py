"""Trainings on three nodes of a Ray cluster that lose an actor, a node, or two nodes at any moment.

Each must end with the bits of an undisturbed training, and come back to three actors once a node has come in place of
the lost ones. Moments are drawn by a seed; rows are appended to results/reliability.jsonl, so that runs of this program
add up, and say the seconds from a loss to full strength.

    python -m benchmarks.faults.kill_nodes            # 20 losses: about ten minutes
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common
from benchmarks.faults import reliability
from benchmarks.faults.ray_nodes import Nodes, bits, kill_actor, wait_for

LOSSES = {"an actor": 0, "a node": 1, "two of three nodes": 2}  # and how many nodes each takes
UPDATES = 30
SETTINGS: dict[str, Any] = {
    **{"progress": "none", "num_envs": 12, "num_steps": 32, "minibatch_size": 128, "hidden": (8,)},
    **{"epochs": 2, "target_return": None, "scale": False},
}
COMES_BACK = 3.0  # s after a loss, as many nodes come as were lost
PAUSE = 0.05  # s between two updates


def learned(losing: Callable[[int, Any], None], **options: Any) -> tuple[str, Any]:
    """The weights after UPDATES updates, and the trainer, before each of which losing(number, trainer) is called."""
    from headrace.training.trainer import Trainer

    trainer = Trainer("ppo", "CartPole-v1", **SETTINGS, **options)
    for number in range(UPDATES):
        losing(number, trainer)
        trainer.iterate()
        time.sleep(PAUSE if options else 0)
    return bits(trainer), trainer


def lose_one(nodes: Nodes, loss: str, collection: str, chance: random.Random, reference: str) -> tuple[str, float]:
    """Describe what is wrong with a training that loses this at a moment. Returns that, and the seconds until it has
    three actors again."""
    at, place, delay = chance.randrange(UPDATES - 1), chance.randrange(3), chance.uniform(0, 0.05)
    lost_at = []

    def losing(number: int, trainer: Any) -> None:
        if number != at:
            return
        time.sleep(delay)
        lost_at.append(time.monotonic())
        if not LOSSES[loss]:
            kill_actor(trainer, place)
        for _ in range(LOSSES[loss]):
            nodes.kill()
        if LOSSES[loss]:
            nodes.add_later(1, COMES_BACK, LOSSES[loss])

    try:
        weights, trainer = learned(losing, actors=3, collection=collection, cluster=nodes.address)
    except Exception as error:
        return f"it ended with {type(error).__name__}: {error}", 0.0
    try:
        while trainer.collector.details()["actors_lost"] < max(1, LOSSES[loss]):
            trainer.iterate()  # the loss may be noticed after the last update
        wait_for(trainer, 3, 90.0)
        seconds = time.monotonic() - lost_at[0]
    except Exception as error:
        return f"it did not come back to three actors: {error}", 0.0
    finally:
        trainer.close()
        while len(nodes.nodes) < 3:
            time.sleep(0.1)
    return "" if weights == reference else "other bits", seconds


def main() -> None:
    """Lose, and append a row for each kind of loss."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--losses", type=int, default=20)
    flags.add_argument("--seed", type=int, default=0, help="of the moments")
    options = flags.parse_args()
    chance, count = random.Random(options.seed), 1 if options.quick else options.losses
    # settings of Ray's processes: they notice sooner that a node is gone
    os.environ.setdefault("RAY_health_check_period_ms", "1000")
    nodes = Nodes(3, 1)
    undisturbed: dict[str, str] = {}
    rows: dict[str, common.Row] = {}
    for number in range(count):
        loss, collection = list(LOSSES)[number % 3], ("sync", "overlapped")[number // 3 % 2]
        if collection not in undisturbed:
            undisturbed[collection], trainer = learned(lambda *_: None, actors=1, collection=collection)
            trainer.close()
        wrong, seconds = lose_one(nodes, loss, collection, chance, undisturbed[collection])
        name = f"{loss} of a Ray cluster lost: PPO goes on with the same bits"
        row = rows.setdefault(name, {**reliability.empty(name), "seconds_to_full_strength": []})
        reliability.count(row, f"{collection}, loss {number} of seed {options.seed}", wrong)
        row["seconds_to_full_strength"].append(round(seconds, 2))
        print(f"{loss}, {collection}: {wrong or 'same bits'}; full strength after {seconds:.1f} s", flush=True)
    nodes.close()
    reliability.finish("kill_nodes", list(rows.values()), options.results)


if __name__ == "__main__":
    main()
