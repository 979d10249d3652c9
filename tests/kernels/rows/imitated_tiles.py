"""Tiles of bfloat16 (Intel AMX) in vectors, as Intel's manual describes them: for processors that have none.

Each function takes the tiles' memory: eight tiles of 16 x 64 bytes, and the configuration. What the processor refuses
ends the process: an instruction without a configuration, or on tiles whose sizes do not fit.
"""

from __future__ import annotations

import re

from headrace.kernels.rows.targets.llvm_text import Body

STATE = 8 * 1024 + 64  # bytes
KINDS = {
    "ldtilecfg": ("ptr",),
    "tilezero": ("i8",),
    "tileloadd64": ("i8", "ptr", "i64"),
    "tilestored64": ("i8", "ptr", "i64"),
    "tdpbf16ps": ("i8", "i8", "i8"),
    "tilerelease": (),
}


def imitated(text: str) -> str:
    """LLVM assembly without instructions on tiles: each function that has some has tiles of its own."""
    text = re.sub(r"declare void @llvm\.x86\..*\n", "", text)
    functions = re.split(r"(?m)^(?=define )", text)
    for i, function in enumerate(functions):
        if "@llvm.x86." in function:
            own = f"entry:\n  %tiles = alloca [{STATE} x i8], align 64\n  call void @imitated_begin(ptr %tiles)\n"
            function = function.replace("entry:\n", own, 1).replace("ret void", f"{_call('end')}\n  ret void")
            functions[i] = re.sub(r"@llvm\.x86\.(\w+)\(\)", r"@imitated_\1(ptr %tiles)", function)
            functions[i] = re.sub(r"@llvm\.x86\.(\w+)\(", r"@imitated_\1(ptr %tiles, ", functions[i])
    text = "".join(functions)
    own, bodies = functions_text()
    return "\n".join([*sorted(line for line in own if line not in text), text, bodies])


def _call(name: str) -> str:
    return f"call void @imitated_{name}(ptr %tiles)"


def functions_text() -> tuple[set[str], str]:
    """Declarations of the functions, and their text."""
    made = {name: _function(name, kinds) for name, kinds in KINDS.items()}
    begin, end = Body(1), Body(1)
    begin.store("0", "%tiles", "8192", "i8")
    _refuse(end, end.new(f"icmp ne i8 {_byte(end, '8192')}, 0"))  # tiles are released before a function ends
    made |= {"begin": (begin, ""), "end": (end, "")}
    declared = {"declare void @llvm.trap()"}.union(*(body.intrinsics for body, _ in made.values()))
    texts = [
        f"define internal void @imitated_{name}(ptr %tiles{parameters}) noinline nounwind {{\nentry:\n"
        + "\n".join([*body.lines, "  ret void", "}"])
        for name, (body, parameters) in made.items()
    ]
    return declared, "\n".join(texts)


def _function(name: str, kinds: tuple[str, ...]) -> tuple[Body, str]:
    b = Body(1)
    globals()[f"_{name}"](b)
    return b, "".join(f", {kind} %{i}" for kind, i in zip(kinds, "abc", strict=False))


def _ldtilecfg(b: Body) -> None:
    """The palette is 1, and rows and bytes of rows are what tiles have."""
    with b.loop(64) as i:
        b.store(b.load("%a", i, "i8"), "%tiles", b.plus(i, 8192), "i8")
    _refuse(b, b.new(f"icmp ne i8 {_byte(b, '8192')}, 1"))
    with b.loop(8) as i:
        rows, size = _rows(b, i), _size(b, i)
        _refuse(b, b.new(f"icmp ugt i64 {rows}, 16"))
        _refuse(b, b.new(f"icmp ne i64 {size}, 64"))  # the processor has shorter ones; programs do not use them
        _zero(b, i)


def _tilerelease(b: Body) -> None:
    b.store("0", "%tiles", "8192", "i8")


def _tilezero(b: Body) -> None:
    _zero(b, _tile(b, "%a"))


def _tileloadd64(b: Body) -> None:
    tile = _tile(b, "%a")
    _zero(b, tile)
    with b.loop(_rows(b, tile)) as row:
        _copy(b, b.at("%b", b.mul(row, "%c"), "i8"), b.at("%tiles", _at(b, tile, row), "i8"))


