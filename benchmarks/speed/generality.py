"""Forty combinations of algorithm, network, minibatches and spaces: is any slower than a hand-written loop?

The time of one learning update, and of acting on 64 observations, three ways in turns in one process: Headrace as a
user gets it (torch on one thread, on all cores for images; `ours_all_ms`: always), Headrace in plain PyTorch
(headrace.core.fused.plain_only), and a hand-written PyTorch loop (generality_torch.py) on the same numbers, with the
same batch sizes, on one thread or all, whichever is faster for it. A row for each combination is appended to
results/generality.jsonl when it is measured; `--resume` leaves out those that a former call with the same `--label`
measured.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from gymnasium.spaces import Discrete

from benchmarks.common import HERE, Neighbours, Row, cores, machine, parser, read_rows, table
from benchmarks.speed import generality_torch as by_hand
from benchmarks.speed.generality_cases import CASES, RAW, Case
from benchmarks.tables import replace_table
from headrace.algorithms.base import algorithm_classes
from headrace.algorithms.off_policy import OffPolicy, learn_from_replay
from headrace.algorithms.on_policy import Targets
from headrace.core.fused import plain_only
from headrace.data.rollout import Group, Rollout, flatten
from headrace.data.spaces import action_column, env_columns
from headrace.policies.convolutions import shares_threads

ACTING, UPDATES = 64, 8  # observations that are acted on; gradient steps of an off-policy update
RATE = 1e-6  # learning rate of all: so small that a policy stays what it was
README = HERE / "README.md"
COLUMNS = ("name", "ours_ms", "plain_ms", "by_hand_ms", "over_plain", "over_hand", "act_over_plain", "act_over_hand")


class Work(NamedTuple):
    """Calls that are measured, and one that restores the state from before them."""

    learn: Callable[[], object]
    act: Callable[[], object]
    restore: Callable[[], object]
    threads: int = 1  # of torch, by default


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--only", default="", help="numbers or parts of names, separated by commas; all where empty")
    flags.add_argument("--seconds", type=float, default=0.12, help="of a turn of each of the three ways")
    flags.add_argument("--turns", type=int, default=5)
    flags.add_argument("--label", default="", help="stored with the rows")
    flags.add_argument("--resume", action="store_true", help="leave out what a call with this label measured before")
    flags.add_argument("--limit", type=float, default=3600.0, help="seconds after which no further row is begun")
    flags.add_argument("--write", action="store_true", help="write the table of the latest rows into README.md, alone")
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.turns = 0.01, 2
    path = options.results / "generality.jsonl"
    if options.write:
        rows = latest(path, options.label)
        if not rows:
            sys.exit(f"no rows with the label {options.label!r} in {path}: measure them first, without --write")
        write_table(rows)
        return
    done = latest(path, options.label) if options.resume else {}
    began, described = time.monotonic(), machine()
    for number, case in enumerate(CASES):
        if case.name in done or not chosen(number, case, options.only) or time.monotonic() - began > options.limit:
            continue
        row = measure(case, options.seconds, options.turns)
        print(table([row], COLUMNS), flush=True)
        row |= {"label": options.label, "quick": options.quick, "machine": described}
        options.results.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
    print(summary(latest(path, options.label).values()))


def chosen(number: int, case: Case, only: str) -> bool:
    parts = [part.strip() for part in only.split(",") if part.strip()]
    return not parts or any(part == str(number) if part.isdecimal() else part in case.name for part in parts)


def measure(case: Case, seconds: float, turns: int) -> Row:
    """Medians over turns of the seconds of a call, of each way."""
    torch.manual_seed(0)
    all_cores, neighbours = cores(), Neighbours()
    ours, hand = prepare(case)
    plain, _ = prepare(case)
    ways: dict[str, tuple[Work, int, bool]] = {
        "ours": (ours, ours.threads, False),
        "ours_all": (ours, all_cores, False),
        "plain": (plain, plain.threads, True),
        "hand": (hand, 1, False),
        "hand_all": (hand, all_cores, False),
    }
    found: dict[str, list[float]] = {f"{part} {way}": [] for way in ways for part in ("learn", "act")}
    for turn in range(turns + 1):  # the first compiles, and is not counted
        for way, (work, threads, in_plain) in ways.items():
            torch.set_num_threads(threads)
            work.restore()
            with plain_only() if in_plain else nullcontext():
                for part in ("learn", "act"):
                    took = seconds_of(getattr(work, part), seconds if part == "learn" else seconds / 4)
                    if turn:
                        found[f"{part} {way}"].append(took)
    torch.set_num_threads(1)
    middle = {name: statistics.median(times) for name, times in found.items()}
    learn, act = ({way: middle[f"{part} {way}"] for way in ways} for part in ("learn", "act"))
    by_hand_s, acting_s = min(learn["hand"], learn["hand_all"]), min(act["hand"], act["hand_all"])
    return {
        "benchmark": "generality",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "name": case.name,
        "algorithm": case.algorithm,
        "ours_ms": 1e3 * learn["ours"],
        "ours_all_ms": 1e3 * learn["ours_all"],  # threads=None: torch on all cores
        "plain_ms": 1e3 * learn["plain"],
        "by_hand_ms": 1e3 * by_hand_s,
        "over_plain": learn["plain"] / learn["ours"],
        "over_hand": by_hand_s / learn["ours"],
        "plain_over_hand": by_hand_s / learn["plain"],
        "act_ms": 1e3 * act["ours"],
        "act_over_plain": act["plain"] / act["ours"],
        "act_over_hand": acting_s / act["ours"],
        "times": found,
        "others_cpu": neighbours.busy(),
    }


def seconds_of(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call, the mean over a turn."""
    calls, began, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < seconds:
        call()
        calls += 1
        elapsed = time.perf_counter() - began
    return elapsed / calls


