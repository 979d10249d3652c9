"""Threads that share a policy, or a network, get the answers that one thread gets."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benchmarks.bits.thread_stress import POLICIES, stress
from headrace.policies.fused_mlp import FusedMLP


@pytest.mark.parametrize("kind", POLICIES)
def test_threads_do_not_disturb_each_other(kind):
    assert stress(POLICIES[kind](), threads=8, number=60 if kind == "images" else 250) == 0


def test_threads_share_a_compiled_network():
    network = FusedMLP(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    asked = [torch.randn(64, 6) for _ in range(16)]
    with torch.no_grad():
        expected = [network(x) for x in asked]

    def wrong(thread):
        with torch.no_grad():
            return sum(not torch.equal(network(asked[i % 16]), expected[i % 16]) for i in range(thread, 400))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(wrong, range(8))) == 0
