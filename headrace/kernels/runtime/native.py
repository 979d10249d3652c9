"""Compiled functions as machine code, called without Numba: loading one takes a millisecond, Numba's own half a second.

An entry point (made by kernels.runtime.machine_code) takes one pointer to argument slots of 8 bytes: the function's
arguments as Numba passes them, tuples flattened, one slot for each number and seven or more for an array.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from copy import copy
from functools import cache
from itertools import accumulate
from typing import TypeAlias

import llvmlite.binding as llvm
import numpy as np

ABI = 1  # raise it whenever arguments are passed in another way: machine code of another number is not loaded
ENTRY = "entry"  # the symbol under which a file of machine code has its function
STOPPED = "a compiled function stopped with an exception: run it uncompiled to see which"
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)  # releases the GIL
_RUN_WITH_GIL = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_64_BITS = (1 << 64) - 1
_DOUBLE = struct.Struct("<d")
_ADDRESS = 4  # which of an array's slots is its address

Argument: TypeAlias = "np.ndarray | np.generic | float | tuple[Argument, ...]"  # of a compiled function; int is a float


class Native:
    """Function from machine code: of object_code() of kernels.runtime.machine_code, or, for row programs, of
    kernels.rows.cpu_code. It returns nothing.

    Types are not checked: arguments must have those that it was compiled for. Releases the GIL; run_with_gil does not.
    file: the name under which its code is kept, if it is.
    """

    def __init__(self, code: bytes, file: str | None = None) -> None:
        self.file = file
        # an engine of its own for each, so that names in different files cannot clash
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.address = self._engine.get_function_address(ENTRY)
        self.run, self.run_with_gil = _RUN(self.address), _RUN_WITH_GIL(self.address)

    def __call__(self, *arguments: Argument) -> None:
        Call(self, arguments)()


class Call:
    """A function with its arguments, converted to slots once: calling it again costs half a microsecond.

    slots: uint64, at `address`. Numbers among the arguments may be changed there (put); arrays are not copied.
    with_gil: keep the GIL, for functions that take microseconds: a thread that releases it gets it back after up to 5
    ms (sys.setswitchinterval).
    """

    def __init__(self, function: Native, arguments: tuple[Argument, ...], with_gil: bool = False) -> None:
        self.function, self.arguments = function, arguments  # kept, because slots hold addresses
        self.slots = np.array(argument_slots(arguments), np.uint64)
        self._run = function.run_with_gil if with_gil else function.run
        self.address = self.slots.ctypes.data

    def __call__(self) -> None:
        if self._run(self.address) != 0:
            raise RuntimeError(STOPPED)

    def slot(self, *path: int) -> int:
        """The first slot of an argument. path: its index, its part's index in that tuple, and so on."""
        first = 0
        within: Argument = self.arguments
        for number in path:
            assert isinstance(within, tuple)
            first += len(argument_slots(within[:number]))
            within = within[number]
        return first

    def parts(self, number: int) -> list[int]:
        """The first slot of each part of argument `number`, a tuple."""
        argument = self.arguments[number]
        assert isinstance(argument, tuple)
        lengths = [len(argument_slots(part)) for part in argument]
        return list(accumulate(lengths[:-1], initial=self.slot(number)))

    def put(self, slot: int, argument: Argument) -> None:
        """Change a number or a tuple of numbers among the arguments, from a slot on."""
        new = argument_slots(argument)
        self.slots[slot : slot + len(new)] = new

    def point(self, slot: int, address: int) -> None:
        """Replace the address of the array whose slots begin at `slot`. The caller keeps that array alive."""
        self.slots[slot + _ADDRESS] = address

    def moving(self, slot: int, address: int, step: int) -> tuple[int, int, int]:
        """(slot, address, step) for a caller that writes the address itself, into the slot that point() writes."""
        return slot + _ADDRESS, address, step

    def array_address(self, slot: int) -> int:
        """The address of the array whose slots begin at `slot`."""
        return int(self.slots[slot + _ADDRESS])

    def as_it_is(self) -> Call:
        """Make a copy of the call. The copy's slots stay as they are now."""
        other = copy(self)
        other.slots = self.slots.copy()
        other.address = other.slots.ctypes.data
        return other


class SharedCall:
    """Function whose arrays, of the same shapes, and numbers are given at each call. A call takes a microsecond.
    Several threads may call it at once.

    arguments: no tuples; arrays like those that will be given.
    """

    def __init__(self, function: Native, arguments: tuple[Argument, ...]) -> None:
        self._run, self._words, self._places = function.run, array("Q"), list[int]()
        self._function = function  # kept, because _run is in its memory
        for argument in arguments:
            self._places.append(len(self._words) + (_ADDRESS if isinstance(argument, np.ndarray) else 0))
            self._words.extend(argument_slots(argument))

    def __call__(self, *given: int) -> None:
        """given: for each argument the address of an array's memory, which the caller keeps, or a number's slot."""
        words = self._words[:]
        for place, word in zip(self._places, given, strict=True):
            words[place] = word
        if self._run(words.buffer_info()[0]) != 0:
            raise RuntimeError(STOPPED)


def float_slot(number: float) -> int:
    """A float64 as an argument's slot."""
    return int.from_bytes(_DOUBLE.pack(number), "little")


def argument_slots(argument: Argument) -> list[int]:
    """An argument as Numba passes it to a compiled function."""
    found: list[int] = []
    _add_slots(argument, found)
    return found


def _add_slots(argument: Argument, found: list[int]) -> None:
    if isinstance(argument, np.ndarray):
        # the first two are for reference counting, which Numba skips where they are 0
        found += (0, 0, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape)
        found += [stride & _64_BITS for stride in argument.strides]
    elif isinstance(argument, tuple):
        for part in argument:
            _add_slots(part, found)
    elif isinstance(argument, np.generic):
        found.append(int.from_bytes(argument.tobytes(), "little"))
    elif isinstance(argument, float):
        found.append(float_slot(argument))
    else:
        found.append(argument & _64_BITS)


def kind(argument: Argument) -> str:
    """Text with all that determines an argument's type in compiled code."""
    if isinstance(argument, tuple):
        fields = ",".join(getattr(argument, "_fields", ()))
        return f"{type(argument).__name__}[{fields}]({','.join(map(kind, argument))})"
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        rights = ("w" if flags.writeable else "r") + ("" if flags.aligned else "u")
        return f"{argument.dtype.str}{argument.ndim}{layout}{rights}"
    return argument.dtype.str if isinstance(argument, np.generic) else type(argument).__name__


def target_machine() -> llvm.TargetMachine:
    """LLVM's description of this processor; a new one for each engine, which takes ownership of it."""
    cpu, features, target = processor()
    return target.create_target_machine(cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True)


@cache
def processor() -> tuple[str, str, llvm.Target]:
    """Name and features of the processor, and LLVM's target for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), llvm.Target.from_default_triple()
