"""Losses of tasks that have symmetries: minibatches with mirrored rows, and a mirror loss. Mittal et al. 2024,
arXiv:2403.04359."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from headrace.algorithms.on_policy import Batch, Loss
from headrace.algorithms.ppo import ppo_loss
from headrace.data.rollout import Group
from headrace.policies.base import Policy

Mirror: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]  # observations and actions -> the same, mirrored


def symmetric(*mirrors: Mirror, augment: bool = True, mirror_coef: float = 0.0, loss: Loss = ppo_loss) -> Loss:
    """A loss of minibatches that also have their rows mirrored: the mean over the rows as they are and by each mirror.

    mirrors: each takes observations and actions of rows, and returns them mirrored, of equal shapes; of a Dict a dict
    of the members that change. A mirrored row has the advantage, the return and the probability of its row. augment:
    False leaves mirrored rows out. mirror_coef: weight of the mirror loss, the mean square by which the likeliest
    actions at mirrored observations differ from the mirrored ones, in their units; its metric is `symmetry_loss`. loss:
    that of the rows, such as ppo_loss.
    Raises ValueError for mirrors of other shapes, TypeError for none, for recurrent policies, and
    for a mirror loss of actions that are choices.
    """
    if not mirrors or not all(callable(mirror) for mirror in mirrors):
        raise TypeError(f"symmetric() takes functions (observation, action) -> both mirrored, and was given {mirrors}")

    def mirrored_too(policy: Policy, batch: Batch, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if mirror_coef and not batch["action"].is_floating_point():
            raise TypeError("mirror_coef is for actions of a Box, which are numbers: leave it out")
        total, metrics = loss(policy, batch, config)
        share = 1 / (1 + augment * len(mirrors))
        total, error = total * share, 0.0 * total
        for mirror in mirrors:
            inputs, action = _mirrored(mirror, policy, batch["inputs"], batch["action"])
            if augment:
                total = total + share * loss(policy, batch | {"inputs": inputs, "action": action}, config)[0]
            if mirror_coef:
                likeliest = [policy.distribution(seen).mode() for seen in (batch["inputs"], inputs)]  # type: ignore[operator]
                wanted = mirror(batch["inputs"], likeliest[0])[1].detach()
                error = error + (likeliest[1] - wanted).square().mean(1) @ batch["weight"] / len(mirrors)
        return total + mirror_coef * error, metrics | ({"symmetry_loss": error.detach()} if mirror_coef else {})

    return mirrored_too


def _mirrored(mirror: Mirror, policy: Policy, inputs: Any, action: Tensor) -> tuple[Any, Tensor]:
    """Mirrored observations and actions of rows."""
    if policy.sequence_length != 1:
        raise TypeError("symmetric() mirrors rows, and a recurrent policy learns from sequences: use recurrent='none'")
    found = mirror(inputs, action)
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(f"a mirror of symmetric() gave {type(found).__name__}: return (observation, action)")
    seen, action_seen = found
    if isinstance(seen, Mapping) and isinstance(inputs, Group):
        seen = Group({**dict(inputs), **seen})
    for what, before, after in (("observations", inputs, seen), ("actions", action, action_seen)):
        if (shapes := _shapes(before)) != (others := _shapes(after)):
            raise ValueError(f"a mirror of symmetric() gave {what} {others} for {shapes}: keep names and shapes")
    return seen, action_seen


def _shapes(value: Any) -> Any:
    """The shape of a tensor, of each member of a Dict; the kind of what is none."""
    if isinstance(value, Group):
        return {name: _shapes(member) for name, member in value}
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
