"""`%%headrace diagnose` on a cell of a notebook, after `%load_ext headrace`. IPython is imported here only."""

from __future__ import annotations

import linecache
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from headrace.diagnose.injected import sampler
from headrace.diagnose.profile.profile import Ending, Exit
from headrace.diagnose.record.observer import Observer
from headrace.diagnose.record.run_script import RATE, sampled_environment
from headrace.diagnose.report import files
from headrace.diagnose.report.html import REPORT

CELL = "cell.py"  # the diagnosed cell, beside the report
VARIABLES = ("PYTHONPATH", "HEADRACE_DIAGNOSE")  # by which processes that the cell starts are sampled, too
NEVER = 1e9  # s: GPU kernels are not counted in a process that goes on
USAGE = "%%headrace diagnose [--seconds 60] [--skip 0] [--output FOLDER] [--hints FILE], then the cell"


@dataclass(frozen=True)
class CellOptions:
    """Flags of `%%headrace diagnose`."""

    seconds: float = 60.0  # of wall time to measure; a cell that takes longer is then interrupted
    skip: float = 0.0  # seconds at the beginning that are not measured
    output: Path | None = None  # folder for the report; by default a new one, diagnosis/notebook_1, _2, ...
    hints: Path | None = None  # a TOML file with the roles of your functions


def register(shell: Any) -> None:
    """Give an IPython shell the cell magic `%%headrace`."""

    def headrace(line: str, cell: str) -> None:
        diagnose_cell(shell, line, cell)

    headrace.__doc__ = f"Where the time of a cell goes: {USAGE}."
    shell.register_magic_function(headrace, magic_kind="cell", magic_name="headrace")


def diagnose_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell in the kernel's own process, sampled; print the report, and show a link to it.

    An exception of the cell is raised again after the report. Raises UsageError for a line that does not match USAGE.
    """
    from IPython.display import FileLink, display

    options = _options(line)
    folder = (options.output or files.next_folder("notebook")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    text, path = shell.transform_cell(cell), str(folder / CELL)
    Path(path).write_text(text, encoding="utf-8")
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    code = compile(text, path, "exec")
    spool = Path(tempfile.mkdtemp(prefix="headrace-diagnose-"))
    try:
        observer = Observer(spool, options.seconds, options.skip, options.hints)
        try:
            with _sampled(spool):
                exit, error = _outcome(code, shell.user_ns, observer.until)
            profile = observer.finish(exit, _sources())
        finally:
            observer.close()
    finally:
        shutil.rmtree(spool, ignore_errors=True)
    files.write(profile, folder)
    display(FileLink(os.path.relpath(folder / REPORT)))
    if error is not None:
        raise error


def _options(line: str) -> CellOptions:
    from IPython.core.error import UsageError

    verb, *flags = shlex.split(line) or [""]
    try:
        options = tyro.cli(CellOptions, args=flags, prog="%%headrace diagnose") if verb == "diagnose" else None
    except SystemExit:  # tyro has printed what is wrong
        options = None
    if options is None:
        raise UsageError(f"%%headrace {line}: use {USAGE}")
    if options.seconds <= 0 or options.skip < 0:
        raise UsageError(
            f"--seconds must be above 0 and --skip not below, got {options.seconds:g} and {options.skip:g}"
        )
    if options.hints and not options.hints.is_file():
        raise UsageError(f"--hints {options.hints}: there is no such file")
    return options


@contextmanager
def _sampled(spool: Path) -> Iterator[None]:
    """Sample this process, and those that it starts."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    made = sampled_environment(spool, 1.0 / RATE, NEVER)
    os.environ.update({name: made[name] for name in VARIABLES})
    sampler.start()
    try:
        yield
    finally:
        sampler.current.stop()  # type: ignore[union-attr]
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _outcome(code: Any, variables: dict[str, Any], until: float) -> tuple[Exit, BaseException | None]:
    """Run a cell. Returns how it ended, and the exception that it raised. The interrupt at the limit is no error."""
    try:
        run_cell(code, variables)
    except KeyboardInterrupt as interrupt:
        if time.monotonic() > until:
            return Exit(Ending.TIME_LIMIT), None
        return Exit(Ending.INTERRUPT), interrupt
    except BaseException as error:
        return Exit(Ending.EXCEPTION, 1, f"{type(error).__name__}: {error}"), error
    return Exit(Ending.EXIT), None


def run_cell(code: Any, variables: dict[str, Any]) -> None:
    """Run a cell's code. Stacks are cut here: what is further out is the notebook's (see spool.own_frames())."""
    exec(code, variables)


def _sources() -> dict[str, str]:
    """Texts of the cells that were run so far, by the names of files that IPython gives them."""
    names = [name for name in linecache.cache if "ipython" in name or "ipykernel" in name]
    return {name: "".join(linecache.getlines(name)) for name in names}
