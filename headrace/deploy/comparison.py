"""Compare an exported policy with the policy, in batches of four sizes, including recurrent states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.data.flat_dict import ACTION_MASK
from headrace.data.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, is_image, members
from headrace.deploy import traced
from headrace.deploy.graph import STATE, Array, Graph
from headrace.deploy.readers import Outputs, Reader
from headrace.policies.actor_critic import ActorCritic, AsymmetricActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy, kind_of
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.heads import GaussianHead, StateStdHead
from headrace.policies.masks import forbid, mask_of, or_all
from headrace.policies.networks import DictEncoder, VectorEncoder
from headrace.policies.numpy_io import to_batch
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.policies.rnn import RecurrentEncoder, step

OBSERVATIONS = 1000  # least number in all batches together
TOLERANCE = 1e-5  # largest difference of an output y, relative to max(1, |y|)
LAST_BITS = 16  # or this multiple of the output's change by the weights' last bits, if larger: sums round, too
NUDGES = 8  # copies with changed last bits; the largest change counts, since one copy may leave an output unchanged
WIDE = 1e4  # wider bounds are not informative about observations
TRACED = (  # advice for files by torch.onnx
    "torch.onnx runs a policy's Python code once and keeps what an `if`, len() or float() gave: write it with tensors "
    "(x.shape[0], torch.where), or serve policy.predict()"
)


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: the number of observations, and the largest difference of each output.

    rounding: for outputs with a difference above 1e-5 max(1, |y|), the change by the policy's own rounding. ties:
    number of actions that differ because two choices are equally good within the tolerance.
    """

    observations: int
    differences: dict[str, float]
    rounding: dict[str, float]
    ties: int

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {difference:.1e}" for name, difference in self.differences.items())
        lines = [
            f"largest differences from the policy on {self.observations:,} observations: {parts} "
            f"(allowed: {TOLERANCE:g} x max(1, |value|))"
        ]
        lines += [
            f"more was allowed for {name}, which changes by {change:.1e} when the weights change by their last bit"
            for name, change in self.rounding.items()
        ]
        lines += [f"{self.ties} actions differ, between choices that are equal within it"] if self.ties else []
        return "\n".join(lines)


class Differences:
    """The largest difference of each output so far, and the allowed one."""

    def __init__(self, policy: Policy, graph: Graph) -> None:
        self.policy, self.graph = policy, graph
        self.largest, self.rounding = dict[str, float](), dict[str, float]()
        self.advice = TRACED if graph.traced else "Please report it"
        self._of_nudged: tuple[object, list[Outputs]] = object(), []  # a batch, and their outputs

    def add(self, name: str, found: Array, expected: Array, observation: Any, state: Tensor | None) -> None:
        """Compare an output of a batch. Raises ArithmeticError if it differs by more than is allowed."""
        if found.shape != expected.shape:
            raise ArithmeticError(
                f"the exported policy differs from the policy: {name} has the shape {found.shape} where the policy has "
                f"{expected.shape}; nothing was written. {self.advice}"
            )
        apart = np.abs(found.astype(np.float64) - expected)
        tolerance = TOLERANCE
        if expected.dtype.kind == "f":
            tolerance = max(tolerance, float(np.finfo(expected.dtype).eps))  # actions may be float16
        else:
            apart = np.maximum(apart - 1, 0)  # rounded: a mean between two whole numbers may become either
        allowed = tolerance * np.maximum(1, np.abs(expected.astype(np.float64)))
        if not (apart <= allowed).all():
            change = self._change(name, expected, observation, state)
            self.rounding[name] = max(self.rounding.get(name, 0.0), change)
            allowed = np.maximum(allowed, LAST_BITS * change)
        if not (apart <= allowed).all():
            worst = np.unravel_index(np.argmax(np.nan_to_num(apart - allowed, nan=np.inf)), apart.shape)
            raise ArithmeticError(
                f"the exported policy differs from the policy: {name} is {found[worst]:.9g} where the policy has "
                f"{expected[worst]:.9g}, and {allowed[worst]:.1e} is allowed, in a batch of {len(found)}; nothing was "
                f"written. {self.advice}"
            )
        self.largest[name] = max(self.largest.get(name, 0.0), float(apart.max(initial=0)))

    @cached_property
    def nudged(self) -> list[Policy]:
        """Copies of the policy whose weights differ from its own, and from each other's, in their last bit."""
        return [_last_bits(self.policy, seed) for seed in range(NUDGES)]

    def _change(self, name: str, expected: Array, observation: Any, state: Tensor | None) -> float:
        """Largest change of an output with the weights of `nudged`."""
        if self._of_nudged[0] is not observation:  # otherwise they were computed for another output
            outputs = [reference(self.graph, nudged, observation, state)[0] for nudged in self.nudged]
            self._of_nudged = observation, outputs
        changed = (_part(self.graph, name, outputs) for outputs in self._of_nudged[1])
        return max(float(np.abs(part - expected).max()) for part in changed)


