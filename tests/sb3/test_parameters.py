"""get_parameters() and set_parameters(): Stable-Baselines3's names, and models that refused tensors do not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.sb3 import A2C, DDPG, DQN, PPO, QRDQN, SAC, TD3, TQC, TRPO, CrossQ

ONE = {"policy", "policy.optimizer"}
TWO = {"policy", "actor.optimizer", "critic.optimizer"}
NAMES = [
    *((kind, {}, ONE) for kind in (PPO, A2C, TRPO, DQN, QRDQN)),
    *((kind, {}, TWO) for kind in (TD3, DDPG)),
    *((kind, {}, TWO | {"ent_coef_optimizer"}) for kind in (SAC, TQC, CrossQ)),
    *((kind, {"ent_coef": 0.1}, TWO) for kind in (SAC, TQC, CrossQ)),
]
NETWORKS = {"policy_kwargs": {"net_arch": [8]}, "device": "cpu"}


def made(kind: Any, seed: int, **arguments: Any) -> Any:
    env = "CartPole-v1" if kind in (DQN, QRDQN, PPO, A2C) else "Pendulum-v1"
    replay = {"buffer_size": 200, "learning_starts": 8, "batch_size": 8}
    own = {"n_steps": 16} if kind in (PPO, A2C, TRPO) else replay
    return kind("MlpPolicy", env, seed=seed, **NETWORKS | own | arguments)


def flat(parts: dict[str, dict[str, torch.Tensor]]) -> torch.Tensor:
    return torch.cat([x.detach().flatten().double() for part in parts.values() for x in part.values()])


@pytest.mark.parametrize(("kind", "arguments", "names"), NAMES)
def test_parts_have_stable_baselines3s_names(kind, arguments, names):
    model, other = (made(kind, seed, **arguments) for seed in (0, 1))
    model.learn(32)
    parts = model.get_parameters()
    assert parts.keys() == names and not torch.equal(flat(parts), flat(other.get_parameters()))
    other.set_parameters(parts)
    assert torch.equal(flat(parts), flat(other.get_parameters()))
    with pytest.raises(ValueError, match=f"expected {', '.join(parts)}, got policy, optimizer; exact_match"):
        other.set_parameters({"policy": parts["policy"], "optimizer": {}})


@pytest.mark.parametrize("kind", [PPO, SAC])
@pytest.mark.parametrize("exact", [True, False])
def test_tensors_that_do_not_fit_leave_all_as_they_were(kind, exact):
    model, before = made(kind, 0), flat(made(kind, 0).get_parameters())
    changed = {part: {name: x + 1 for name, x in own.items()} for part, own in model.get_parameters().items()}
    for part in changed:
        name = [*changed[part]][-1]
        wide = changed | {part: changed[part] | {name: torch.zeros(3, 5)}}
        with pytest.raises(RuntimeError, match=rf"{part} has other tensors .*: {name} is \[3, 5\], and \[.*\] here"):
            model.set_parameters(wide, exact_match=exact)
        unknown = changed | {part: changed[part] | {"unknown": torch.zeros(1)}}
        with pytest.raises(RuntimeError, match=r"unknown is \[1\], and none here"):
            model.set_parameters(unknown, exact_match=exact)
        assert torch.equal(flat(model.get_parameters()), before)
    model.set_parameters({"policy": changed["policy"]}, exact_match=False)
    assert torch.equal(flat({"policy": model.get_parameters()["policy"]}), flat({"policy": changed["policy"]}))
