"""Fixtures of the tests of compiled losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.kernels.rows.targets import records
from headrace.kernels.rows.tracing import trace_loss
from headrace.kernels.runtime import cache
from tests.bindings.kept_losses import Disk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    place = tmp_path / "kernels"
    place.mkdir()
    found, trace = Disk(place), trace_loss.trace

    def counted(*arguments: Any) -> Any:
        found.traces += 1
        return trace(*arguments)

    monkeypatch.setattr(trace_loss, "trace", counted)
    monkeypatch.setattr(cache, "folder", lambda: place)
    monkeypatch.setattr(cache, "folders", lambda: (place,))
    yield found
    records._known.clear()
