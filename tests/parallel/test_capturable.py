"""Each thing that no CUDA graph can hold is found, on the CPU, with its line; and what one can hold is left alone."""

from __future__ import annotations

import gc
import re

import pytest
import torch

from headrace import envs
from headrace.algorithms import on_policy
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.core.returns import gae
from headrace.parallel.collector import InlineCollector
from headrace.parallel.cuda.capturable import Capturable, NotCapturable

X = torch.arange(6.0)

FORBIDDEN = {
    "item": (lambda: X.sum().item(), "item() waits for the device"),
    "float": (lambda: float(X.sum()), "waits"),
    "a condition": (lambda: 1 if X.sum() > 3 else 0, "waits"),
    "tolist": (lambda: X.tolist(), "tolist() waits for the device"),
    "cpu": (lambda: X.cpu(), "cpu() waits for the device"),
    "numpy": (lambda: X.numpy(), "numpy() waits for the device"),
    "equal": (lambda: torch.equal(X, X), "equal waits for a number of the device"),
    "another device": (lambda: X.to("meta"), "copies between devices"),
    "a copy from another device": (lambda: X.copy_(torch.empty(6, device="meta")), "copies between devices"),
    "nonzero": (lambda: X.nonzero(), "nonzero"),
    "where": (lambda: torch.where(X > 3), "nonzero"),
    "masked_select": (lambda: X.masked_select(X > 3), "shape that depends on data"),
    "unique": (lambda: X.unique(), "shape that depends on data"),
    "a mask": (lambda: X[X > 3], "indexing by a mask"),
    "writing by a mask": (lambda: X.clone().index_put_((X > 3,), X[:2]), "indexing by a mask"),
    "numbers of the host": (lambda: X + torch.tensor([1.0] * 6), "tensor() makes a tensor on the host"),
    "new_tensor": (lambda: X.new_tensor([1.0]), "new_tensor() makes a tensor on the host"),
    "a list as an index": (lambda: X[[0, 2]], "a list as an index"),
    "a generator": (lambda: torch.randperm(4, generator=torch.Generator()), "draws from a generator of the CPU"),
}
ALLOWED = {
    "views and sums": lambda: X.view(2, 3).t().sum(0),
    "a number written to a place": lambda: X.clone().__setitem__(1, 2.0),
    "a number written by a mask": lambda: X.clone().__setitem__(X > 3, 0.0),
    "rows by a tensor": lambda: X[torch.arange(3)],
    "a scalar made there": lambda: torch.full((), 3.0) * X,
    "sorting": lambda: X.argsort(),
    "another kind of number": lambda: X.to(torch.int64),
    "lengths": lambda: len(X) + X.shape[0] + X.numel(),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_it_is_found(name):
    function, said = FORBIDDEN[name]
    with Capturable(), pytest.raises(NotCapturable, match=re.escape(said)) as caught:
        function()
    assert "test_capturable.py:" in str(caught.value)


def test_a_folder_whose_name_begins_as_torchs_is_not_torch():
    file = f"{torch.__path__[0]}_extras/loop.py"
    with Capturable(), pytest.raises(NotCapturable, match=re.escape(f"{file}:2: ")):
        exec(compile("\nx.item()", file, "exec"), {"x": X[0]})


@pytest.mark.parametrize("name", ALLOWED)
def test_it_is_left_alone(name):
    with Capturable():
        ALLOWED[name]()


def test_what_the_backward_pass_does_is_seen_too():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, slope):
            return slope * slope.sum().item()

    weight = torch.ones(3, requires_grad=True)
    with Capturable(), pytest.raises(NotCapturable, match="waits"):
        Reads.apply(weight).sum().backward()


def test_what_is_left_behind_is_counted():
    kept = []
    with Capturable() as strict:
        kept.append(X * 2)  # 24 bytes
        kept.append(kept[0][:2])  # a view of them
        X + 1  # gone at once
    assert strict.left_behind() == 24
    kept.clear()
    assert strict.left_behind() == 0


@pytest.fixture
def training(monkeypatch):
    """A collector of environments on tensors and PPO, one iteration in, as they would be on a GPU."""
    monkeypatch.setattr(on_policy, "known", lambda flag: False)
    with fused.plain_only():
        env = envs.make("CartPole-v1", 8, backend="torch")
        config = PPOConfig(num_steps=4, epochs=2, minibatch_size=16, hidden=(8,), target_kl=0.01, value_clip=0.2)
        algorithm = PPO.build(config, env.observation_space, env.action_space, 0, "cpu")
        collector = InlineCollector(env, algorithm.policy, 4, algorithm.columns(), 0)
        algorithm.update(collector.collect(), 0.0)
        algorithm.iteration = torch.ones((), dtype=torch.int64)
        yield collector, algorithm


def iterate(collector, algorithm, counter):
    collector.rollout.continue_from(collector.rollout)
    collector.fill(counter)
    rollout = collector.rollout
    ends = (rollout.terminated, rollout.truncated)
    gae(rollout.reward, rollout.value[:-1], rollout.value[1:], *ends, 0.99, 0.95)
    algorithm.update(rollout, 0.5)


def test_an_iteration_waits_for_nothing_and_leaves_nothing(training):
    """Collecting, gae, learning and the statistics after it."""
    counter = torch.full((), 4)
    for _ in range(2):
        with Capturable() as strict:
            iterate(*training, counter)
        gc.collect()
        assert strict.left_behind() == 0
        counter += 4


@pytest.mark.parametrize(
    "place", ["policy.act", "env.step", "policy.log_prob_entropy_value", "policy.update_statistics"]
)
def test_an_item_planted_anywhere_is_found(training, monkeypatch, place):
    collector, algorithm = training
    owner, name = {"policy": algorithm.policy, "env": collector.env}[place.partition(".")[0]], place.partition(".")[2]
    plain = getattr(owner, name)

    def planted(*args):
        collector.rollout.reward.sum().item()
        return plain(*args)

    object.__setattr__(owner, name, planted)
    with Capturable(), pytest.raises(NotCapturable, match=r"test_capturable.py:\d+: item\(\) waits"):
        iterate(collector, algorithm, torch.full((), 4))
