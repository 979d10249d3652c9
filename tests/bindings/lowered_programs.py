"""Row programs that trainings ask for, traced; run as a program, this writes them as data of the package.

A program is traced at several sizes of its networks and spaces. Numbers that differ between the traces are sums of
products of a few of them; where they are not, the program is kept for its own sizes alone.
"""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import math
import pkgutil
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
from gymnasium.spaces import Box, Discrete, Space, Tuple
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a program

from headrace import bindings, envs
from headrace.algorithms.base import ALGORITHMS, algorithm_classes
from headrace.algorithms.objectives import loss_and_metrics
from headrace.bindings.collecting import acting
from headrace.bindings.compiled import compiled_learning, compiled_objectives, loss_program, lowered
from headrace.bindings.compiled.compiled_losses import CompiledLoss
from headrace.core import fused
from headrace.core.cores import cores
from headrace.data.rollout import Rollout, tree_map
from headrace.data.spaces import action_column, env_columns, is_image, leaves
from headrace.kernels.rows.reasons import AsksSettings, NotRows
from headrace.kernels.rows.tracing.trace_key import source_lines
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.training.plan import settle

ENVS, STEPS, ROWS, TRACES = 8, 8, 16, 5
SMALL = {"num_steps": STEPS, "minibatch_size": STEPS * ENVS, "batch_size": ROWS, "learning_starts": 1, "epochs": 1}
COUNTS = {"buffer_size", "train_freq", "gradient_steps", "n_steps", "target_interval", "schedule", "num_envs"}
WIDTHS = ("hidden", "critic_hidden")
ACTING = ("ppo", "sac", "td3", "dqn", "qrdqn", "c51", "pqn")  # algorithms whose policies act as those of all others
OTHERS = {  # names of Gymnasium's: observations, and choices or joints; Hopper has no registered settings
    "LunarLander-v3": (8, Discrete(4)),
    "HalfCheetah-v5": (17, 6),
    "InvertedDoublePendulum-v5": (9, 1),
    "Hopper-v5": (11, 3),
    "a choice and its numbers": (10, Tuple((Discrete(3), Box(-1, 1, (2,))))),
}


Entries: TypeAlias = dict[str, list[str]]


class Request(NamedTuple):
    """A training: an algorithm's name and settings, and spaces."""

    name: str
    config: Any
    observation: Space
    action: Space


class Asked(NamedTuple):
    """A program that a training asks for. settings: those that the trace has read, with their values. loss, arguments:
    what it is a program of. algorithm: whose optimizers the loss is for."""

    key: str
    numbers: list[int]
    settings: dict[str, str]
    tree: Any
    loss: CompiledLoss
    arguments: Any
    algorithm: Any = None


def requests() -> Iterator[Request]:
    """Yield the losses that trainings of each algorithm ask for, in the built-in environments and in those without
    registered settings, with registered settings and with defaults."""
    places = [(known.name, known.observation_space, known.action_space) for known in envs.listing()]
    for name, (seen, does) in OTHERS.items():
        places.append((name, Box(-1, 1, (seen,)), does if isinstance(does, Space) else Box(-1, 1, (does,))))
    for algorithm in ALGORITHMS:
        kinds, default = set[str](), algorithm_classes(algorithm).config()
        for name, observation, action in places:
            if any(is_image(leaf) for _, leaf in leaves(observation)):
                continue  # whose convolutions are not compiled
            configs = [default]
            with suppress(TypeError, ValueError):
                configs.append(settle(algorithm, name, None, None, {}).algorithm_config)
            for config in configs:
                if (kind := _kind(config, observation, action)) not in kinds:
                    kinds.add(kind)
                    yield Request(algorithm, config, observation, action)


def _kind(config: Any, observation: Space, action: Space) -> str:
    """A request without the sizes and numbers that programs have as symbols and inputs."""
    own = {name: len(x) if isinstance(x, tuple) else x for name, x in vars(config).items() if name not in SMALL}
    own = {name: type(x) if isinstance(x, float) or name in COUNTS else x for name, x in own.items()}
    return f"{own} {type(observation)} {type(action)} {action.shape}"


