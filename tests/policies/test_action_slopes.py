"""Slopes of actors' last functions in float32 against float64, also where the action rounds to a bound."""

import pytest
import torch

from headrace.policies.actor_q import InvertedTanh
from headrace.policies.distributions import Tanh, sample_squashed

OUTPUTS = torch.cat((torch.linspace(-25, 25, 401), torch.tensor([8.99, 9.01, -9.01, 40.0, -100.0, float("nan")])))


def exact(gradient):
    x = OUTPUTS.double().requires_grad_()
    (x.tanh() * gradient).sum().backward()
    slope = 1 / x.detach().cosh() ** 2  # float64's own output rounds to 1 at 19
    near = x.detach().abs() < 15
    torch.testing.assert_close(x.grad[near], (gradient * slope)[near], rtol=1e-3, atol=0)
    return gradient * slope


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_slopes_hold_where_the_action_is_at_its_bound(sign):
    for function in (Tanh, InvertedTanh):
        x = OUTPUTS.clone().requires_grad_()
        action = function.apply(x)
        action.backward(torch.full_like(x, sign))
        wanted = exact(torch.full_like(x, sign).double())
        if function is InvertedTanh:
            wanted = torch.where(OUTPUTS * sign > 0, torch.tensor(sign).double(), wanted)
        torch.testing.assert_close(x.grad.double(), wanted, rtol=1e-5, atol=1e-38, equal_nan=True)
        assert torch.equal(action.detach().nan_to_num(7), OUTPUTS.tanh().nan_to_num(7))


def test_a_squashed_samples_action_has_that_slope():
    parameters = torch.tensor([[9.3, -9.7, 12.0], [-20.0, -20.0, -20.0]], requires_grad=True)
    action, _ = sample_squashed(parameters, torch.zeros(1, 3))
    action.sum().backward()
    wanted = 1 / torch.tensor([9.3, -9.7, 12.0], dtype=torch.float64).cosh() ** 2
    torch.testing.assert_close(parameters.grad[0].double(), wanted, rtol=1e-5, atol=0)