def prepare(case: Case) -> tuple[Work, Work]:
    """Make Headrace's work and the hand-written loop's, on the same numbers."""
    kind, settings_kind = algorithm_classes(case.algorithm)
    known = settings_kind.__dataclass_fields__
    settings: Any = {name: x for name, x in RAW.items() if name in known} | case.settings | {"learning_rate": RATE}
    off = issubclass(kind, OffPolicy)
    settings |= {"learning_starts": 1, "buffer_size": 64 * case.steps * case.envs} if off else {"num_steps": case.steps}
    algorithm: Any = kind.build(settings_kind(**settings), case.observation, case.action, 0, "cpu")
    columns = env_columns(case.observation) | {"action": action_column(case.action)} | algorithm.columns()
    rollout = Rollout(case.steps, case.envs * case.agents, columns)
    fill(rollout, algorithm.policy, case)
    seen = flatten(rollout.observation)[:ACTING]
    random = torch.rand(ACTING, algorithm.policy.num_draws)
    act = torch.no_grad()(lambda: algorithm.policy.act(seen, None, random))
    if off:
        algorithm.prepare(rollout)
        for _ in range(64):
            fill(rollout, algorithm.policy, case)
            algorithm.replay.append(rollout)
        state = {"policy": algorithm.policy.state_dict(), **algorithm.buffers}
        learn: Callable[[], object] = lambda: learn_from_replay(algorithm, UPDATES)  # noqa: E731
    else:
        targets = Targets(*torch.randn(2, *rollout.reward.shape), rollout.valid[:-1])
        state = {"policy": algorithm.policy.state_dict()}
        learn = lambda: algorithm.learn(rollout, targets)  # noqa: E731
    before = {name: x.clone() for name, x in tensors(state).items()}

    def restore() -> None:
        algorithm.follow_policy() if off else algorithm.begin_update(0.0)
        for name, x in tensors(state).items():
            x.copy_(before[name])

    threads = cores() if shares_threads(algorithm.policy) else 1
    ours = Work(learn, act, torch.no_grad()(restore), threads)
    return ours, (hand_off if off else hand_on)(case, rollout if off else (rollout, targets), known)


