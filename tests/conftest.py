"""Every test draws the same numbers wherever and in whatever order it runs; `--seed` draws others."""

import random

import numpy
import pytest
import torch
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # no test fails because a machine is slow
settings.load_profile("any machine")


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="of random, numpy and torch before each test")


@pytest.fixture(autouse=True)
def seeded(request):
    """The global generators, started anew."""
    seed = request.config.getoption("--seed")
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
