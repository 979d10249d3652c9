"""state_std: deviations of actions that are outputs of the network."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

import headrace as hr
from headrace.core import fused
from headrace.data.spaces import Box, Discrete
from headrace.policies.heads import action_head
from headrace.training.config import read_toml

SPACE = Box(-1.0, 3.0, (2,))
OPTIONS = {"num_envs": 8, "num_steps": 16, "minibatch_size": 64, "epochs": 2, "hidden": (16,), "total_steps": 512}
OPTIONS |= {"progress": "none", "registered": False, "state_std": True}


@pytest.mark.parametrize("distribution", ["gaussian", "unit_gaussian"])
def test_each_row_has_its_own_normal(distribution):
    head = action_head(SPACE, distribution, state_std=True)
    torch.nn.init.constant_(head.log_std, -0.5)
    outputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    center, half = (1.0, 2.0) if distribution == "gaussian" else (0.0, 1.0)
    wanted = Normal(center + half * outputs[:2], half * (outputs[2:] - 0.5).exp())
    found, action = head(outputs), torch.rand(5, 2)
    torch.testing.assert_close(found.log_prob(action), wanted.log_prob(action.t()).sum(0))
    torch.testing.assert_close(found.entropy(), wanted.entropy().sum(0))
    sample = found.sample(torch.rand(5, 2, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(found.mode(), wanted.mean.t())
    assert sample.shape == (5, 2) and not torch.allclose(sample, found.mode())
    other = head(outputs.flip(1))
    divergence = torch.distributions.kl_divergence(wanted, Normal(wanted.mean.flip(1), wanted.stddev.flip(1))).sum(0)
    torch.testing.assert_close(found.kl(other), divergence)


def test_squashed_actions_have_it_before_tanh():
    head = action_head(SPACE, "squashed", state_std=True)
    outputs = 0.5 * torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    action, normal = torch.rand(5, 2) * 3 - 0.5, Normal(outputs[:2], outputs[2:].exp())
    x = ((action.t() - 1) / 2).atanh()
    wanted = (normal.log_prob(x) - (2 * (1 - x.tanh() ** 2)).log()).sum(0)
    torch.testing.assert_close(head(outputs).log_prob(action), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_it_learns_compiled_as_plain_resumes_and_exports(tmp_path, recurrent):
    ends = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = hr.Trainer("ppo", "Pendulum-v1", **OPTIONS, recurrent=recurrent)
            trainer.iterate()
            trainer.iterate()
            ends.append(trainer.algorithm.optimizer.flat.clone())
            assert trainer.policy.actor_out.weight.shape[0] == 2
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4)
    run = hr.train("ppo", "Pendulum-v1", **OPTIONS, recurrent=recurrent, save_freq=128, log_folder=str(tmp_path))
    assert read_toml(run.path / "config.toml")["state_std"] is True
    again = hr.train(resume=next(run.path.glob("step_2*")), progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
    hr.export(run, to="numpy", output=tmp_path / "policy.py")  # which compares their outputs


def test_other_actions_and_noise_are_refused():
    with pytest.raises(ValueError, match="state_std is for actions of a Box, and these are"):
        hr.ActorCritic(SPACE, Discrete(3), state_std=True)
    with pytest.raises(ValueError, match="state_std does not go with use_sde"):
        hr.ActorCritic(SPACE, SPACE, state_std=True, use_sde=True)
