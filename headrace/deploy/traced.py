"""Export policies of user classes, which policy_graph cannot describe, by tracing with torch.onnx."""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core.fused import plain_only
from headrace.core.packages import require
from headrace.data.rollout import Group
from headrace.data.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    Tuple,
    bounds,
    members,
    observation_column,
    to_json,
)
from headrace.deploy.graph import Graph, Node, Value
from headrace.deploy.onnx_writer import BATCH, NEEDED, OPSET
from headrace.policies.actor_critic import ActorCritic, AsymmetricActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.distributions import Bernoulli, Categorical, MultiCategorical, SquashedGaussian
from headrace.policies.masks import forbid, mask_of, or_all
from headrace.policies.q_network import QNetwork


def traceable(policy: Any) -> bool:
    """Tell whether trace() supports a policy: its class is derived from one of Headrace's, without recurrent state."""
    known = ActorCritic | AsymmetricActorCritic | QNetwork | ActorQ | DiscreteActorQ
    return isinstance(policy, known) and policy.recurrent == "none"


def scores(policy: Any, observation: Any) -> tuple[str, Tensor]:
    """The name of the scores from which actions are computed, and the scores [N, K] of N observations."""
    if isinstance(policy, ActorQ):
        return "mean", policy.actor_output(policy.encoder(observation))[: policy.action_size].t()
    if isinstance(policy, QNetwork):
        values = policy(observation)
        if policy.masked:
            values = forbid(values, or_all(mask_of(policy.observation_space, observation)))
        return "q_values", values.t()
    found = policy.distribution(observation)
    match found:
        case Categorical():
            return "logits", found.log_probs.t()
        case MultiCategorical():
            return "logits", torch.cat([part.log_probs for part in found.parts]).t()
        case Bernoulli():
            return "logits", found.logits.t()
        case SquashedGaussian():
            return "mean", found.normal.mean.t()
    return "mean", found.mean.t()


class _MostLikely(nn.Module):
    """The outputs of a graph, from the parts of N observations in the order of its inputs."""

    def __init__(self, policy: Any, graph: Graph) -> None:
        super().__init__()
        self.policy, self.graph = policy, graph

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        policy = self.policy
        observation = _joined(self.graph.observation_space, iter(parts))
        action, _ = policy.most_likely(observation, None)
        found = {"action": self._bounded(action)} | dict([scores(policy, observation)])
        if "value" in self.graph.outputs:
            found["value"] = policy.value(observation).unsqueeze(1)
        return tuple(found[name] for name in self.graph.outputs)

    def _bounded(self, action: Tensor) -> Tensor:
        """Actions in the space's dtype and bounds, as headrace.policies.numpy_io has them."""
        space = self.graph.action_space
        if isinstance(space, Box):
            low, high = (torch.tensor(end, dtype=torch.float32) for end in bounds(space))
            action = torch.minimum(torch.maximum(action, low), high)
            action = action if space.dtype.kind == "f" else action.round()
        return action.to(getattr(torch, str(space.dtype)))


def trace(policy: Any, value: bool) -> tuple[Graph, bytes]:
    """Make a graph without operations, and the ONNX model. Raises ValueError if torch.onnx cannot export an operation,
    ImportError without the package onnx."""
    require("onnx", NEEDED)
    policy = copy.deepcopy(policy).cpu().eval()
    for part in policy.modules():
        if isinstance(part, Policy):
            part.__dict__["block"] = 1  # padding to whole blocks would fix the number of rows in the model
    graph = Graph(policy.observation_space, policy.action_space, 0, type(policy).__name__, traced=True)
    example = _inputs(graph, policy.observation_space, 3 * policy.block)
    if isinstance(policy, QNetwork) and value:
        raise ValueError("a QNetwork has q_values, of which the largest is the value: leave out --value")
    with torch.no_grad():
        name, found = scores(policy, _joined(graph.observation_space, iter(example)))
    graph.outputs["action"] = Value("action", tuple(graph.action_space.shape or ()))
    graph.outputs[name] = Value(name, (found.shape[1],))
    if value:
        graph.outputs["value"] = Value("value", (1,))
    _note_choices(graph)
    return graph, _with_spaces(_export(_MostLikely(policy, graph), example), graph)


def _export(module: _MostLikely, example: list[Tensor]) -> bytes:
    graph, file = module.graph, io.BytesIO()
    names = [part.value.name for part in graph.inputs], [*graph.outputs]
    axes = {name: {0: BATCH} for part in names for name in part}
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation that ONNX does not have
    try:
        with warnings.catch_warnings(), plain_only(), torch.no_grad():
            warnings.simplefilter("ignore")  # of constants: the file is compared with the policy, in other batches
            options: dict[str, Any] = {"opset_version": OPSET, "dynamic_axes": axes, "dynamo": False}
            torch.onnx.export(module, tuple(example), file, input_names=names[0], output_names=names[1], **options)  # type: ignore[arg-type]
    except Exception as error:
        raise ValueError(
            f"torch.onnx cannot export this {graph.described}: {str(error).splitlines()[0]}; write that operation by "
            "others, or serve policy.predict()"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_attention)
    return file.getvalue()


def _inputs(graph: Graph, space: Space, rows: int, keys: tuple[Any, ...] = ()) -> list[Tensor]:
    """Append the inputs for a space; returns an observation of zeros for each."""
    if isinstance(space, Dict | Tuple):
        return [x for _, key, member in members(space) for x in _inputs(graph, member, rows, (*keys, key))]
    zeros = torch.zeros(rows, *(space.shape or ()), dtype=observation_column(space).dtype)  # type: ignore[union-attr]
    graph.add_input(space, keys, zeros.numpy().dtype)
    return [zeros]


def _joined(space: Space, parts: Iterator[Tensor]) -> Any:
    """Observations as policies take them."""
    if isinstance(space, Dict | Tuple):
        return Group({name: _joined(member, parts) for name, _, member in members(space)})
    return next(parts)


def _note_choices(graph: Graph) -> None:
    """Record in the graph which scores belong to which choice, for the comparison."""
    space = graph.action_space
    if isinstance(space, Discrete):
        settings: dict[str, Any] = {"sizes": [int(space.n)], "starts": [int(space.start)]}
    elif isinstance(space, MultiDiscrete):
        settings = {"sizes": space.nvec.tolist(), "starts": space.start.tolist()}
    else:
        return
    graph.nodes.append(Node("argmax", (), graph.outputs["action"], {}, settings))


def _with_spaces(content: bytes, graph: Graph) -> bytes:
    import onnx

    model = onnx.load_from_string(content)
    spaces = {"observation_space": graph.observation_space, "action_space": graph.action_space}
    onnx.helper.set_model_props(model, {name: json.dumps(to_json(space)) for name, space in spaces.items()})
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