def _last_bits(policy: Policy, seed: int) -> Policy:
    """Copy a policy and change the last bit of its weights. Its outputs show the effect of rounding."""
    nudged, generator = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in nudged.parameters():
            signs = torch.randint(0, 2, weight.shape, generator=generator) * 2 - 1
            weight.mul_(1 + signs * 2.0**-23)
    return nudged


def compare(policy: Policy, graph: Graph, reader: Reader, seed: int = 0) -> Comparison:
    """Compare an exported policy with the policy it was made from, on the CPU.

    Batches are of 1, block, block + 1 and 2 block + 3 observations, since the policy pads its own to whole blocks.
    Raises ArithmeticError if an output differs by more than 1e-5 max(1, |y|) and more than rounding explains.
    """
    policy = policy if _device(policy).type == "cpu" else copy.deepcopy(policy).cpu()
    generator, differences = np.random.default_rng(seed), Differences(policy, graph)
    sizes = (1, policy.block, policy.block + 1, 2 * policy.block + 3)
    steps = -(-OBSERVATIONS // sum(sizes))
    ties = sum(_compare_steps(rows, steps, reader, differences, generator) for rows in sizes)
    return Comparison(sum(sizes) * steps, differences.largest, differences.rounding, ties)


def _compare_steps(
    rows: int, steps: int, reader: Reader, differences: Differences, generator: np.random.Generator
) -> int:
    """Compare consecutive steps of `rows` environments. Returns the number of choices that differ, all ties."""
    policy, graph = differences.policy, differences.graph
    state, exported_state, ties = None, graph_state(graph, rows), 0
    for _ in range(steps):
        observation = observations(policy, rows, generator)
        expected, after = reference(graph, policy, observation, state)
        found = _read(reader, observation, exported_state, rows, differences.advice)
        choices = not isinstance(graph.action_space, Box)
        for name in graph.outputs:  # before the choices: differences of their scores decide about ties
            if name != "action" or not choices:
                differences.add(name, found[name], _part(graph, name, expected), observation, state)
        ties += _check_choices(graph, found["action"], expected, differences) if choices else 0
        state, exported_state = after, found.get(STATE)
    return ties


def _read(reader: Reader, observation: Any, state: Array | None, rows: int, advice: str) -> Outputs:
    """Compute the outputs of a batch. Raises ArithmeticError if the exported policy fails on it."""
    try:
        return reader(observation, state)
    except Exception as error:
        raise ArithmeticError(
            f"the exported policy differs from the policy: it fails with {rows} observations "
            f"({str(error).strip().splitlines()[-1]}); nothing was written. {advice}"
        ) from error


def _part(graph: Graph, name: str, outputs: Outputs) -> Array:
    """An output in the graph's form: for the state, the part that the exported outputs need."""
    return outputs[name][:, : graph.state_size] if name == STATE else outputs[name]


def _device(policy: Policy) -> torch.device:
    return next(policy.parameters()).device


def graph_state(graph: Graph, rows: int) -> Array | None:
    """The recurrent state of `rows` environments at the start of an episode."""
    return np.zeros((rows, graph.state_size), np.float32) if graph.state_size else None


def _check_choices(graph: Graph, found: Array, expected: Outputs, differences: Differences) -> int:
    """The number of choices that differ by ties. Raises ArithmeticError for other differences."""
    scores, rows = expected[graph.scores], len(found)
    chosen, wanted = (x.reshape(rows, -1).astype(int) for x in (found, expected["action"]))
    if isinstance(graph.action_space, MultiBinary):
        gap = np.abs(scores)
    else:
        gap = np.stack([_gap(scores, *component) for component in _components(graph, chosen, wanted)], 1)
    differs = chosen != wanted
    rounding = LAST_BITS * differences.rounding.get(graph.scores, 0.0)
    allowed = 2 * np.maximum(TOLERANCE * np.maximum(1, np.abs(scores).max(1, keepdims=True)), rounding)
    if (differs & (gap > allowed)).any():
        row = int(np.argmax((differs & (gap > allowed)).any(1)))
        raise ArithmeticError(
            f"the exported policy differs from the policy: it acts {chosen[row].tolist()} where the policy acts "
            f"{wanted[row].tolist()}, for {graph.scores} {scores[row].tolist()}. Nothing was written"
        )
    return int(differs.sum())


def _components(graph: Graph, chosen: Array, wanted: Array) -> list[tuple[int, Array, Array]]:
    """List of (position of its scores, chosen, wanted) for each component of an action. Both choices count from 0."""
    settings = next(node.settings for node in graph.nodes if node.operation == "argmax")
    begins = np.cumsum([0, *settings["sizes"][:-1]])
    return [
        (int(begin), chosen[:, k] - start, wanted[:, k] - start)
        for k, (begin, start) in enumerate(zip(begins, settings["starts"], strict=True))
    ]


def _gap(scores: Array, begin: int, chosen: Array, wanted: Array) -> Array:
    rows = np.arange(len(scores))
    return np.asarray(np.abs(scores[rows, begin + chosen] - scores[rows, begin + wanted]))


def observations(policy: Policy, rows: int, generator: np.random.Generator) -> Any:
    """Draw observations of a policy's space with sample(), and random action masks, some of which allow nothing."""
    found = sample(policy.observation_space, policy.encoder, rows, generator)
    if not getattr(policy, "masked", False):
        return found
    mask = found[ACTION_MASK] if isinstance(found, dict) else found[:, policy.observation_space.features :]  # type: ignore[attr-defined]
    mask[...] = (generator.random(mask.shape) < 0.5) & (generator.random((rows, 1)) < 0.9)
    return found


def sample(space: Space, encoder: Any, rows: int, generator: np.random.Generator) -> Any:
    """Draw observations of a space: normal with a normaliser's statistics, or uniform within narrow bounds, or standard
    normal."""
    if isinstance(encoder, RecurrentEncoder):
        encoder = encoder.encoder
    if isinstance(space, Dict | Tuple):
        encoders = dict(zip(encoder.names, encoder.members, strict=True)) if isinstance(encoder, DictEncoder) else {}
        found = [sample(member, encoders.get(name), rows, generator) for name, _, member in members(space)]
        return dict(zip(space, found, strict=True)) if isinstance(space, Dict) else tuple(found)
    assert space.shape is not None
    shape = (rows, *space.shape)
    if isinstance(space, Discrete):
        return generator.integers(space.start, space.start + space.n, shape)
    if isinstance(space, MultiDiscrete):
        return generator.integers(space.start, space.start + space.nvec, shape)
    if isinstance(space, MultiBinary):
        return generator.integers(0, 2, shape, np.int8)
    if is_image(space):
        return generator.integers(0, 256, shape, np.uint8)
    assert isinstance(space, Box)
    normal = generator.standard_normal(shape)
    if isinstance(encoder, VectorEncoder) and encoder.normalizer is not None:
        statistics = (encoder.normalizer.center, encoder.normalizer.scale)
        center, scale = (np.append(x.cpu().numpy(), np.ones(encoder.skipped)).reshape(space.shape) for x in statistics)
        return (center + normal / scale).astype(np.float32)  # of a FlatDict, the mask's entries are all allowed
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = (np.abs(low) < WIDE) & (np.abs(high) < WIDE)
    low, high = np.where(bounded, low, 0), np.where(bounded, high, 0)
    return np.where(bounded, generator.uniform(low, high, shape), normal).astype(np.float32)


@contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Disable oneDNN within this block: its Winograd convolutions differ from sums of products by up to 1e-4."""
    before = torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0])


@torch.no_grad()
@_exact_convolutions()
def reference(graph: Graph, policy: Any, observation: Any, state: Tensor | None) -> tuple[Outputs, Tensor | None]:
    """Compute the policy's own outputs, actions with predict() and others with its modules, and the next state."""
    whole = state  # with the state of exploration, which no exported output needs
    if state is not None:
        whole = torch.nn.functional.pad(state, (0, policy.state_width - state.shape[1]))
    action, _ = policy.predict(observation, whole)
    batch, _ = to_batch(policy.observation_space, observation, torch.device("cpu"))
    if graph.traced:
        name, found = traced.scores(policy, batch)
        return {"action": action, name: found.numpy(), **_value(graph, policy, batch, None)}, None
    before = policy.initial_state(len(action)) if state is None else state
    scores, after = REFERENCES[kind_of(policy)](policy, batch, before)
    if getattr(policy, "masked", False):
        mask = mask_of(policy.observation_space, batch)
        scores = forbid(scores, or_all(mask) if isinstance(policy, QNetwork | DiscreteActorQ) else mask)
    head = getattr(policy, "head", None)
    kind = "q_values" if isinstance(policy, QNetwork) else "mean" if isinstance(policy.action_space, Box) else "logits"
    if isinstance(head, StateStdHead):
        scores = scores[: head.num_parameters // 2]
    if isinstance(head, GaussianHead) and not head.squash:
        scores = torch.addcmul(head.center, scores, head.half_range)
    outputs = {"action": action, kind: scores.t().numpy(), **_value(graph, policy, batch, before)}
    return outputs | ({} if after is None else {STATE: after.numpy()}), after


def _value(graph: Graph, policy: Any, observation: Any, state: Any) -> Outputs:
    """The value, if the graph has one."""
    return {"value": policy.value(observation, state).unsqueeze(1).numpy()} if "value" in graph.outputs else {}


def _actor_critic(policy: Any, observation: Any, state: Any) -> tuple[Tensor, None]:
    return policy.actor_out(policy.actor(policy.encoder(observation))), None


def _recurrent(policy: RecurrentActorCritic, observation: Any, state: Tensor) -> tuple[Tensor, Tensor]:
    encoded = policy.encoder(observation)
    features, after = policy.rnn(torch.stack([trunk(encoded) for trunk in policy.trunks]), state)
    return policy.actor_out(features[0]), after


def _q_network(policy: QNetwork, observation: Any, state: Any) -> tuple[Tensor, Any]:
    features, after = step(policy.encoder, observation, state)
    return policy.values(features), after


def _actor_q(policy: ActorQ, observation: Any, state: Any) -> tuple[Tensor, Any]:
    encoded, after = step(policy.encoder, observation, state)
    return policy.actor_output(encoded)[: policy.action_size], after


def _discrete_actor_q(policy: DiscreteActorQ, observation: Any, state: Any) -> tuple[Tensor, Any]:
    encoded, after = step(policy.encoder, observation, state)
    return policy.actor_out(policy.actor(encoded)), after


REFERENCES: dict[type, Callable[[Any, Any, Any], tuple[Tensor, Any]]] = {
    ActorCritic: _actor_critic,
    AsymmetricActorCritic: _actor_critic,
    RecurrentActorCritic: _recurrent,
    QNetwork: _q_network,
    ActorQ: _actor_q,
    DiscreteActorQ: _discrete_actor_q,
}
