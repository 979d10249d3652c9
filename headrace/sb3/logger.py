"""The logger of a model, with the methods of Stable-Baselines3's logger that callbacks use."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from headrace.runs.events import EventFile
from headrace.sb3.members import OF_LOGGER, missing


class Logger:
    """Records values by name, and writes them as a table to standard output and as scalars for TensorBoard.

    prints: whether tables are printed. folder: of TensorBoard's events; None for none.
    """

    def __init__(self, prints: bool, folder: Path | None) -> None:
        self.prints, self.folder = prints, folder
        self.dir = None if folder is None else str(folder)
        self.name_to_value: dict[str, Any] = {}
        self.name_to_count: dict[str, int] = {}
        self.name_to_excluded: dict[str, tuple[str, ...]] = {}
        self._said: set[str] = set()
        self._events = None if folder is None else EventFile(folder)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(missing("Logger", name, OF_LOGGER))

    def log(self, *values: Any, level: int = 20) -> None:
        """Print values, if tables are printed."""
        if self.prints:
            print(*values)

    debug = info = warn = error = log

    def get_dir(self) -> str | None:
        """The folder of TensorBoard's events."""
        return self.dir

    def record(self, key: str, value: Any, exclude: str | tuple[str, ...] | None = None) -> None:
        """Keep a value until the next dump(). exclude: "stdout", "tensorboard"."""
        self.name_to_value[key] = value
        self.name_to_excluded[key] = (exclude,) if isinstance(exclude, str) else exclude or ()

    def record_mean(self, key: str, value: float | None, exclude: str | tuple[str, ...] | None = None) -> None:
        """Keep the mean of the values until the next dump()."""
        if value is None:
            return
        count = self.name_to_count.get(key, 0)
        before = self.name_to_value.get(key, 0.0)
        self.name_to_count[key] = count + 1
        self.record(key, (before * count + value) / (count + 1), exclude)

    def dump(self, step: int = 0) -> None:
        """Write all values of a time step, and forget them."""
        if self.prints and self.name_to_value:
            print(table(self._for("stdout")))
        if self._events is not None:
            values = self._for("tensorboard")
            numbers = {key: float(x) for key, x in values.items() if _is_number(x)}
            self._events.write([(time.time(), step, numbers)])
            self._say_left_out({key: x for key, x in values.items() if key not in numbers})
        for values in (self.name_to_value, self.name_to_count, self.name_to_excluded):
            values.clear()

    def _say_left_out(self, values: dict[str, Any]) -> None:
        """Report once for each name that its value is not a number."""
        for key in values.keys() - self._said:
            kind = type(values[key]).__name__
            print(f"{key} ({kind}) is not in TensorBoard's file, which has numbers alone", file=sys.stderr)
            self._said.add(key)

    def _for(self, target: str) -> dict[str, Any]:
        return {key: value for key, value in self.name_to_value.items() if target not in self.name_to_excluded[key]}

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._events is not None:
            self._events.close()


def new_folder(parent: str | Path, name: str, same: bool) -> Path:
    """PARENT/NAME_n for a new run, with the next free n; with `same` the last existing one."""
    parent = Path(parent).absolute()  # the file is opened later, when an environment may have changed the folder
    taken = [path.name.rpartition("_")[2] for path in parent.glob(f"{name}_*")]
    last = max((int(number) for number in taken if number.isdecimal()), default=0)
    return parent / f"{name}_{max(last, 1) if same else last + 1}"


def table(values: dict[str, Any]) -> str:
    """Values in a box, those of one group (`time/fps`) under its name."""
    rows, group = [], None
    for key in sorted(values):
        head, slash, name = key.rpartition("/")
        if slash and head != group:
            rows.append((f"{head}/", ""))
        group = head
        value = values[key]
        rows.append((f"{'   ' if slash else ''}{name}", f"{value:.3g}" if isinstance(value, float) else str(value)))
    widths = [max(len(row[side]) for row in rows) for side in (0, 1)]
    line = "-" * (sum(widths) + 7)
    return "\n".join([line, *(f"| {key:<{widths[0]}} | {value:<{widths[1]}} |" for key, value in rows), line])


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
