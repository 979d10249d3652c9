"""Stacks as the sampler describes them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

from headrace.diagnose.injected import stacks


def test_where_an_event_loop_waits_the_stack_has_the_coroutine_that_does() -> None:
    loop = asyncio.new_event_loop()

    async def inner() -> None:
        await asyncio.sleep(99)

    async def outer() -> None:
        await inner()

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    task = loop.create_task(outer())
    thread = threading.Thread(target=run)
    thread.start()
    try:
        while True:
            frame = sys._current_frames()[thread.ident or 0]
            numbers = stacks.Stacks()
            numbers.number(frame)
            names = {record[1]: record[3].rpartition(".")[2] for record in numbers.new if record[0] == "code"}
            places = {record[1]: names[record[2]] for record in numbers.new if record[0] == "place"}
            found = [places[number] for number in numbers.new[-1][2]]
            if found[0] == "select" and "inner" in found:
                break
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
    assert found[:5] == ["select", "sleep", "inner", "outer", "_run_once"]
