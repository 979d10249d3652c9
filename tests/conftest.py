"""Every test draws the same numbers wherever and in whatever order it runs; `--seed` draws others."""

import headrace  # noqa: F401, I001  before torch, whose threads sleep then when they wait: tests run side by side

import gc
import os
import random
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import gymnasium
import numpy
import pytest
import torch
from _pytest.assertion import rewrite
from helpers import simulator
from hypothesis import settings

from headrace.core import fused, user_names
from headrace.core.device import torch_threads
from headrace.envs import registry

TESTS = Path(__file__).parent
LONG = TESTS / "long_tests.txt"

settings.register_profile("search", deadline=None)  # other examples each time: pytest --hypothesis-profile search
settings.register_profile("same", deadline=None, derandomize=True)  # no test fails by chance or on a slow machine
settings.load_profile("same")

os.environ["HEADRACE_COMPILE_AHEAD"] = "0"  # tests use all cores

if simulator.SIMULATED:
    simulator.take_turns()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: tests of Ctrl-C need Python's own
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0, help="of random, numpy and torch before each test")


def pytest_collection(session):
    """Let each of several processes translate a part of the test files, unless that is done: else each translates
    all."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and not sys.dont_write_bytecode:
        files = sorted(TESTS.rglob("test_*.py"), key=lambda file: file.stat().st_size, reverse=True)
        for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
            with suppress(AttributeError, OSError):  # pytest's own functions, which may change
                translate(file, session.config)


def translate(file: Path, config: pytest.Config) -> None:
    """Write a test file's code with rewritten assertions, as pytest does when it imports the file."""
    folder = rewrite.get_cache_dir(file)
    kept, state = folder / f"{file.stem}{rewrite.PYC_TAIL}", config.stash[rewrite.assertstate_key]
    if rewrite._read_pyc(file, kept) is None:
        stat, code = rewrite._rewrite_test(file, config)
        folder.mkdir(exist_ok=True)
        rewrite._write_pyc(state, code, stat, kept)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    """Mark the tests of long_tests.txt, which are no part of `make test`."""
    long = {*LONG.read_text().splitlines()}
    for item in items:
        if f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}" in long:
            item.add_marker("long")


def pytest_collection_finish():
    """Python does not look through all that was imported whenever it looks for garbage: that is a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded(request):
    """The global generators, seeded."""
    seed = request.config.getoption("--seed")
    random.seed(seed)
    numpy.random.seed(seed)
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:  # it would note the stack of each call, to repeat it once there is a GPU
        torch.default_generator.manual_seed(seed)


@pytest.fixture
def one_thread():
    """Torch with one thread."""
    with torch_threads(1):
        yield


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """The test's own folder as the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True, scope="module")
def files_of_a_module(tmp_path_factory):
    """Same as files_of_users, for fixtures of a module's scope."""
    with nothing_left(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(autouse=True)
def files_of_users(tmp_path_factory):
    """Forget what a test imports from files that it wrote, and what it registers: other tests have a `mine.py`, too."""
    with nothing_left(tmp_path_factory.getbasetemp()):
        yield


@contextmanager
def nothing_left(temporary: Path):
    """Leave the path, modules of temporary files, the registries of environments, and whether kernels that do not serve
    are named (an actor's process does not), as they were."""
    path, modules, ids, specs = [*sys.path], {*sys.modules}, {*gymnasium.registry}, {**registry._specs}
    silent = fused._silent
    yield
    fused._silent = silent
    sys.path[:] = path
    for name in [name for name in sys.modules.keys() - modules if folder_of(name).is_relative_to(temporary)]:
        del sys.modules[name]
    for version in [version for version in user_names._files if version[0].is_relative_to(temporary)]:
        if user_names._files[version].__name__ not in modules:
            del user_names._files[version]  # it is no module any more
    for name in gymnasium.registry.keys() - ids:  # not what packages registered that are imported now
        entry = gymnasium.registry[name].entry_point or gymnasium.registry[name].vector_entry_point
        module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
        if module not in sys.modules or folder_of(module).is_relative_to(TESTS):
            del gymnasium.registry[name]
    registry._specs.clear()
    registry._specs.update(specs)


def folder_of(module: str) -> Path:
    """The folder that a loaded module is in; the root for one that is in no file."""
    loaded = sys.modules[module]
    return Path(getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", [])), "/"))
