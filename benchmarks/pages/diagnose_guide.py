"""The figures of docs/my-gpu-is-at-2-percent.md: a script of Stable-Baselines3 from slow to fast, each step diagnosed.

Prints the guide's table in Markdown, and keeps the scripts and reports in --output. Needs Stable-Baselines3, here or in
the interpreter of --peer-python.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import Neighbours, Row, finish, interpreter_with, parser
from headrace.diagnose.profile.formatting import percent, times
from headrace.diagnose.profile.profile import LEARNING, Role
from headrace.diagnose.record import run_script
from headrace.diagnose.report import html
from headrace.diagnose.verdict import round_trip
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import gain_text, judge

START = """
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

env = make_vec_env("CartPole-v1", n_envs=1)
model = PPO("MlpPolicy", env, verbose=0)
model.learn(10_000_000, callback=EvalCallback(make_vec_env("CartPole-v1"), eval_freq=500, verbose=0))
"""
CHANGES = [  # what the row is called, and what is replaced by what
    ("as above", {}),
    ("`torch.set_num_threads(1)`", {"\nfrom stable": "\nimport torch\n\ntorch.set_num_threads(1)\nfrom stable"}),
    ("and `eval_freq=10_000`", {"eval_freq=500": "eval_freq=10_000"}),
    (
        "and 8 environments, `n_steps=256`",
        {"n_envs=1": "n_envs=8", "env, verbose": "env, n_steps=256, verbose", "=10_000, v": "=1_250, v"},
    ),
    (
        "and `batch_size=256`, fused Adam",
        {"n_steps=256": "n_steps=256, batch_size=256, policy_kwargs=dict(optimizer_kwargs=dict(fused=True))"},
    ),
]
HEAD = "| Script | steps/s | gained | evaluation | inference | learning | environment | first remedy | predicted |"


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--seconds", type=float, default=30.0, help="window of each diagnosis")
    flags.add_argument("--skip", type=float, default=8.0, help="start-up that is left out")
    flags.add_argument("--output", type=Path, default=Path("diagnoses"), help="folder of the scripts and reports")
    flags.add_argument("--peer-python", help="a Python that has Stable-Baselines3")
    options = flags.parse_args()
    python = options.peer_python or interpreter_with("stable_baselines3", options.peers_home, "torch")
    if python is None:
        raise SystemExit("Stable-Baselines3 is not installed: name a Python that has it, --peer-python PATH")
    seconds, skip = (4.0, 5.0) if options.quick else (options.seconds, options.skip)
    neighbours, trip, rows, text = Neighbours(), round_trip.measure(), list[Row](), START.lstrip()
    for number, (name, changes) in enumerate(CHANGES, 1):
        text = apply(text, changes)
        folder = options.output / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text(text)
        profile = run_script.measure([str(folder / "train.py")], python=python, seconds=seconds, skip=skip)
        facts = Facts(profile, trip)
        profile.save(folder)
        html.save(facts, judge(facts), folder)
        rows.append(row(name, facts, rows[-1]["steps_per_second"] if rows else None))
        print(f"{rows[-1]['line']}", flush=True)
    print("\n".join([HEAD, "|---|---:|---:|---:|---:|---:|---:|---|---|", *(each["line"] for each in rows)]))
    finish("diagnose_guide", rows, options, neighbours, seconds=seconds)


def apply(text: str, changes: dict[str, str]) -> str:
    """A script with pieces replaced. Raises ValueError for one that is not there."""
    text = "\n" + text
    for before, after in changes.items():
        if before not in text:
            raise ValueError(f"{before!r} is not in the script")
        text = text.replace(before, after, 1)
    return text.lstrip()


def row(name: str, facts: Facts, before: float | None) -> Row:
    """A line of the guide's table, and its numbers. before: the steps a second of the row above."""
    verdict = judge(facts)
    first = verdict.remedies[0] if verdict.remedies else None
    speed = facts.profile.counters.get("env_rate", 0.0)
    parts = (Role.EVALUATION,), (Role.INFERENCE,), LEARNING, (Role.ENVIRONMENT,)
    shares = [facts.share(*roles) for roles in parts]
    cells = [name, f"{speed:,.0f}", times(speed / before) if before else "", *map(percent, shares)]
    cells += [first.title, gain_text(first)] if first else ["nothing to gain", ""]
    numbers = {"gain": first.gain, "bound": first.bound, "title": first.title} if first else {}
    return {
        "script": name,
        "steps_per_second": speed,
        "shares": {str(role): facts.share(role) for role in facts.seconds},
        "headline": verdict.headline,
        "bounds": verdict.bounds,
        **numbers,
        "line": f"| {' | '.join(cells)} |",
    }


if __name__ == "__main__":
    main()