def varied(request: Request, seed: int, choices: bool = True) -> Request:
    """The same with other sizes. choices: with another number of choices, too."""
    numbers = random.Random(seed)
    observation, action, config = request.observation, request.action, request.config
    if isinstance(observation, Box) and len(observation.shape) == 1:
        observation = Box(-1, 1, (numbers.randint(11, 60),))
    if isinstance(action, Discrete) and choices:
        action = Discrete(5 + (5 * seed + 2) % 8, start=action.start)
    if isinstance(action, Box) and action.shape != (1,):
        action = Box(-1, 1, (4 + 2 * (3 * seed % 5) + action.shape[0] % 2,))  # programs of odd sizes are others
    widths = {name: getattr(config, name, None) for name in WIDTHS}
    others = {name: tuple(numbers.randint(13, 90) for _ in own) for name, own in widths.items() if own}
    return Request(request.name, replace(config, **others), observation, action)


def asked(request: Request, known: Entries | None = None) -> list[Asked]:
    """The programs that a training asks for, traced, without the known ones."""
    kind, _ = algorithm_classes(request.name)
    settings = {name: value for name, value in SMALL.items() if hasattr(request.config, name)}
    algorithm: Any = kind.build(replace(request.config, **settings), request.observation, request.action, 0, "cpu")
    columns = env_columns(request.observation) | {"action": action_column(request.action)} | algorithm.columns()
    rollout = Rollout(STEPS, ENVS, columns)
    rollout.valid.fill_(True)
    with _noting(known or {}) as found:
        with suppress(_Noted):
            algorithm.warm_up(rollout)
        if request.name in ACTING:
            _ask_acting(algorithm.policy, rollout)
    return [one._replace(algorithm=algorithm) for one in found]


@torch.no_grad()
def _ask_acting(policy: Any, rollout: Rollout) -> None:
    """Ask for the programs by which a policy of Headrace's acts and evaluates."""
    if type(policy) not in acting.OUTPUTS:
        return
    seen = tree_map(lambda x: x[0], rollout.observation)
    for drawn in (torch.zeros(ENVS, policy.num_draws), None):
        acting.act_of(policy, seen, policy.initial_state(ENVS), drawn)
    if isinstance(policy, ActorCritic | RecurrentActorCritic):
        acting.value_of(policy, seen, policy.initial_state(ENVS))


class _Noted(Exception):
    """All programs of a gradient step are noted."""


@contextmanager
def by_programs() -> Iterator[None]:
    """Let only programs of losses serve learning calls, within this block."""
    for module in pkgutil.walk_packages(bindings.__path__, f"{bindings.__name__}."):
        importlib.import_module(module.name)
    learning = compiled_learning.__name__, compiled_objectives.__name__
    before = {name: [*kernels] for name, kernels in fused._kernels.items()}
    for kernels in fused._kernels.values():
        kernels[:] = [kernel for kernel in kernels if kernel.call.__module__ in learning]
    try:
        yield
    finally:
        for name, kernels in before.items():
            fused._kernels[name][:] = kernels


@contextmanager
def _noting(known: Entries) -> Iterator[list[Asked]]:
    """Learn losses in plain PyTorch within this block, and note the programs that would serve them."""
    found: list[Asked] = []

    def noted(self: CompiledLoss, arguments: Any, seen: Any, again: bool = False) -> Any:
        tree: Any = ["constants", []]
        while tree[0] == "constants":
            seen = seen.fixing(arguments, frozenset(tree[1]))
            given = seen.given
            lines = source_lines(given, seen.reach, seen.gradients)
            assert lines is not None
            key, numbers = lowered.without_numbers(lines)
            tree = entry_for(known.get(key, ()), given.settings, numbers)
            if tree is None:
                tree, read = _traced(self, arguments, seen)
                settings = {name: given.settings[name] for name in read}
                found.append(Asked(key, numbers, settings, tree, self, arguments))
        raise NotRows("noted")

    def all_noted(objectives: Any, networks: Any, rows: Any, config: Any, reduce: Any = None) -> Any:
        for objective in objectives:
            compiled_objectives._of(objective, networks.policy.sequence_length, config).find((networks, rows, config))
            _, more = loss_and_metrics(objective.loss(networks, rows, config))
            rows = rows | {name: x.detach() for name, x in more.items() if x.dim()}
        raise _Noted

    compiled_learning._compiled.cache_clear()
    with pytest.MonkeyPatch.context() as patch, by_programs():
        patch.setattr(CompiledLoss, "_program", noted)
        patch.setattr(compiled_objectives, "programs_of", all_noted)
        yield found
    compiled_learning._compiled.cache_clear()


