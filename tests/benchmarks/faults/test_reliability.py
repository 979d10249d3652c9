"""The programs that try faults: what they count, and, slowly, that each runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal

import pytest
from helpers import benchmark

from benchmarks.faults import damage_checkpoints, fill_disk, kill_saves, reliability
from benchmarks.tables import replace_table
from headrace.runs import checkpoint

PROGRAMS = ("kill_runs", "kill_actors", "kill_learners", "damage_checkpoints", "fill_disk", "send_signals")
PROGRAMS += ("save_memory", "kill_saves")


def test_rows_of_several_runs_add_up_to_one_table(tmp_path):
    for survived in (2, 3):
        row = {"fault": "killed", "tried": 3, "survived": survived, "wrong": []}
        reliability.append(tmp_path, "kill_runs", [row, {"fault": "memory", "tried": 1, "survived": 1, "ratio": 1.04}])
    faults = {"quick": False, "faults": 1053, "rows": [{"runs": 9, "as_they_should": 9}]}
    (tmp_path / "faults.jsonl").write_text(json.dumps(faults) + "\n")
    lines = reliability.markdown([*reliability.sums(tmp_path), reliability.injected(tmp_path)]).splitlines()
    assert lines[2:] == [
        "| killed | 6 | 5 | 1 |",
        "| memory, at most 1.04 times the run's memory | 2 | 2 | 0 |",
        "| 1,053 exceptions, deaths and hangs of environments, by training | 9 | 9 | 0 |",
    ]


def test_attempts_are_counted_with_what_was_wrong_and_written_once_with_the_machine(tmp_path):
    row = reliability.empty("killed")
    reliability.count(row, "first kill", "", moments="at the end")
    reliability.count(row, "second kill", "its weights are others", moments="at the end")
    with pytest.raises(SystemExit, match="True"):
        reliability.finish("kill_runs", [row], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["reliability.jsonl"]
    written = json.loads((tmp_path / "reliability.jsonl").read_text())
    assert written["tried"] == 2 and written["survived"] == 1 and written["moments"] == {"at the end": 2}
    assert written["wrong"] == ["second kill: its weights are others"] and written["machine"]["cores"] > 0


def test_a_table_is_replaced_where_its_comments_are(tmp_path):
    page = tmp_path / "page.md"
    parts = [f"{name}\n<!-- table: benchmarks/{name}.py -->\n| old |\n<!-- end of the table -->\n" for name in "ab"]
    page.write_text("".join(parts))
    replace_table("a", "| new |", page)
    assert page.read_text() == parts[0].replace("old", "new") + parts[1]


def test_every_damage_changes_a_file_and_a_forged_manifest_has_a_checksum_that_fits():
    chance, data = random.Random(0), bytes(range(1, 256)) * 3
    assert all(kind(data, chance) != data for kind in damage_checkpoints.KINDS for _ in range(20))
    manifest = {"sha256": "", "format": 1, "states": {"policy": {"w": {"$tensor": "w"}}}}
    for _ in range(20):
        body = json.loads(damage_checkpoints.forge(json.dumps(manifest).encode(), chance))
        assert body.pop("sha256") == checkpoint._digest(body)


def in_fork(watch, work):
    """The exit code of a fork of this process that does `work` under the eyes of `watch`."""

    def run():
        watch.install()
        work()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(30)
    return process.exitcode


def write_twice(folder):
    """Five operations: a folder, a new file, a write, a sync, a link."""
    (folder / "last").mkdir()
    with open(folder / "last" / "a", "wb") as file:
        file.write(b"abcd")
        os.fsync(file.fileno())
    os.link(folder / "last" / "a", folder / "b")


def test_a_full_disk_has_no_room_for_later_writes(tmp_path):
    def work():
        with pytest.raises(OSError, match="No space left on device"):
            write_twice(tmp_path)
        (tmp_path.parent / "elsewhere").write_bytes(b"a")

    assert in_fork(fill_disk.FullDisk(tmp_path, 3), work) == 0
    assert (tmp_path / "last" / "a").read_bytes() == b"" and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("at", "middle", "left"),
    [
        (1, False, {}),
        (2, False, {"last": None}),
        (3, True, {"last": None, "last/a": b"ab"}),
        (4, False, {"last": None, "last/a": b""}),  # what is in the buffer of a file is lost
    ],
)
def test_a_process_is_killed_at_an_operation_of_its_saves(at, middle, left, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert in_fork(kill_saves.Killing(run, at, middle), lambda: write_twice(run)) == -signal.SIGKILL
    found = {str(path.relative_to(run)): None if path.is_dir() else path.read_bytes() for path in run.rglob("*")}
    assert found == left


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_runs(program, tmp_path):
    benchmark.ran(f"faults.{program}", tmp_path, "--quick")
    rows = [json.loads(line) for line in (tmp_path / "reliability.jsonl").read_text().splitlines()]
    assert rows and all(row["program"] == program and row["tried"] == row["survived"] > 0 for row in rows)
