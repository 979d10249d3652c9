"""Every test draws the same numbers wherever and in whatever order it runs; `--seed` draws others."""

import headrace  # noqa: F401, I001  before torch, whose threads sleep then when they wait: tests run side by side

import random
import signal

import numpy
import pytest
import torch
from hypothesis import settings

settings.register_profile("search", deadline=None)  # other examples each time: pytest --hypothesis-profile search
settings.register_profile("same", deadline=None, derandomize=True)  # no test fails by chance or on a slow machine
settings.load_profile("same")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: tests of Ctrl-C need Python's own
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="of random, numpy and torch before each test")


@pytest.fixture(autouse=True)
def seeded(request):
    """The global generators, started anew."""
    seed = request.config.getoption("--seed")
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
