"""Adam on a flat buffer against torch's own."""

import pytest
import torch

from headrace.algorithms.adam import Adam


@pytest.mark.parametrize(("max_norm", "betas"), [(0.1, (0.9, 0.999)), (1e6, (0.5, 0.9))])
def test_steps_equal_torch(max_norm, betas):
    shapes = [(4, 3), (4,), (1, 4)]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    ours = [torch.nn.Parameter(x.clone()) for x in start]
    theirs = [torch.nn.Parameter(x.clone()) for x in start]
    flat = Adam(ours, 1e-2, 1e-5, *betas)
    reference = torch.optim.Adam(theirs, 1e-2, betas, eps=1e-5)
    for _ in range(10):
        for a, b in zip(ours, theirs, strict=True):
            b.grad = torch.randn(a.shape, generator=generator)
            a.grad += b.grad
        torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        reference.step()
        flat.step(max_norm)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not flat.gradient.any() and flat.steps == 10


def test_parameters_stay_views_of_the_buffer():
    layer = torch.nn.Linear(3, 2)
    values = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()])
    adam = Adam(layer.parameters(), 1e-3)
    assert torch.equal(adam.flat, values)
    layer(torch.ones(1, 3)).sum().backward()
    assert adam.gradient.tolist() == [1.0] * 8
    adam.flat.zero_()
    assert not layer.weight.any()


def test_a_skipped_step_moves_nothing():
    parameter = torch.nn.Parameter(torch.ones(3))
    adam = Adam([parameter], 1e-2)
    parameter.grad += 1
    adam.step(1.0, skip=torch.ones(()))
    assert torch.equal(adam.flat, torch.ones(3)) and adam.steps == 0 and not adam.mean.any()
    parameter.grad += 1
    adam.step(1.0, skip=torch.zeros(()))
    assert adam.steps == 1 and (adam.flat < 1).all()
