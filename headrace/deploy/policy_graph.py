"""Make the graph of a policy: one of Headrace's policies, without hooks and replaced modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.data.flat_dict import ACTION_MASK
from headrace.data.spaces import Dict, Space, Tuple, is_image, members
from headrace.deploy.graph import Graph, Value
from headrace.deploy.module_nodes import (
    act,
    activation,
    affine,
    batch_renorm,
    cell,
    choose,
    encode,
    forbid,
    layer,
    part,
    return_units,
    step,
    to_bounds,
)
from headrace.policies.actor_critic import ActorCritic, AsymmetricActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import kind_of
from headrace.policies.critics import NormalizedCritics
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.examination import examine
from headrace.policies.heads import SDE_LARGEST
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.policies.rnn import width


def describe(policy: Any, value: bool = False) -> Graph:
    """Make the graph of a policy's most likely actions and, with `value`, of its value in units of return.

    Raises TypeError for a policy or a module that is not Headrace's own, or was altered.
    """
    if isinstance(policy, GroupedPolicy):
        raise TypeError(
            f"the groups {', '.join(policy.groups)} have a policy each: export one of them, by --group or policy[group]"
        )
    if kind_of(policy) not in POLICIES:
        known = ", ".join(kind.__name__ for kind in POLICIES)
        raise TypeError(
            f"a {type(policy).__name__} cannot be exported by Headrace's own writers, which take {known}: use predict()"
        )
    altered = examine(policy).altered
    if altered:
        raise TypeError(
            f"the policy does not compute what its classes say, which alone Headrace's own writers export "
            f"({altered}): use predict()"
        )
    state_size, add = POLICIES[kind_of(policy)]
    graph = Graph(policy.observation_space, policy.action_space, state_size(policy, value), type(policy).__name__)
    add(graph, policy, _observation(graph, policy.observation_space), value)
    return graph


def _observation(graph: Graph, space: Space, keys: tuple[Any, ...] = ()) -> Any:
    """Add the inputs for a space: a Value, or a dict of them."""
    if isinstance(space, Dict | Tuple):
        return {name: _observation(graph, member, (*keys, key)) for name, key, member in members(space)}
    assert space.dtype is not None and space.shape is not None
    plain = space.dtype.kind in "iub" and (is_image(space) or not hasattr(space, "low"))
    return graph.add_input(space, keys, space.dtype if plain else np.float32)


def _mask(graph: Graph, policy: Any, observation: Any) -> Value | None:
    """The action mask in an observation; None if there is none."""
    if not policy.masked:
        return None
    if isinstance(observation, dict):
        mask: Value = observation[ACTION_MASK]
        return mask
    return part(graph, observation, policy.observation_space.features, *observation.shape)


def _actor_critic(graph: Graph, policy: Any, observation: Any, value: bool) -> None:
    encoded = encode(graph, policy.encoder, observation)
    features = layer(graph, policy.actor, encoded)
    act(graph, policy.head, layer(graph, policy.actor_out, features), _mask(graph, policy, observation))
    if value:
        features = features if policy.shared else layer(graph, policy.critic, encoded)
        critic = layer(graph, policy.critic_out, features)
        graph.outputs["value"] = return_units(graph, policy.return_normalizer, critic)


def _recurrent_actor_critic(graph: Graph, policy: Any, observation: Any, value: bool) -> None:
    """Add a recurrent actor-critic. Its state is the actor's, then the critic's with `value` and a separate critic."""
    encoded = encode(graph, policy.encoder, observation)
    states = []
    for copy in range(graph.state_size // policy.rnn.width):
        before = part(graph, graph.state, copy * policy.rnn.width, (copy + 1) * policy.rnn.width)
        features, after = cell(graph, policy.rnn, copy, layer(graph, policy.trunks[copy], encoded), before)
        states.append(after)
        if copy == 0:
            act(graph, policy.head, layer(graph, policy.actor_out, features), _mask(graph, policy, observation))
    joined = graph.add("concat", *states, shape=(graph.state_size,)) if len(states) > 1 else states[0]
    graph.outputs["state"] = joined
    if value:
        graph.outputs["value"] = return_units(
            graph, policy.return_normalizer, layer(graph, policy.critic_out, features)
        )


def _q_network(graph: Graph, policy: Any, observation: Any, value: bool) -> None:
    """Add a Q-network. The last operations of a dueling network are linear, and become one layer on the features of
    both branches. Means of quantiles are linear, too; the expectation of atoms is not."""
    features = layer(graph, policy.trunk, step(graph, policy.encoder, observation))
    if policy.branch is None:
        last = policy.out if policy.atoms is None else policy.out.of_all
        q_values = layer(graph, last, features)
    else:
        branches = [layer(graph, branch, features) for branch in (policy.value_branch, policy.branch)]
        size, weights = sum(branch.shape[0] for branch in branches), _dueling(policy)
        both = graph.add("concat", *branches, shape=(size,))
        q_values = graph.add("dense", both, shape=(len(weights["bias"]),), weights=weights)
    if policy.atoms is not None:
        shape, weights = (int(policy.action_space.n),), {"atoms": policy.atoms.flatten().cpu()}
        q_values = graph.add("expectation", q_values, shape=shape, weights=weights)
    q_values = forbid(graph, q_values, _mask(graph, policy, observation), or_all=True)
    graph.outputs |= {"action": choose(graph, q_values, policy.start), "q_values": q_values}
    if value:
        raise ValueError("a QNetwork has q_values, of which the largest is the value: leave out --value")


def _dueling(policy: Any) -> dict[str, Any]:
    """Weights of the joint last layer of a dueling network. Wang et al. 2016, arXiv:1511.06581, eq. 9."""
    parts = (policy.out, policy.value_out)
    if policy.atoms is not None:
        parts = tuple(part.of_all for part in parts)
    outputs = -1, len(parts[1].bias)  # actions, and logits of each
    (weight, bias), (of_value, bias_of_value) = (
        [getattr(part, name).detach().double().cpu().unflatten(0, outputs) for name in ("weight", "bias")]
        for part in parts
    )
    stacked = np.concatenate((of_value.expand(*weight.shape), weight - weight.mean(0)), 2)
    return {"weight": stacked.reshape(-1, stacked.shape[2]), "bias": (bias_of_value + bias - bias.mean(0)).flatten()}


def _discrete_actor_q(graph: Graph, policy: Any, observation: Any, value: bool) -> None:
    logits = layer(graph, policy.actor_out, layer(graph, policy.actor, step(graph, policy.encoder, observation)))
    logits = forbid(graph, logits, _mask(graph, policy, observation), or_all=True)
    graph.outputs |= {"action": choose(graph, logits, policy.start), "logits": logits}
    if value:
        raise ValueError("a DiscreteActorQ has a value for each action, and none to export: leave out --value")


def _actor_q(graph: Graph, policy: Any, observation: Any, value: bool) -> None:
    encoded = step(graph, policy.encoder, observation)
    output = layer(graph, policy.actor_out, layer(graph, policy.actor, encoded))
    mean = part(graph, output, 0, policy.action_size)
    if policy.use_sde:
        edges = {"low": np.full(mean.shape, -SDE_LARGEST), "high": np.full(mean.shape, SDE_LARGEST)}
        mean = graph.add("clip", mean, shape=mean.shape, weights=edges)
    normalized = activation(graph, "tanh", mean)
    action = affine(graph, normalized, policy.half_range.cpu(), policy.center.cpu())
    graph.outputs |= {"action": to_bounds(graph, action), "mean": mean}
    if value:
        graph.outputs["value"] = _value_of_critics(graph, policy, encoded, normalized)


def _value_of_critics(graph: Graph, policy: Any, encoded: Value, action: Value) -> Value:
    """The smallest of the critics' values, or their mean if they are means of quantiles."""
    both = graph.add("concat", encoded, action, shape=(encoded.shape[0] + action.shape[0],))
    values = [_critic(graph, policy, critic, both) for critic in range(policy.critics.number)]
    if len(values) == 1:
        return values[0]
    if policy.quantiles == 1 or policy.atoms is not None:
        return graph.add("minimum", *values, shape=(1,))
    weights = {"weight": np.full((1, len(values)), 1 / len(values)), "bias": np.zeros(1)}
    return graph.add("dense", graph.add("concat", *values, shape=(len(values),)), shape=(1,), weights=weights)


