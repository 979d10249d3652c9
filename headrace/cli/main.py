"""The `headrace` command: runs a verb, and prints errors of the user as one line.

This module imports no large library, so that `headrace --help` is fast.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from collections.abc import Sequence

from headrace.core.packages import installed
from headrace.core.terminal import tell
from headrace.core.text import did_you_mean, is_message
from headrace.core.user_names import Misnamed

VERBS = {  # each is a module of headrace.cli with main(arguments)
    "train": ("train an agent", "headrace train ppo CartPole-v1"),
    "sweep": ("search settings with Optuna", "headrace sweep ppo CartPole-v1 --search learning_rate=1e-4..1e-2"),
    "population": ("train with settings that evolve", "headrace population ppo CartPole-v1 --mutate clip=0.1..0.3"),
    "tune": ("find the fastest settings for this machine", "headrace tune ppo LunarLander-v3"),
    "eval": ("evaluate a trained agent", "headrace eval runs/ppo/CartPole-v1_1 --episodes 100"),
    "play": ("record a video of a trained agent", "headrace play runs/ppo/CartPole-v1_1"),
    "record": ("write episodes of a trained agent as data", "headrace record runs/ppo/CartPole-v1_1"),
    "plot": ("plot learning curves of runs", "headrace plot runs/ppo/CartPole-v1_*"),
    "compare": ("train with Headrace and Stable-Baselines3", "headrace compare sb3 ppo CartPole-v1"),
    "runs": ("list runs with their settings and returns", "headrace runs"),
    "export": ("write a trained agent to onnx, numpy or c", "headrace export runs/ppo/CartPole-v1_1 --to onnx"),
    "hub": ("push a policy to the Hugging Face hub, or pull one", "headrace hub push runs/ppo/CartPole-v1_1 me/pole"),
    "diagnose": ("find out where the time of a training script goes", "headrace diagnose train.py"),
    "cluster": ("show the nodes of a Ray cluster", "headrace cluster 10.0.0.1:6379"),
    "check": ("check an environment, or the kernels of this machine", "headrace check LunarLander-v3"),
    "envs": ("list the built-in environments", "headrace envs"),
}
# verbs of other tools -> the command here, with {} for the other words. They are not aliases, so that each command has
# one name
ELSEWHERE = {
    "resume": "headrace train --resume {RUN}",
    "tensorboard": "tensorboard --logdir runs",
    **dict.fromkeys(("test", "enjoy", "evaluate"), "headrace eval {RUN}"),
    **dict.fromkeys(("render", "watch"), "headrace play {RUN}"),
    **dict.fromkeys(("learn", "fit", "run"), "headrace train {ppo ENV}"),
    **dict.fromkeys(("optimize", "hpo"), "headrace sweep {ppo ENV} --search learning_rate=1e-4..1e-2"),
    "pbt": "headrace population {ppo ENV} --mutate learning_rate=1e-5..1e-2 --interval 20_000",
    **dict.fromkeys(("list", "ls"), "headrace runs"),
    "profile": "headrace diagnose {SCRIPT.py}",
    "convert": "headrace export {RUN} --to onnx",
    **dict.fromkeys(("push", "upload"), "headrace hub push {RUN user/name}"),
    **dict.fromkeys(("pull", "download"), "headrace hub pull {user/name FOLDER}"),
}
USAGE = 2  # exit code of an error that the user can fix
INTERRUPTED = 130  # exit code of shells after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (by default sys.argv) and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = len(words) - _words_of_a_script(words)
    show_traceback = "--traceback" in words[:own] or os.environ.get("HEADRACE_TRACEBACK", "0") not in ("", "0")
    words = [word for word in words[:own] if word != "--traceback"] + words[own:]
    try:
        return _answer(words, show_traceback)
    except BrokenPipeError:  # the reader of a pipe has closed it, as in `headrace envs | head -3`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _answer(words: list[str], show_traceback: bool) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version", "version"):
        print("headrace", installed("headrace", otherwise="(not installed)"))
        return 0
    if words[0] in ELSEWHERE:
        return _complain(f"there is no verb {words[0]!r}: the command is\n  {_command_here(*words)}")
    if words[0] not in VERBS:
        if words[0].lower() in importlib.import_module("headrace.algorithms.base").ALGORITHMS:
            command = shlex.join(["headrace", "train", words[0].lower(), *(words[1:] or ["ENV"])])
            return _complain(f"{words[0]} is an algorithm, and a verb comes first: the command is\n  {command}")
        return _complain(f"there is no verb {words[0]!r}{did_you_mean(words[0], VERBS)}; see `headrace --help`")
    return _run(words[0], words[1:], show_traceback)


def _command_here(verb: str, *others: str) -> str:
    """The command for a verb of ELSEWHERE, with the other words of the line."""
    return re.sub(r"\{(.*)\}", lambda place: shlex.join(others) or place[1], ELSEWHERE[verb])


def _words_of_a_script(words: list[str]) -> int:
    """Number of words at the end that belong to a script that `headrace diagnose` runs."""
    if words[:1] != ["diagnose"] or "--traceback" not in words:
        return 0
    _, script = importlib.import_module("headrace.cli.diagnose").split(words[1:])
    return len(script)


def _run(verb: str, arguments: list[str], show_traceback: bool) -> int:
    try:
        importlib.import_module(f"headrace.cli.{verb}").main(arguments)
    except SystemExit as stop:  # the parser has printed the help, or an error
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except SyntaxError as error:  # in a file of the user's, which was imported by name
        if show_traceback or not error.filename:
            raise
        line = f": {error.text.strip()}" if error.text else ""
        return _complain(f"{error.filename}, line {error.lineno}: {error.msg}{line}")
    except Exception as error:
        if show_traceback or not is_message(error):
            raise
        return _complain(
            "\n".join([_as_flags(error), *getattr(error, "__notes__", []), *_command(verb, arguments, error)])
        )
    return 0


def _as_flags(error: Exception) -> str:
    """An error's message, with settings written as on a command line: `--backend inline`."""
    from headrace.training.config import TrainConfig

    def flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        return f"--{name.replace('_', '-')} {value}" if name in TrainConfig.__dataclass_fields__ else found[0]

    return re.sub(r"\b([a-z_]+)='([\w.]+)'", flag, str(error))


def _command(verb: str, arguments: Sequence[str], error: Exception) -> list[str]:
    """Correct a wrong name in the command, if it is certain which one was meant."""
    if not isinstance(error, Misnamed) or not error.instead:
        return []
    words = [error.mended(word) for word in arguments]
    if words == [*arguments]:  # it is the environment of a run, or of a file of settings
        train = importlib.import_module("headrace.cli.train") if verb == "train" else None
        words = train.with_env(words, error.instead) if train else [*words, "--env", error.instead]
    return [f"  {shlex.join(['headrace', verb, *words, *error.flags])}"]


def _complain(message: str) -> int:
    tell(f"headrace: {message}")
    return USAGE


def _help() -> str:
    width = max(len(phrase) for phrase, _ in VERBS.values())
    verbs = "\n".join(f"  {verb:<10} {phrase:<{width}}   {example}" for verb, (phrase, example) in VERBS.items())
    return (
        "usage: headrace VERB ...\n\n"
        "Train reinforcement-learning agents as fast as the hardware allows.\n\n"
        f"{verbs}\n\n"
        "`headrace VERB --help` lists the flags of a verb. `headrace --version` prints the version.\n"
        "--traceback after a verb, or HEADRACE_TRACEBACK=1, prints the traceback of an error."
    )