def tensors(state: Any, path: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a nested dict, by path."""
    if isinstance(state, torch.Tensor):
        return {path: state}
    return {name: x for key, part in state.items() for name, x in tensors(part, f"{path}/{key}").items()}


@torch.no_grad()
def fill(rollout: Rollout, policy: Any, case: Case) -> None:
    """Random observations, the policy's actions, and a few ends of episodes."""
    _random(rollout.observation, case.observation)
    steps, envs = rollout.reward.shape
    random = torch.rand(steps * envs, policy.num_draws)
    state = policy.initial_state(steps * envs)
    output = policy.act(flatten(rollout.observation[:steps]), state, random)
    rollout.action.copy_(output.action.reshape(rollout.action.shape))
    for name in ("log_prob", "value"):
        if name in rollout.columns and getattr(output, name) is not None:
            getattr(rollout, name)[:steps] = getattr(output, name).view(steps, envs)
    rollout.reward.normal_()
    rollout.valid.fill_(True)
    rollout.terminated.copy_(torch.rand(steps, envs) < 0.02)
    rollout.valid[1:] = ~rollout.terminated


def _random(column: Any, space: Any) -> None:
    if isinstance(column, Group):
        for name, member in column:
            _random(member, space[name])
    elif column.is_floating_point():
        column.normal_()
    else:
        most = {torch.uint8: 256, torch.int8: 2}.get(column.dtype) or int(space.n)
        column.copy_(torch.randint(most, column.shape))


def plain_columns(observation: Any) -> Any:
    """Observations as one would keep them in a hand-written loop: rows one after another."""
    if isinstance(observation, Group):
        return {name: plain_columns(member) for name, member in observation}
    return observation.contiguous()


def hand_on(case: Case, given: tuple[Rollout, Targets], known: Any) -> Work:
    """The hand-written loop of an on-policy algorithm, with the settings of ours."""
    rollout, targets = given
    defaults = {name: field.default for name, field in known.items()}
    settings = defaults | case.settings | {"learning_rate": RATE}
    rows, steps = flatten, rollout.num_steps
    batch = {
        "observation": plain_columns(rows(rollout.observation[:steps])),
        "action": rows(rollout.action).contiguous(),
        "advantage": rows(targets.advantage),
        "returns": rows(targets.returns),
        "done": rows((~rollout.valid[:steps]).float()),
    }
    if case.action.__class__.__name__ == "MultiBinary":
        batch["action"] = batch["action"].float()
    if "log_prob" in rollout.columns:
        batch["log_prob"] = rows(rollout.log_prob)
    first = by_hand.take(batch["observation"], torch.arange(ACTING))
    if case.algorithm == "pqn":
        net: Any = by_hand.q_network(settings, case.observation.shape[0], int(case.action.n))
        act = by_hand.epsilon_greedy(net, first, int(case.action.n))
    else:
        net = by_hand.Agent(settings, case.observation, case.action)
        act = lambda: net.act(first)  # noqa: E731
    if case.algorithm == "trpo":
        update = by_hand.trpo(settings, net, batch)
    else:
        update = by_hand.on_policy(case.algorithm, settings, net, batch, rollout.reward.shape)
    return Work(update, act, restoring(net))


def hand_off(case: Case, rollout: Rollout, known: Any) -> Work:
    """The hand-written loop of an off-policy algorithm, on a replay buffer of as many rows as ours."""
    settings = {name: field.default for name, field in known.items()} | case.settings | {"learning_rate": RATE}
    size, rows = case.observation.shape[0], 64 * case.steps * case.envs
    discrete = isinstance(case.action, Discrete)
    action = torch.randint(int(case.action.n), (rows,)) if discrete else torch.rand(rows, case.action.shape[0]) * 2 - 1
    columns = {name: torch.randn(rows, size) for name in ("observation", "next_observation")}
    columns |= {"action": action, "reward": torch.randn(rows), "terminated": (torch.rand(rows) < 0.02).float()}
    first = columns["observation"][:ACTING]
    if discrete:
        net: Any = by_hand.q_network(settings, size, int(case.action.n))
        update = by_hand.dqn(settings, net, columns, UPDATES)
        act = by_hand.epsilon_greedy(net, first, int(case.action.n))
    else:
        net, update = by_hand.actor_critic(case.algorithm, settings, (size, action.shape[1]), columns, UPDATES)
        width = action.shape[1]
        act = torch.no_grad()(lambda: torch.tanh(net(first)[:, :width] + 0.1 * torch.randn(ACTING, width)))
    return Work(update, act, restoring(net))


def restoring(net: Any) -> Callable[[], None]:
    before = {name: x.clone() for name, x in net.state_dict().items()}
    return lambda: net.load_state_dict(before) and None


def latest(path: Any, label: str) -> dict[str, Row]:
    """The last row of each combination with this label, in the order of CASES."""
    found = {row["name"]: row for row in read_rows(path) if row["label"] == label and not row["quick"]}
    return {case.name: found[case.name] for case in CASES if case.name in found}


def summary(rows: Any) -> str:
    """Summary of the learning updates: medians, and the number of rows below 1."""
    ratios = [min(row["over_plain"], row["over_hand"]) for row in rows]
    if not ratios:
        return "no rows"
    hand = statistics.median(row["over_hand"] for row in rows)
    plain = statistics.median(row["over_plain"] for row in rows)
    below = sum(ratio < 1 for ratio in ratios)
    return (
        f"{len(ratios)} combinations: {hand:.2f} times the hand-written loop and {plain:.2f} times plain PyTorch "
        f"(medians); lowest {min(ratios):.2f}; {below} below 1.0"
    )


def write_table(rows: dict[str, Row]) -> None:
    """Replace the table in README.md."""
    lines = [
        "| | ms | torch on all cores | hand-written | plain | acting: hand-written | plain |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        ratios = (row[key] for key in ("over_hand", "over_plain", "act_over_hand", "act_over_plain"))
        lines.append(
            f"| {name} | {row['ours_ms']:.2f} | {row['ours_all_ms']:.2f} | "
            + " | ".join(f"{x:.2f}" for x in ratios)
            + " |"
        )
    replace_table("speed/generality", "\n".join((*lines, "", f"{summary(rows.values())}.")), README)


if __name__ == "__main__":
    main()
