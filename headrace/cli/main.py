"""The `headrace` command: finds the verb, runs it, and gives people one line where something is wrong.

This module and the list of verbs import nothing heavy, so that `headrace --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from headrace.core.text import did_you_mean

VERBS = {  # each is a module of headrace.cli with main(arguments)
    "train": ("train an agent", "headrace train ppo CartPole-v1"),
    "eval": ("returns of a trained agent", "headrace eval runs/ppo/CartPole-v1_1 --episodes 100"),
    "play": ("a video of a trained agent", "headrace play runs/ppo/CartPole-v1_1"),
    "plot": ("learning curves of runs", "headrace plot runs/ppo/CartPole-v1_*"),
    "diagnose": ("where a training script's time goes", "headrace diagnose train.py"),
    "check": ("whether an environment, or a machine, is as it should be", "headrace check LunarLander-v3"),
    "envs": ("the environments that are built in", "headrace envs"),
}
USAGE = 2  # exit code of every error that is the user's to mend
INTERRUPTED = 130  # what a shell gives after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (that of the process where none is given) and give its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = "--traceback" in words or os.environ.get("HEADRACE_TRACEBACK", "0") not in ("", "0")
    words = [word for word in words if word != "--traceback"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version", "version"):
        print(f"headrace {_version()}")
        return 0
    if words[0] not in VERBS:
        return _complain(
            f"there is no {words[0]!r}{did_you_mean(words[0], VERBS)}; `headrace --help` lists what there is"
        )
    return _run(words[0], words[1:], show_traceback)


def _run(verb: str, arguments: list[str], show_traceback: bool) -> int:
    try:
        importlib.import_module(f"headrace.cli.{verb}").main(arguments)
    except SystemExit as stop:  # the parser has answered --help, or said what is wrong
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone, as in `headrace envs | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if show_traceback or not _is_message(error):
            raise
        return _complain("\n".join([str(error), *getattr(error, "__notes__", [])]))
    return 0


def _is_message(error: Exception) -> bool:
    """Whether an error says to the user what is wrong: raised by Headrace or Gymnasium on purpose, or a missing file.

    One that comes from other code (torch, the user's own environment) keeps its traceback.
    """
    if isinstance(error, OSError):
        return True
    if isinstance(error, AssertionError | AttributeError | KeyError | IndexError | NameError):
        return False
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return last.f_globals.get("__name__", "").partition(".")[0] in ("headrace", "gymnasium")


def _complain(message: str) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return USAGE


def _help() -> str:
    width = max(len(phrase) for phrase, _ in VERBS.values())
    verbs = "\n".join(f"  {verb:<8} {phrase:<{width}}   {example}" for verb, (phrase, example) in VERBS.items())
    return (
        "usage: headrace VERB ...\n\n"
        "Trains reinforcement-learning agents as fast as the hardware allows.\n\n"
        f"{verbs}\n\n"
        "`headrace VERB --help` lists a verb's flags. --version gives the version, and --traceback after a verb\n"
        "(or HEADRACE_TRACEBACK=1) shows where an error came from."
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headrace")
    except PackageNotFoundError:
        return "(sources that are not installed)"
