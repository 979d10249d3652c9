"""The tables of docs/verdicts.md from the rows of benchmarks/diagnose/verdicts.py: the newest of each half and kind.

python -m benchmarks.pages.verdicts_page
"""

from __future__ import annotations

from benchmarks.common import HERE, ROOT, Row, read_rows
from benchmarks.diagnose.verdicts_rates import LEAST
from benchmarks.tables import replace_table

FILE = HERE / "results" / "verdicts.jsonl"
PAGE = ROOT / "docs" / "verdicts.md"
HALVES = ("open", "sealed")


def main() -> None:
    runs = read_rows(FILE)
    before = _rows([run for run in runs if run["label"].startswith("before")], "verdicts", "planted", "open")
    now = {half: _rows(runs, "verdicts", "planted", half) for half in HALVES}
    ablated = {half: _rows(runs, "verdicts", "ablated", half) for half in HALVES}
    gains = {half: _rows(runs, "gains", "planted", half) for half in HALVES}
    # earlier gains have no verdict of their own to compare with
    gained = {half: {row["script"]: row for row in gains[half] if "predicted" in row} for half in HALVES}
    strangers = _rows(runs, "verdicts", "strangers", "open")
    text = [*_outcomes(now, ablated, strangers), "", *_counts(before, now, gained)]
    if strangers:
        text += ["", "### The scripts of strangers", "", *_ablated(strangers)]
    for half in HALVES:
        text += ["", f"### The {half} half of the ablated scripts", "", *_ablated(ablated[half])]
    for half in HALVES:
        old = {row["script"]: row for row in before if half == "open"}
        text += ["", f"### The {half} half of the planted scripts", "", *_scripts(now[half], old, gained[half])]
    replace_table("pages/verdicts_page", "\n".join(text), PAGE)


def _rows(runs: list[Row], measured: str, which: str, half: str) -> list[Row]:
    """The rows of all runs, of each script the newest."""
    found = {}
    for run in runs:
        if run["measured"] == measured:
            kept = {"set": "planted", "half": run.get("half")}
            rows = (kept | row for row in run["rows"])
            found.update({row["script"]: row for row in rows if (row["set"], row["half"]) == (which, half)})
    return list(found.values())


def _outcomes(planted: dict[str, list[Row]], ablated: dict[str, list[Row]], strangers: list[Row]) -> list[str]:
    """Table of right, unknown and wrong verdicts, for each half, for the strangers' scripts and for all."""
    columns = [*planted.values(), *ablated.values(), *([strangers] if strangers else [])]
    columns.append([row for rows in columns for row in rows])
    names = [f"{which}, {half}" for which in ("planted", "ablated") for half in HALVES]
    names += ["strangers"] if strangers else []
    lines = [f"| | {' | '.join(names)} | all | aim |", f"|---|{'---:|' * (len(names) + 2)}"]
    aims = {"right": "9 of 10", "wrong and sure": "0"}
    for outcome in ("right", "unknown", "wrong, unsure", "wrong and sure"):
        numbers = [sum(row.get("outcome") == outcome for row in rows) for rows in columns]
        lines.append(f"| {outcome} | {' | '.join(map(str, numbers))} | {aims.get(outcome, '')} |")
    falsehoods = [sum(bool(row.get("falsehood")) for row in rows) for rows in columns]
    lines.append(f"| claims half of the time for a part of at most 20 % | {' | '.join(map(str, falsehoods))} | 0 |")
    return lines


def _ablated(rows: list[Row]) -> list[str]:
    """A line for each script whose main cost was measured by ablation."""
    lines = [
        "| script | library | main cost | said | outcome | guessed or unknown | first remedy |",
        "|---|---|---|---|---|---:|---|",
    ]
    for row in rows:
        cells = [f"`{row['script']}`", row["library"], row["kind"], row["seen"], row["outcome"]]
        cells += [f"{row['unsure']:.0%}".replace("%", " %"), row["first"] or "none"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _counts(before: list[Row], now: dict[str, list[Row]], gained: dict[str, dict[str, Row]]) -> list[str]:
    """Table of verdicts that are as planted, and of predictions that hold."""
    columns = [(before, {}), *((now[half], gained[half]) for half in HALVES)]
    applied = [
        [(row | gains[row["script"]], gains[row["script"]]["gained"]) for row in rows if _applied(row, gains)]
        for rows, gains in columns
    ]
    lines = [
        ("kind of verdict right", "36 of 40", [sum(row["right"] for row in rows) for rows, _ in columns]),
        ('a false "nothing to gain"', "0", [sum(_false_nothing(row) for row in rows) for rows, _ in columns]),
        ("unknown at most 20 %", "34 of 40", [sum(row["unknown"] <= 0.2 for row in rows) for rows, _ in columns]),
        (
            "first remedy the planted one, or none predicted where none was planted",
            "",
            [sum(row["first_right"] for row in rows) for rows, _ in columns],
        ),
        ("first remedies with a prediction, applied", "20", [len(pairs) for pairs in applied]),
        (
            "... gained from 0.8 of the prediction to the bound",
            "17 of 20",
            [sum(LEAST * row["predicted"] <= gain <= row["bound"] for row, gain in pairs) for pairs in applied],
        ),
        ("... gained more than its bound", "0", [sum(gain > row["bound"] for row, gain in pairs) for pairs in applied]),
        (
            "... bound at most twice the gain",
            "14 of 20",
            [sum(row["bound"] <= 2 * gain for row, gain in pairs) for pairs in applied],
        ),
        ("... gained less than 1.1, so wrong", "", [sum(gain < 1.1 for _, gain in pairs) for pairs in applied]),
    ]
    head = ["| | open, before | open, now | sealed, now | aim |", "|---|---:|---:|---:|---:|"]
    rows = []
    for name, aim, (old, *numbers) in lines:
        cells = [f"{old}" if not name.startswith(("...", "first remedies")) else "", *map(str, numbers)]
        rows.append(f"| {name} | {' | '.join(cells)} | {aim} |")
    return head + rows


def _applied(row: Row, gains: dict[str, Row]) -> bool:
    """Tell whether the first remedy is the planted one, with a prediction, and was applied."""
    return bool(row["script"] in gains and row["first_right"] and (row | gains[row["script"]])["predicted"])


def _false_nothing(row: Row) -> bool:
    return bool(row["seen"] == "nothing" and not row["right"])


def _scripts(rows: list[Row], before: dict[str, Row], gained: dict[str, Row]) -> list[str]:
    """A line for each script."""
    old_title, old_rule = ("before | ", "---|") if before else ("", "")
    lines = [
        f"| script | library | planted | {old_title}now | unknown | first remedy now | predicted | at most | gained |",
        f"|---|---|---|{old_rule}---|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        gain = gained.get(row["script"])
        said = gain or row  # a remedy was applied after a verdict of its own
        cells = [f"`{row['script']}`", row["library"], row["kind"]]
        cells += [_seen(before[row["script"]])] if before else []
        cells += [_seen(row), f"{row['unknown']:.0%}".replace("%", " %"), _first(row)]
        cells += [_times(said["predicted"]), _times(said["bound"] if said["predicted"] else None)]
        cells.append(
            "" if gain is None else f"{_times(gain['gained'])} ({_times(gain['low'])} to {_times(gain['high'])})"
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _seen(row: Row) -> str:
    return f"{row['seen']}{'' if row['right'] else ' (wrong)'}"


def _first(row: Row) -> str:
    return f"{row['first'] or 'none'}{'' if row['first_right'] else ' (not what was planted)'}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    main()
