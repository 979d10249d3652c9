"""One bad folder, file or name among many: the others are shown, and terminals obey none of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.core.terminal import say, tell
from headrace.core.text import plain_table, printable
from headrace.diagnose.report.html import escape
from headrace.evaluation.curves import _label
from headrace.runs.listing import runs

BAD_NAMES = ["\x1b[31mred", "a\nb\tc", "\u202etxt.exe", "[red]x[/red]", "\udc80", "\x9b2J", "<b>&", "$x^{$", "_hidden"]
MONITOR = '#{"t_start": 0, "env_id": "Pole"}\nr,l,t\n1.0,5,0.1\n2.0,5,0.2\n'


def make_run(folder: Path, env: str = "Pole") -> Path:
    """A run's folder without a policy."""
    folder.mkdir(parents=True)
    (folder / "command.txt").write_text("headrace train ppo Pole\n")
    (folder / "config.toml").write_text(f'algorithm = "ppo"\nenv = {json.dumps(env)}\nseed = 3\n')
    (folder / "metrics.jsonl").write_text('{"steps": 10, "seconds": 0.2, "return": 2.0}\n')
    (folder / "monitor.csv").write_text(MONITOR)
    return folder


def bytes_in(name: str, content: bytes):
    return lambda run: (run / name).write_bytes(content)


def a_pipe(name: str):
    def put(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return put


def a_link_to_nowhere(run: Path) -> None:
    (run / "command.txt").unlink()
    (run / "command.txt").symlink_to("nowhere")


DAMAGES = {
    "binary settings": bytes_in("config.toml", b"\xff\x00"),
    "no settings": lambda run: (run / "config.toml").unlink(),
    "half a table": bytes_in("config.toml", b"env = ["),
    "deep settings": bytes_in("config.toml", b"a = " + b"[" * 20_000),
    "a list of steps": bytes_in("metrics.jsonl", b'{"steps": [1], "seconds": {}, "return": "x"}\n'),
    "deep metrics": bytes_in("metrics.jsonl", b"[" * 50_000 + b"\n"),
    "null": bytes_in("metrics.jsonl", b'{"steps": null, "return": null}\n'),
    "endless": bytes_in("metrics.jsonl", b'{"steps": 1e999, "return": NaN}\n'),
    "a pipe of settings": a_pipe("config.toml"),
    "a pipe of metrics": a_pipe("metrics.jsonl"),
    "a link": a_link_to_nowhere,
    "a folder of settings": lambda run: ((run / "config.toml").unlink(), (run / "config.toml").mkdir()),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes and links")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_bad_folder_hides_no_others(damage, tmp_path, capsys):
    for number in (1, 2, 3):
        make_run(tmp_path / "ppo" / f"Pole_{number}")
    bad = tmp_path / "ppo" / "Pole_2"
    damage(bad)
    last = bad / "last"
    last.mkdir()
    (last / "manifest.json").write_text('{"sha256": 1}')
    assert {run.path.name for run in runs(tmp_path)} >= {"Pole_1", "Pole_3"}
    for sort in ("time", "return", "best", "steps"):
        assert main(["runs", str(tmp_path), "--sort", sort]) == 0
    assert "Pole_1" in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--json"]) == 0


def test_a_plot_of_many_leaves_out_what_cannot_be_read(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    good = [make_run(tmp_path / name) for name in ("a", "b", "e")]
    (good[2] / "config.toml").write_text('algorithm = "_$x^{"\nenv = "\\u001b[31m"\n')
    (good[2] / "monitor.csv").write_text(MONITOR.replace("Pole", "_$x^{ \\u202e"))
    begun = make_run(tmp_path / "begun")
    (begun / "monitor.csv").write_text("")
    words = [str(path) for path in (*good, begun, tmp_path / "nowhere")]
    assert main(["plot", *words, "--output", str(tmp_path / "curves.svg")]) == 0
    assert capsys.readouterr().err.count("left out: ") == 2
    assert main(["plot", str(begun), "--output", str(tmp_path / "curves.svg")]) == 2


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_names_reach_no_terminal_as_they_are(name, tmp_path, capsys):
    shown = printable(name)
    assert shown.isprintable() and shown.encode()
    assert plain_table([("run",), (name,)]) == f"run\n{shown}"
    say(f"a {name}\nb")
    tell(name)
    said = capsys.readouterr()
    assert not set("\x1b\u202e\udc80\x9b") & set(said.out + said.err) and said.out.endswith("\nb\n")
    folder = make_run(tmp_path / "run", env=name if name != "\udc80" else "x")
    try:
        folder = folder.rename(tmp_path / name)
    except (OSError, UnicodeError):  # this file system has no such names
        shutil.rmtree(folder)
        return
    assert main(["runs", str(tmp_path)]) == 0
    assert main(["eval", str(folder)]) == 2  # an error, which names it
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert not set("\x1b\u202e\udc80\x9b") & set(said.out + said.err)


def test_names_in_reports_and_plots():
    assert escape("<b>\x1b[1m 5 %") == "&lt;b&gt;\\x1b[1m 5&nbsp;%"
    assert _label("_a$b\u202e") == r" _a\$b\u202e" and len(_label("x" * 1000)) == 100


def test_a_live_table_shows_a_name_with_brackets_as_it_is(capsys, monkeypatch):
    from rich.console import Console

    from headrace.runs import progress

    result = type("Result", (), {})()
    monkeypatch.setattr(progress, "_speed", lambda result: "1")
    monkeypatch.setattr(progress, "_return", lambda result: "return 1")
    vars(result).update(steps=1, seconds=1.0, seconds_left=None, mean_length=None, metrics={}, fractions={})
    console = Console(file=sys.stdout, width=80)
    console.print(progress._table("ppo on [red]x[/red] [/]\x1b[1m", result))
    assert r"[red]x[/red] [/]\x1b[1m" in capsys.readouterr().out
