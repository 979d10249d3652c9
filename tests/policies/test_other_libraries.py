"""Members under the names of Stable-Baselines3's policies: their values against PyTorch's distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch import distributions

from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.other_libraries import INSTEAD, METHODS

SPACE = Box(-1, 1, (3,), np.float32)
ACTIONS = {
    "Discrete": Discrete(4),
    "MultiDiscrete": MultiDiscrete([2, 3]),
    "MultiBinary": MultiBinary(3),
    "Box": Box(np.array([-20, 0], np.float32), np.array([20, 10], np.float32)),
}


def policy(actions, seed=0):
    made = ActorCritic(
        SPACE, actions, hidden=(8,), distribution="unit_gaussian" if isinstance(actions, Box) else "auto"
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return made


@pytest.mark.parametrize("name", ACTIONS)
def test_values_and_likelihoods_are_those_of_pytorch(name):
    made = policy(ACTIONS[name])
    observation, batch = made.obs_to_tensor(np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3))
    assert batch and observation.shape == (5, 3)
    found = made.get_distribution(observation)
    torch.manual_seed(0)
    actions = found.get_actions()
    values, log_prob, entropy = made.evaluate_actions(observation, actions)
    expected = found.distribution
    if name == "MultiDiscrete":
        assert all(isinstance(part, distributions.Categorical) for part in expected)
        true = torch.stack([part.log_prob(actions[:, i]) for i, part in enumerate(expected)]).sum(0)
        true_entropy = torch.stack([part.entropy() for part in expected]).sum(0)
    else:
        kinds = {
            "Discrete": distributions.Categorical,
            "Box": distributions.Normal,
            "MultiBinary": distributions.Bernoulli,
        }
        assert type(expected) is kinds[name]
        true, true_entropy = expected.log_prob(actions.float()), expected.entropy()
        true, true_entropy = (x if name == "Discrete" else x.sum(1) for x in (true, true_entropy))
    torch.testing.assert_close(log_prob, true)
    torch.testing.assert_close(found.log_prob(actions), true)
    torch.testing.assert_close(entropy, true_entropy)
    assert torch.equal(values, made.predict_values(observation))
    torch.testing.assert_close(values[:, 0], made.value(observation))
    assert values.shape == (5, 1) and values.requires_grad and log_prob.requires_grad
    torch.testing.assert_close(found.get_actions(deterministic=True), made.act(observation, None, None).action)
    drawn = torch.stack([found.sample().float() for _ in range(4000)])
    means = {"Discrete": lambda: expected.probs @ torch.arange(4.0), "MultiDiscrete": lambda: None}
    if (mean := means.get(name, lambda: expected.mean)()) is not None:
        assert (drawn.mean(0) - mean).abs().max() < 0.1


def test_observations_are_told_from_batches():
    made = policy(Discrete(2))
    assert made.is_vectorized_observation(np.zeros((2, 3))) and not made.is_vectorized_observation(np.zeros(3))
    with pytest.raises(ValueError, match="shape"):
        made.obs_to_tensor(np.zeros(4))
    of_dict = ActorCritic(Dict(a=SPACE, b=Discrete(3)), Discrete(2), hidden=(8,))
    tensors, batch = of_dict.obs_to_tensor({"a": np.zeros(3), "b": 1})
    assert not batch and of_dict.predict_values(tensors).shape == (1, 1)


def test_actions_are_scaled_to_their_bounds():
    made = ActorQ(SPACE, ACTIONS["Box"], hidden=(8,))
    np.testing.assert_allclose(made.scale_action(np.array([[-20, 10], [0, 5]])), [[-1, 1], [0, 0]])
    np.testing.assert_allclose(made.unscale_action(np.array([[-1, 1], [0.5, 0]])), [[-20, 10], [10, 5]])
    assert made.net_arch == [8]
    made.set_training_mode(False)
    assert not made.training
    made.set_training_mode(True)
    assert made.training


def test_a_squashed_distribution_has_none_of_pytorch():
    squashed = ActorCritic(SPACE, ACTIONS["Box"], hidden=(8,), distribution="squashed")
    found = squashed.get_distribution(torch.zeros(2, 3))
    assert found.mode().shape == (2, 2)
    with pytest.raises(TypeError, match=r"SquashedGaussian is no distribution of PyTorch: use log_prob\(\)"):
        _ = found.distribution


def test_a_policy_of_ones_own_keeps_its_members():
    class Own(ActorCritic):
        net_arch = "own"

        def predict_values(self, observation):
            return "own"

    own = Own(SPACE, Discrete(2), hidden=(8,))
    assert own.predict_values(None) == own.net_arch == "own"
    own.optimizer = "own"
    assert own.optimizer == "own" and not METHODS.keys() & INSTEAD.keys()
    with pytest.raises(AttributeError, match=r"^Own has no attribute 'wrong_name'$"):
        _ = own.wrong_name
