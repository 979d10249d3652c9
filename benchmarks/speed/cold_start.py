"""Seconds from making a training to the end of the first iteration that learned, in processes of their own: with
nothing compiled yet, and again with what the first process has compiled.

`compiling` is the difference: tracing, compiling and writing of all that this training needs, its environment included.
`programs` is what making the programs of its losses and its policy takes of that: tracing, compiling, writing, and the
comparison with plain PyTorch; `warm_programs` the same where they are on disk.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import Neighbours, Row, environment, finish, parser, table

COLUMNS = ("training", "cold_s", "warm_s", "programs_s", "warm_programs_s", "compiling_s", "lowest", "highest")
TRAININGS = (
    "own network, 2 x 64",
    "the same as a user's class",
    "value penalty",
    "residual, LayerNorm, 64",
    "SAC, 2 x 64",
    "SAC, its own loss as a user's",
    "SAC, value penalty",
    "SAC, residual actor",
    "DQN, conservative",
)


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--turns", type=int, default=3)
    flags.add_argument("--only", nargs="*", default=TRAININGS, help="names of trainings, see own_networks.py")
    flags.add_argument("--one", help="one training in this process: what this program starts itself with")
    options = flags.parse_args()
    if options.one:
        print(json.dumps(seconds(options.one)))
        return
    neighbours, turns = Neighbours(), 1 if options.quick else options.turns
    names = options.only[:1] if options.quick else options.only
    rows = [compared(name, turns) for name in names]
    print(table(rows, COLUMNS))
    finish("cold_start", rows, options, neighbours)


def compared(name: str, turns: int) -> Row:
    """Medians over turns of one training."""
    cold, warm = zip(*(in_new_processes(name) for _ in range(turns)), strict=True)
    (cold, programs), (warm, warm_programs) = (zip(*own, strict=True) for own in (cold, warm))
    compiling = [c - w for c, w in zip(cold, warm, strict=True)]
    medians = (statistics.median(values) for values in (cold, warm, programs, warm_programs, compiling))
    return dict(zip(COLUMNS, (name, *(round(x, 2) for x in (*medians, min(compiling), max(compiling)))), strict=True))


def in_new_processes(name: str) -> tuple[list[float], list[float]]:
    """See seconds(): with an empty cache, and with the one that it filled."""
    with tempfile.TemporaryDirectory() as folder:
        command, environ = [sys.executable, __file__, "--one", name], environment(HEADRACE_CACHE=folder)
        cold, warm = (
            json.loads(subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE).stdout)
            for _ in ("cold", "warm")
        )
    return cold, warm


def seconds(name: str) -> tuple[float, float]:
    """Seconds that one training takes in this process until it has learned, once torch and headrace are imported; and
    those that making programs takes of these."""
    from benchmarks.speed.own_networks import CASES, trainer  # which imports torch and headrace
    from headrace.bindings.collecting import acting
    from headrace.bindings.compiled.compiled_losses import CompiledLoss

    made_in = list[float]()

    def timed(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any) -> Any:
            began = time.perf_counter()
            try:
                return make(*given)
            finally:
                made_in.append(time.perf_counter() - began)

        return made

    CompiledLoss._make = timed(CompiledLoss._make)  # type: ignore[assignment,method-assign]
    acting._made = timed(acting._made)
    start = time.perf_counter()
    made = trainer(CASES[name], plain=False)
    while not any("loss" in metric for metric in made.iterate().metrics):
        pass
    spent = time.perf_counter() - start
    made.close()
    return spent, sum(made_in)


if __name__ == "__main__":
    main()