def _critic(graph: Graph, policy: Any, critic: int, x: Value) -> Value:
    """The value of one critic. For quantiles it is their mean: the last layer's outputs are averaged."""
    critics, atoms = policy.critics, policy.atoms
    norms = getattr(critics, "norms", None)
    x = x if norms is None else batch_renorm(graph, norms[0], x, critic)
    for number, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True), 1):
        last, weights = number == len(critics.weights), {"weight": weight[critic].t(), "bias": bias[critic, 0]}
        if last and atoms is None:
            weights = {name: w.mean(0, keepdim=True) for name, w in weights.items()}
        x = graph.add("dense", x, shape=(len(weights["bias"]),), weights=weights)
        if not last:
            x = activation(graph, critics.activation, _normalized(graph, critics, critic, number - 1, x))
            x = x if norms is None else batch_renorm(graph, norms[number], x, critic)
    return x if atoms is None else graph.add("expectation", x, shape=(1,), weights={"atoms": atoms.cpu()})


def _normalized(graph: Graph, critics: Any, critic: int, number: int, x: Value) -> Value:
    """The pre-activations of a critic's hidden layer, normalised if the critic does so."""
    if not isinstance(critics, NormalizedCritics):
        return x
    kinds = {"weight": critics.gains, "bias": critics.shifts}
    weights = {name: of_layers[number][critic, 0] for name, of_layers in kinds.items() if len(of_layers)}
    return graph.add(f"{critics.norm}_norm", x, shape=x.shape, weights=weights, epsilon=1e-5)


def _no_state(policy: Any, value: bool) -> int:
    return 0


def _actor_state(policy: Any, value: bool) -> int:
    """Width of the state of the actor's cell and, with `value`, of the critic's."""
    return policy.state_width if value else policy.rnn.width  # type: ignore[no-any-return]


def _encoder_state(policy: Any, value: bool) -> int:
    return width(policy.encoder)


# width of the state, and what adds the nodes
POLICIES: dict[type, tuple[Callable[[Any, bool], int], Callable[[Graph, Any, Any, bool], None]]] = {
    ActorCritic: (_no_state, _actor_critic),
    AsymmetricActorCritic: (_no_state, _actor_critic),
    RecurrentActorCritic: (_actor_state, _recurrent_actor_critic),
    QNetwork: (_encoder_state, _q_network),
    ActorQ: (_encoder_state, _actor_q),
    DiscreteActorQ: (_encoder_state, _discrete_actor_q),
}
