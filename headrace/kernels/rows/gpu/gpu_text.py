"""Text of functions for a GPU's threads: a thread's share of a loop, conditions, kinds of memory.

A step is a function that each thread of a block calls with its number. Threads wait for each other between steps, never
within one, so that the same functions can be run on the CPU: a step's threads one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from headrace.kernels.rows.targets.llvm_text import Body

THREADS = 256  # of a block
WIDTH = 4  # lanes that a thread takes at a time: as many numbers as one access reads
ADDED = 32  # numbers of which a block of threads adds the parts
GROUPS = THREADS // ADDED  # into which the parts are divided
SHARED = 227 * 1024  # bytes of a block's own memory that a Hopper GPU has
REGISTERS, MOST_REGISTERS = 65_536, 255  # of a multiprocessor, and of a thread
ROLLED = '!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}'  # of loops in a program for a GPU
PARAMETER = "SLOTS"  # in lines of a kernel, the name that PTX gives its slots
PAD = 4  # numbers between a tile's lanes and the next tile's: neighbours lie in other banks of the shared memory


@dataclass(frozen=True)
class Memory:
    """Types of addresses. shared: of a block's own memory. device: of the device's."""

    shared: str
    device: str


GPU = Memory("ptr addrspace(3)", "ptr addrspace(1)")
CPU = Memory("ptr", "ptr")  # of a program whose threads are run one after the other


def kernel(name: str, b: Body, gpu: bool, slots: int, together: int) -> str:
    """A kernel of these lines. slots: how many it takes. together: blocks that a multiprocessor is to run at once."""
    head = f"define internal void @{name}(ptr %slots, i64 %part) noinline nounwind"
    if gpu:
        attributes = f'"nvvm.maxntid"="{THREADS}" "nvvm.minctasm"="{together}"'
        head = f"define ptx_kernel void @{name}(ptr byval([{slots} x i64]) align 8 %slots) {attributes}"
    lines = "\n".join(b.lines).replace(PARAMETER, f"{name}_param_0")
    return f"{head} {{\nentry:\n{lines}\n  ret void\n}}"


class ThreadBody(Body):
    """The lines of a function of one thread; several numbers at a time lie aligned."""

    def load(self, base: str, index: str, element: str = "float", one: bool = False) -> str:
        if self.width == 1 or one:
            return super().load(base, index, element, one)
        return self.new(f"load {self.kind(element)}, ptr {self.at(base, index, element)}, align {4 * self.width}")

    def store(self, value: str, base: str, index: str, element: str = "float") -> None:
        if self.width == 1:
            super().store(value, base, index, element)
            return
        address = self.at(base, index, element)
        self.do(f"store {self.kind(element)} {value}, ptr {address}, align {4 * self.width}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Do what is written within this block where the condition holds."""
        self._names += 1
        yes, no = f"yes{self._names}", f"no{self._names}"
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")
        self.lines.append(f"{yes}:")
        self.block = yes
        yield
        self.do(f"br label %{no}")
        self.lines.append(f"{no}:")
        self.block = no

    @contextmanager
    def until(self) -> Iterator[list[str]]:
        """Repeat what is written within this block until the condition holds that is put into the list."""
        self._names += 1
        label, found = f"again{self._names}", list[str]()
        self.lines += [f"  br label %{label}", f"{label}:"]
        self.block = label
        yield found
        self.do(f"br i1 {found[0]}, label %{label}.end, label %{label}")
        self.block = f"{label}.end"
        self.lines.append(f"{self.block}:")

    @contextmanager
    def when_all(self, pairs: list[tuple[str, int]]) -> Iterator[None]:
        """Do what is written within this block where each index is below its number."""
        with ExitStack() as stack:
            for index, count in pairs:
                stack.enter_context(self.when(self.less(index, count)))
            yield

    @contextmanager
    def share(self, total: int, thread: str = "%tid", threads: int = THREADS) -> Iterator[str]:
        """Do what is written within this block for each of `total` numbers, divided among the threads."""
        if total == threads:
            yield thread
        elif total % threads == 0:
            with self.loop(total // threads) as turn:
                yield self.plus(self.times(turn, threads), thread)
        else:
            with self.when(self.less(thread, total)):
                if total < threads:
                    yield thread
                else:
                    with self.loop(total, threads, begin=thread) as i:
                        yield i

    @contextmanager
    def single(self) -> Iterator[None]:
        """Write operations on one number at a time within this block."""
        self.width, width = 1, self.width
        yield
        self.width = width

    def less(self, x: str, y: str | int) -> str:
        """x < y, of indices."""
        return self.new(f"icmp ult i64 {x}, {y}")

    def below(self, index: str, count: int) -> str:
        """An index, or 0 in place of one that does not exist."""
        return self.new(f"select i1 {self.less(index, count)}, i64 {index}, i64 0")

    def divided(self, index: str, by: int) -> tuple[str, str]:
        """An index divided by a number, and what is left."""
        if by == 1:
            return index, "0"
        if index.isdecimal():
            return str(int(index) // by), str(int(index) % by)
        short = self.new(f"trunc i64 {index} to i32")
        found = [self.new(f"{operation} i32 {short}, {by}") for operation in ("udiv", "urem")]
        return self.new(f"zext i32 {found[0]} to i64"), self.new(f"zext i32 {found[1]} to i64")

    def places(self, index: str, shape: tuple[int, ...] | list[int]) -> list[str]:
        """The index along each axis of a number in row-major order."""
        found: list[str] = []
        for size in reversed(shape[1:]):
            index, rest = self.divided(index, size)
            found.insert(0, rest)
        return [index, *found] if shape else []

    def part(self, x: str, number: int) -> str:
        """One of a value's numbers."""
        return x if self.width == 1 else self.new(f"extractelement {self.f32} {x}, i64 {number}")

    def joined(self, numbers: list[str]) -> str:
        """Single numbers as one value."""
        kind = self.kind("float")
        found = "poison"
        for i, number in enumerate(numbers):
            found = self.new(f"insertelement {kind} {found}, float {number}, i64 {i}")
        return found
