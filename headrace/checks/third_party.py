"""The results of Gymnasium's and PettingZoo's own checkers."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import gymnasium

from headrace.checks.finding import Finding

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

CYCLES = 100
SHARED = "share an object"  # Gymnasium's message for observations or infos that a later call may overwrite
COPIED = (
    "trainings here copy what they keep, so nothing is wrong in them; other programs may keep the arrays as they are"
)


def gymnasium_checker(env: gymnasium.Env) -> list[Finding]:
    """Findings of check_env, on the environment without its wrappers."""
    from gymnasium.utils.env_checker import check_env

    return _run("Gymnasium's checker", partial(check_env, env.unwrapped, skip_render_check=True))


def pettingzoo_checker(factory: Callable[[], ParallelEnv]) -> list[Finding]:
    """Findings of parallel_api_test and parallel_seed_test."""
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    def api_test() -> None:
        with contextlib.closing(factory()) as env:
            parallel_api_test(env, num_cycles=CYCLES)

    return [
        *_run("PettingZoo's API test", api_test, UserWarning),
        *_run("PettingZoo's seed test", partial(parallel_seed_test, factory, CYCLES), UserWarning),
    ]


def _run(check: str, test: Callable[[], None], category: type[Warning] = Warning) -> list[Finding]:
    """Run a test: "wrong" if it raises, else a note for each warning of the category."""
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            test()
        except Exception as error:
            if SHARED in str(error):  # the last one of Gymnasium's checks, so that none is skipped
                return [Finding(check, "note", str(error), COPIED)]
            return [Finding(check, "wrong", f"{type(error).__name__}: {error}")]
    texts = {_plain(str(warning.message)) for warning in caught if issubclass(warning.category, category)}
    return [Finding(check, "note", text) for text in sorted(texts)] or [Finding(check, "ok", "has no objections")]


def _plain(text: str) -> str:
    """Remove colour codes and prefix from a warning."""
    return text.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: ")
