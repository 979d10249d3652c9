"""population.jsonl: a population's settings, results and decisions, each written before it takes effect."""

from __future__ import annotations

import json
import os
from pathlib import Path

from headrace.core.types import Json
from headrace.core.writing import check_file, sync, writing

RECORD = "population.jsonl"


class Record:
    """The rows of a population's file.

    The first row has the population's settings. Results are a row for each member and interval. Decisions are a row for
    each interval, after its results; interval 0 has those of the beginning. An incomplete last row, of a population
    that was killed, does not count.
    Raises ValueError, naming the line, for other damage.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.rows = folder / RECORD, list[Json]()
        content = check_file(self.path).read_bytes() if self.path.exists() else b""
        self._whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[: self._whole].splitlines(), 1):
            try:
                self.rows.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                what = f"line {number} of {self.path} is damaged ({error})"
                raise ValueError(f"{what}: remove it and those after it to go on from there") from error

    def begin(self, about: Json) -> None:
        """Begin, or continue a population with the same settings. Raises ValueError for different settings."""
        if not self.rows:
            self.add({"population": about})
            return
        os.truncate(self.path, self._whole)
        changed = [f"{name} {self.about.get(name)} -> {x}" for name, x in about.items() if self.about.get(name) != x]
        if changed:
            where = self.path.parent
            raise ValueError(f"{where} has a population of other settings ({'; '.join(changed)}): give another folder")

    def add(self, row: Json) -> None:
        """Append a row, and sync it to the disk."""
        with writing(self.path, "the population"), open(self.path, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            sync(file.fileno())
        self.rows.append(row)

    @property
    def about(self) -> Json:
        """The settings of the population."""
        return dict(self.rows[0].get("population", {})) if self.rows else {}

    def results(self, interval: int) -> dict[int, Json]:
        """The known results of an interval, by member."""
        return {row["member"]: row for row in self.rows if row.get("interval") == interval and "member" in row}

    def decisions(self) -> list[list[Json]]:
        """The decisions so far, by interval."""
        return [row["decisions"] for row in self.rows if "decisions" in row]
