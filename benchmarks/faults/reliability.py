"""The first table of docs/reliability.md, from what kill_runs.py, damage_checkpoints.py, fill_disk.py, send_signals.py,
save_memory.py, thread_stress.py and env_faults.py have appended to results/reliability.jsonl and results/faults.jsonl.

    python -m benchmarks.faults.reliability
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

from benchmarks import common
from benchmarks.tables import replace_table

PAGE = common.ROOT / "docs" / "reliability.md"


def empty(fault: str) -> common.Row:
    """A row of results/reliability.jsonl before anything was tried: what is done (`fault`), how often (`tried`), how
    often everything was as it should be afterwards (`survived`), and what was not (`wrong`)."""
    return {"fault": fault, "tried": 0, "survived": 0, "wrong": []}


def count(row: common.Row, attempt: str, wrong: str, **kinds: str) -> None:
    """Add an attempt to a row. wrong: what was not as it should be, empty for nothing.

    kinds: also counted, by name: with outcomes="refused", row["outcomes"]["refused"] is one more.
    """
    row["tried"] += 1
    row["survived"] += not wrong
    row["wrong"] += [f"{attempt}: {wrong}"] * bool(wrong)
    for name, kind in kinds.items():
        counts = row.setdefault(name, {})
        counts[kind] = counts.get(kind, 0) + 1


def append(results: Path, program: str, rows: list[common.Row]) -> None:
    """Add rows to results/reliability.jsonl, with the moment and the machine."""
    results.mkdir(parents=True, exist_ok=True)
    about = {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": common.machine()}
    with open(results / "reliability.jsonl", "a") as file:
        for row in rows:
            file.write(json.dumps({"program": program, **about, **row}) + "\n")


def finish(program: str, rows: list[common.Row], results: Path) -> None:
    """Append rows, print them as a table, and end with exit code 1 where something was lost."""
    append(results, program, rows)
    print(common.table(rows, ("fault", "tried", "survived")))
    print("\n".join(wrong for row in rows for wrong in row["wrong"]) or "all as they should be")
    raise SystemExit(any(row["tried"] != row["survived"] for row in rows))


def sums(results: Path) -> list[common.Row]:
    """The rows of each fault, added up, in the order of their first appearance."""
    found: dict[str, common.Row] = defaultdict(lambda: {"tried": 0, "survived": 0})
    for line in (results / "reliability.jsonl").read_text().splitlines():
        row = json.loads(line)
        total = found[row["fault"]]
        total["fault"] = row["fault"]
        for name in ("tried", "survived"):
            total[name] += row[name]
        if "ratio" in row:  # of the last measurement
            total["ratio"] = row["ratio"]
    return list(found.values())


def injected(results: Path) -> common.Row:
    """The last full run of env_faults.py, as a row."""
    runs = [json.loads(line) for line in (results / "faults.jsonl").read_text().splitlines()]
    last = [run for run in runs if not run["quick"]][-1]
    rows = last["rows"]
    return {
        "fault": f"{last['faults']:,} exceptions, deaths and hangs of environments, by training",
        "tried": sum(row["runs"] for row in rows),
        "survived": sum(row["as_they_should"] for row in rows),
    }


def markdown(rows: list[common.Row]) -> str:
    """The table."""
    lines = ["| fault | tried | survived | lost |", "|---|--:|--:|--:|"]
    for row in rows:
        lost = row["tried"] - row["survived"]
        ratio = f", at most {row['ratio']:.2f} times the run's memory" if "ratio" in row else ""
        lines.append(f"| {row['fault']}{ratio} | {row['tried']:,} | {row['survived']:,} | {lost:,} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table into the page, and print it."""
    options = common.parser(__doc__ or "").parse_args()
    replace_table("faults/reliability", markdown([*sums(options.results), injected(options.results)]), PAGE)


if __name__ == "__main__":
    main()
