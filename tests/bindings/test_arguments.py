"""Arguments that a kernel cannot read go to the plain function, which converts them or says what is wrong."""

import pytest
import torch
from helpers.fused_calls import BOX, CHOICES, ENVS, call, on_policy

from headrace.algorithms import ppo
from headrace.bindings import arguments, rng_returns_cuda
from headrace.core import fused, rng
from headrace.core.returns import gae
from headrace.policies.actor_critic import ActorCritic


def double(x):
    return x.double()


def changed(values, place, change):
    return [change(x) if k == place else x for k, x in enumerate(values)]


def served(function, values, name=""):
    with torch.set_grad_enabled(not name.startswith(("actor_critic", "collector"))):
        return fused.kernel_of(function, *values) is not None


# name, the argument's place, and a change that the kernel would not notice
MISFITS = [
    *(("returns.gae", place, double) for place in range(3)),
    *(("returns.gae", place, lambda x: x[:, :1]) for place in range(5)),
    *(("returns.gae", place, change) for place in (3, 4) for change in (torch.Tensor.int, double)),
    ("returns.gae", 5, lambda _: torch.full((ENVS,), 0.9)),
    ("returns.gae", 1, torch.Tensor.requires_grad_),
    ("returns.explained_variance", 0, double),
    ("returns.explained_variance", 1, lambda x: x[:1]),
    ("returns.explained_variance", 2, lambda x: x[:2]),
    ("returns.explained_variance", 2, torch.Tensor.int),
    ("rng.uniform", 7, lambda _: 2**32 - 1),
    ("rng.uniform", 2, lambda _: torch.tensor(3)),
    ("rnn.sequence", 1, lambda x: x[..., :2]),
    ("rnn.sequence", 1, lambda x: x[:, :, :0]),
    ("rnn.sequence", 1, double),
    ("rnn.sequence", 2, lambda x: x[:2]),
    ("rnn.sequence", 2, lambda x: x[:, :8]),
    ("rnn.sequence", 2, double),
    ("rnn.sequence", 3, lambda x: x[:, :3]),
    ("rnn.sequence", 3, lambda x: x[:3]),
    ("actor_critic.act", 1, double),
    ("actor_critic.act", 1, lambda x: x[:, :4]),
    ("actor_critic.act", 1, lambda x: x[:0]),
    ("actor_critic.act", 3, lambda x: x[:3]),
    ("actor_critic.act", 3, lambda x: x[:, :1]),
    ("actor_critic.act", 3, double),
    ("actor_critic.value", 1, torch.Tensor.int),
    ("collector.steps", 1, torch.tensor),
]


@pytest.mark.parametrize(
    ("name", "place", "change"), MISFITS, ids=[f"{n}-{k}-{i}" for i, (n, k, _) in enumerate(MISFITS)]
)
def test_a_misfit_is_not_served(name, place, change, capsys):
    function, values = call(name)
    values += [0] * (place == 7)
    assert served(function, values, name)
    assert not served(function, changed(values, place, change), name)


def test_flags_of_another_shape_are_an_error_and_other_numbers_give_what_the_plain_function_gives():
    _, values = call("returns.gae")
    with pytest.raises(ValueError, match=r"terminated has shape \(6, 1\), reward \(6, 8\)"):
        gae(*changed(values, 3, lambda x: x[:, :1]))
    found = gae(*changed(values, 0, double))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), gae(*values))


def test_an_order_beyond_the_rollout_is_an_error():
    values = on_policy()
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        ppo.learn(*changed(values, 4, lambda order: order + 1))


@pytest.mark.parametrize("space", [BOX, CHOICES])
def test_columns_that_do_not_lie_side_by_side_are_read_at_each_call(space):
    """The second rollout's actions, log-likelihoods and values, not the first one's."""
    learners = []
    for plain in (False, True):
        policy, optimizer, rollout, targets, order, config = on_policy(space)
        for name in ("action", "log_prob", "value"):
            column = getattr(rollout, name)
            wide = torch.zeros(*column.shape, 2, dtype=column.dtype)[..., 0].copy_(column)
            object.__setattr__(rollout, name, wide)
            assert getattr(rollout, name) is wide and not wide.is_contiguous()
        for _ in range(2):
            with fused.plain_only() if plain else torch.enable_grad():
                ppo.learn(policy, optimizer, rollout, targets, order, config)
            rollout.action.copy_(rollout.action.flip(0))
            rollout.log_prob.sub_(0.2)
            rollout.value.add_(0.5)
        learners.append(optimizer.flat)
    torch.testing.assert_close(*learners, rtol=0, atol=1e-5)


def test_observations_that_are_put_together_wrongly_are_an_error():
    from headrace.data.rollout import Group
    from headrace.data.spaces import Box, Dict

    space = Dict({"a": Box(-1, 1, (3,)), "b": Box(-1, 1, (2,))})
    policy = ppo.PPO(ActorCritic(space, CHOICES, (16, 16))).policy
    for a, b in ((torch.zeros(4, 2), torch.zeros(4, 2)), (torch.zeros(4, 3), torch.zeros(4, 2).double())):
        with torch.no_grad(), pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|same dtype"):
            policy.act(Group({"a": a, "b": b}), None, None)


def test_gpu_kernels_ask_the_same(monkeypatch):
    _, values = call("returns.gae")
    assert not rng_returns_cuda._columns(*values)
    fit = arguments.gae_columns_fit
    monkeypatch.setattr(rng_returns_cuda, "gae_columns_fit", lambda _, *rest: fit("cpu", *rest))
    assert rng_returns_cuda._columns(*values)
    for place, change in ((1, double), (2, lambda x: x[:, :1]), (3, torch.Tensor.int), (4, lambda x: x[:1])):
        assert not rng_returns_cuda._columns(*changed(values, place, change))
    numbers = (1, rng.Purpose.ACTION, 0, 4, ENVS, 6, "cuda")
    assert rng_returns_cuda._draws(*numbers)
    for place, wrong in ((0, 1.5), (2, -1), (2, torch.zeros(2)), (3, 0), (4, 2**33), (6, "cpu")):
        assert not rng_returns_cuda._draws(*changed(numbers, place, lambda _, wrong=wrong: wrong))