def _tilestored64(b: Body) -> None:
    tile = _tile(b, "%a")
    with b.loop(_rows(b, tile)) as row:
        _copy(b, b.at("%tiles", _at(b, tile, row), "i8"), b.at("%b", b.mul(row, "%c"), "i8"))


def _copy(b: Body, source: str, target: str) -> None:
    """Copy a row."""
    b.do(f"store <16 x i32> {b.new(f'load <16 x i32>, ptr {source}, align 1')}, ptr {target}, align 1")


def _tdpbf16ps(b: Body) -> None:
    """Sums over the lower halves of words and over the upper ones, added to each other, then to the target; all
    rounded to nearest, without denormals."""
    target, left, right = (_tile(b, x) for x in ("%a", "%b", "%c"))
    for x, y in ((_rows(b, target), _rows(b, left)), ("16", _rows(b, right))):
        _refuse(b, b.new(f"icmp ne i64 {x}, {y}"))
    with b.loop(_rows(b, target)) as row:
        b.width = 16
        zero = (b.f32, b.number(0))
        with b.carrying(16, [zero, zero]) as (k, sums, ends):
            word = b.new(f"load i32, ptr {b.at('%tiles', b.add(_at(b, left, row), b.mul(k, 4)), 'i8')}, align 4")
            x = _halves(b, b.broadcast(word, "i32"))
            y = _halves(b, b.new(f"load {b.i32}, ptr {b.at('%tiles', _at(b, right, k), 'i8')}, align 4"))
            ends += [_flushed(b, b.fma(*three)) for three in zip(x, y, sums, strict=True)]
        total = _flushed(b, b.floats("fadd", *ends))
        at = b.at("%tiles", _at(b, target, row), "i8")
        known = _flushed(b, b.new(f"load {b.f32}, ptr {at}, align 4"))
        b.do(f"store {b.f32} {_flushed(b, b.floats('fadd', known, total))}, ptr {at}, align 4")
        b.width = 1


def _halves(b: Body, words: str) -> list[str]:
    """Both numbers of words, without denormals."""
    bits = b.ints("shl", words, b.integer(16)), b.ints("and", words, b.integer(-(1 << 16)))
    return [_flushed(b, b.new(f"bitcast {b.i32} {own} to {b.f32}")) for own in bits]


def _flushed(b: Body, x: str) -> str:
    size = b.intrinsic("fabs", "float", x)
    small = b.new(f"fcmp olt {b.f32} {size}, {b.number(2.0**-126)}")
    return b.new(f"select {b.i1} {small}, {b.f32} {b.number(0)}, {b.f32} {x}")


def _tile(b: Body, number: str) -> str:
    """The number of a tile; refused without a configuration."""
    _refuse(b, b.new(f"icmp eq i8 {_byte(b, '8192')}, 0"))
    return b.new(f"zext i8 {number} to i64")


def _zero(b: Body, tile: str) -> None:
    with b.loop(16) as row:
        b.do(f"store <16 x i32> zeroinitializer, ptr {b.at('%tiles', _at(b, tile, row), 'i8')}, align 64")


def _rows(b: Body, tile: str) -> str:
    return b.new(f"zext i8 {_byte(b, b.add(tile, 8192 + 48))} to i64")


def _size(b: Body, tile: str) -> str:
    """Bytes of a row."""
    at = b.at("%tiles", b.add(b.mul(tile, 2), 8192 + 16), "i8")
    return b.new(f"zext i16 {b.new(f'load i16, ptr {at}, align 2')} to i64")


def _at(b: Body, tile: str, row: str) -> str:
    return b.add(b.mul(tile, 1024), b.mul(row, 64))


def _byte(b: Body, at: str) -> str:
    return b.load("%tiles", at, "i8")


def _refuse(b: Body, condition: str) -> None:
    """End the process if a condition holds."""
    number = len(b.lines)
    b.do(f"br i1 {condition}, label %refused{number}, label %fine{number}")
    b.lines += [f"refused{number}:", "  call void @llvm.trap()", "  unreachable", f"fine{number}:"]
    b.block = f"fine{number}"
