"""Machine code without Numba: arguments arrive as they are, files are checked, and types decide which file it is."""

import gc
import subprocess
import sys

import numpy as np
import pytest
from numba import njit, typeof  # noqa: TID253
from numba.core import event  # noqa: TID253
from numba.core.errors import TypingError  # noqa: TID253
from numba.core.registry import cpu_target  # noqa: TID253
from numba.core.runtime.context import NRTContext  # noqa: TID253

from headrace.kernels.runtime import cache
from headrace.kernels.runtime.machine_code import object_code, optimized
from headrace.kernels.runtime.native import Call, Native, kind

TEXT = """\
from numba import njit

@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def add(out, pair, factor, offset):
    for i in range(len(out)):
        out[i] = factor * pair[0][i] + pair[1][0] + offset
"""


def arguments(factor=2.0, offset=-3):
    return np.zeros(4), (np.arange(8.0, dtype=np.float32)[::2], (np.float32(0.5), np.uint32(7))), factor, offset


def test_every_kind_of_argument_arrives(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    add = cache.entry("native", TEXT, "add", arguments(), "compiling")
    out, *rest = arguments()
    add(out, *rest)
    assert out.tolist() == [2.0 * x + 0.5 - 3 for x in (0, 2, 4, 6)]


def test_numbers_and_places_of_a_call_may_change(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    given = arguments()
    call = Call(cache.entry("native", TEXT, "add", given, "compiling"), given)
    call.put(call.slot(1, 1), (np.float32(1.5), np.uint32(0)))
    call.put(call.slot(2), 10.0)
    call.put(call.slot(3), -1)
    other = np.zeros(4)
    call.point(call.slot(0), other.ctypes.data)
    call()
    assert other.tolist() == [10.0 * x + 0.5 for x in (0, 2, 4, 6)]
    assert not given[0].any()


def test_it_runs_without_numba_the_second_time(tmp_path):
    program = (
        "import sys, numpy as np\nfrom headrace.kernels.runtime import cache\n"
        f"TEXT = {TEXT!r}\nout = np.zeros(2)\n"
        "given = out, (np.ones(4, np.float32)[::2], (np.float32(1), np.uint32(1))), 2.0, 1\n"
        "cache.entry('native', TEXT, 'add', given, 'compiling')(*given)\n"
        "print(out.tolist(), 'numba' in sys.modules)"
    )
    environment = {"HEADRACE_CACHE": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stdout.strip() for run in runs] == ["[4.0, 4.0] True", "[4.0, 4.0] False"]
    assert [run.stderr.strip() for run in runs] == ["compiling", ""]


def test_a_damaged_file_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    cache.entry("native", TEXT, "add", arguments(), "compiling")
    (file,) = tmp_path.glob("*.bin")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    monkeypatch.setattr(cache, "_entries", {})
    cache.entry("native", TEXT, "add", arguments(), "compiling")
    assert len(file.read_bytes()) > len(whole) / 2 and cache._read(file.name) is not None


def test_types_decide():
    a = np.zeros((2, 3), np.float32)
    different = [a, a.T, a[:, ::2], a.astype(np.float64), a[0], 1, 1.0, np.float32(1), (a, a), (a, 1)]
    assert len({kind(x) for x in different}) == len(different)
    assert kind((a, 1)) == kind((np.ones((5, 6), np.float32), 2))


def test_an_exception_is_told():
    @njit
    def fail(x):
        if x[0] > 0:
            raise ValueError("no")

    given = (np.ones(1),)
    with pytest.raises(RuntimeError, match="stopped with an exception"):
        Native(object_code(fail, given))(*given)


def test_code_that_needs_numba_is_refused():
    @njit
    def allocate(x):
        x[0] = np.zeros(int(x[0])).sum()

    with pytest.raises(RuntimeError, match="cannot run without Numba: it calls NRT_"):
        object_code(allocate, (np.ones(1),))


def test_numba_then_compiles_as_usual():
    @njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    def double(x):
        x[0] *= 2

    @njit
    def fail(x):
        return x.no_such_attribute

    @njit
    def quadruple(x):
        double(x)
        double(x)

    def settings():
        context = cpu_target.target_context
        return context._internal_codegen, NRTContext._call_incref_decref, event.install_timer, gc.get_threshold()

    x, before = np.ones(1), settings()
    Native(object_code(double, (x,)))(x)
    with pytest.raises(TypingError):
        object_code(fail, (x,))
    assert settings() == before
    quadruple(x)
    assert x[0] == 8


def test_what_is_called_in_several_ways_is_linked_once():
    """One caller of the linked function is compiled by Numba as usual."""

    @njit
    def add(x, n):
        x[0] += n

    @njit
    def twice(x):
        add(x, 1)
        add(x, 1)

    @njit
    def both(x):
        add(x, 10)
        twice(x)

    @njit
    def usual(x):
        both(x)
        return x

    x = np.zeros(1)
    Native(object_code(both, (x,)))(x)
    assert x[0] == 12
    assert usual(x)[0] == 24
    optimized(both, (typeof(x),)).verify()