def _traced(loss: CompiledLoss, arguments: Any, seen: Any) -> tuple[Any, list[str]]:
    try:
        made = loss_program.lowered_of(loss.plain, seen, arguments, loss.name)
        return lowered.written(made), made.read
    except AsksSettings as error:
        return ["constants", sorted(error.names)], []


def entry_for(entries: Iterable[str], settings: dict[str, str], numbers: list[int]) -> Any:
    """The tree of an entry that serves."""
    for entry in map(json.loads, entries):
        if entry["settings"].items() <= settings.items() and (sizes := lowered.solved(entry, numbers)) is not None:
            return lowered.with_sizes(entry["tree"], sizes)
    return None


class NoRule(Exception):
    """Numbers of traces follow no rule."""


class Sizes:
    """A table of numbers, each as what it is in all traces: symbols are those that are no others' sums of products."""

    def __init__(self, traces: int) -> None:
        self.count, self.table, self.symbols = traces, list[Any](), list[int]()
        self._places: dict[tuple[int, ...], int] = {}
        self._products: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), (1,) * traces)]

    def add_symbol(self, place: int, numbers: tuple[int, ...]) -> None:
        """Take a number for a symbol, which stands at a place among what is given."""
        new = len(self.symbols)
        self.symbols.append(place)
        times = lambda own: tuple(x * y for x, y in zip(own, numbers, strict=True))  # noqa: E731
        self._products += [((*names, new), times(own)) for names, own in self._products if len(names) < 2]
        self._products.append(((new, new), times(numbers)))
        self._products.append(((-1 - new,), tuple((number + 1) // 2 for number in numbers)))  # see lowered.solved()

    def place(self, numbers: tuple[int, ...]) -> int:
        """The place in the table of what is this number in each trace. Raises NoRule."""
        if numbers not in self._places:
            rule = numbers[0] if len({*numbers}) == 1 else self._rule(numbers)
            self._places[numbers] = len(self.table)
            self.table.append(rule)
        return self._places[numbers]

    def _rule(self, numbers: tuple[int, ...]) -> Any:
        for names, own in self._products[1:]:
            if numbers[0] % own[0] == 0 and all(
                x * (numbers[0] // own[0]) == y for x, y in zip(own, numbers, strict=True)
            ):
                return [[numbers[0] // own[0], *names]]
        for (names, one), (others, two) in itertools.combinations(self._products, 2):
            determinant = one[0] * two[1] - one[1] * two[0]
            if determinant:
                a = Fraction(numbers[0] * two[1] - numbers[1] * two[0], determinant)
                b = Fraction(one[0] * numbers[1] - one[1] * numbers[0], determinant)
                if a.denominator == b.denominator == 1 and all(
                    a * x + b * y == z for x, y, z in zip(one, two, numbers, strict=True)
                ):
                    return [[int(a), *names], [int(b), *others]]
        raise NoRule(numbers)

    def scaled(self, numbers: list[Any]) -> Any:
        """Expression by which with_sizes() makes this number, or these of several traces. Raises NoRule."""
        for _, own in self._products[1:] if all(type(number) is float for number in numbers) else ():
            if [*map(math.log, own)] == numbers:
                return ["log size", self.place(own)]
            for number, size in zip(numbers, own, strict=True):
                for kind, factor in (("times size", number / size), ("over size", number * size)):
                    if [lowered._FLOATS[kind](factor, size) for size in own] == numbers:
                        return [kind, factor, self.place(own)]
        raise NoRule(numbers)


def fitted(found: Sequence[Asked]) -> dict[str, Any]:
    """The entry of one program, traced at several sizes; of one trace, for its sizes alone. Raises NoRule."""
    if len({(one.key, len(one.numbers), json.dumps(one.settings)) for one in found}) > 1:
        raise NoRule("of what is read")
    sizes, given = Sizes(len(found)), [*zip(*(one.numbers for one in found), strict=True)]
    for place in sorted(range(len(given)), key=lambda place: sum(given[place])):  # others are made of the smallest
        try:
            sizes.place(given[place])
        except NoRule:
            sizes.add_symbol(place, given[place])
    places = [*map(sizes.place, given)]
    tree = _merged([one.tree for one in found], sizes)
    own = {"symbols": sizes.symbols, "numbers": places, "table": sizes.table}
    return {"settings": found[0].settings, **own, "tree": tree}


def _merged(trees: list[Any], sizes: Sizes) -> Any:
    first = trees[0]
    if isinstance(first, list):
        if len({len(tree) for tree in trees}) > 1:
            raise NoRule(trees)
        return [_merged([*parts], sizes) for parts in zip(*trees, strict=True)]
    if type(first) is int:
        return sizes.place(tuple(trees))
    if len({*map(repr, trees)}) > 1:
        return sizes.scaled(trees)
    return first


def _add(entries: list[str], own: Asked, others: Iterable[list[Asked]], place: int) -> str:
    """Add the entry of a program that was traced at several sizes; say why it does not serve at its own."""
    alike = [next((x for x in each if x.key == own.key and x.settings == own.settings), None) for each in others]
    if None in alike:
        return "of the key"
    try:
        entries.insert(place, json.dumps(fitted(alike)))  # type: ignore[arg-type]
    except NoRule as error:
        return str(error)[:200]
    return "" if entry_for(entries, own.settings, own.numbers) == own.tree else "another program"


def everything(wanted: Iterable[Request]) -> Entries:
    """The entries of all programs that trainings ask for."""
    known: Entries = {}
    for request in wanted:
        try:
            new = asked(request, known)
        except (TypeError, ValueError):  # spaces that are not this algorithm's
            continue
        if not new:
            continue
        others = [asked(varied(request, seed)) for seed in range(TRACES)]
        for own in new:
            entries = known.setdefault(own.key, [])
            why = _add(entries, own, others, len(entries))
            if why and isinstance(request.action, Discrete):  # of two choices all but one are no axis
                alike = [asked(varied(request, seed, choices=False)) for seed in range(TRACES)]
                why = _add(entries, own, alike, 0)
            if why:
                entries.insert(0, json.dumps(fitted([own])))
                print(f"{request.name}: {own.loss.name} for its own sizes alone, {request.observation}: {why}")
    return known


def small(name: str, **settings: Any) -> Request:
    kind = algorithm_classes(name).config
    action = Discrete(3) if name == "ppo" else Box(-2, 2, (1,))
    return Request(name, kind(**{"hidden": (8, 6)} | settings), Box(-3, 3, (5,)), action)


def learned(request: Request, loss: Any = None) -> Tensor:
    """An algorithm's parameters after learning from a made-up rollout. loss: instead of PPO's own."""
    settings = {"num_steps": 8, "minibatch_size": 32, "batch_size": 16, "learning_starts": 1, "buffer_size": 1000}
    own = {name: value for name, value in settings.items() if hasattr(request.config, name)}
    kind = algorithm_classes(request.name).algorithm
    algorithm: Any = kind.build(replace(request.config, **own), request.observation, request.action, 0, "cpu")
    if loss is not None:
        algorithm.loss = loss
    columns = env_columns(request.observation) | {"action": action_column(request.action)} | algorithm.columns()
    rollout, generator = Rollout(8, 8, columns), torch.Generator().manual_seed(5)
    for name in ("observation", "reward"):
        getattr(rollout, name).normal_(generator=generator)
    rollout.valid.fill_(True)
    algorithm.prepare(rollout)
    for _ in range(3):
        algorithm.update(rollout, 0.0)
    return torch.cat([parameter.detach().flatten() for parameter in algorithm.policy.parameters()])


def of_algorithm(name: str) -> Entries:
    """The entries of an algorithm's programs."""
    return everything(request for request in requests() if request.name == name)


if __name__ == "__main__":
    merged: Entries = {}
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as processes:
        for found in processes.map(of_algorithm, ALGORITHMS):
            for key, entries in found.items():
                merged[key] = [*dict.fromkeys((*merged.get(key, ()), *entries))]
    content = json.dumps(merged, separators=(",", ":"))
    lowered.FILE.write_bytes(gzip.compress(content.encode(), mtime=0))
    print(f"{sum(map(len, merged.values()))} programs in {lowered.FILE.stat().st_size} bytes")
