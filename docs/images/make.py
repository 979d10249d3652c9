"""Make the images of the documents from real runs: .venv/bin/python docs/images/make.py

From a diagnosis that benchmarks/pages/diagnose_guide.py made: .venv/bin/python docs/images/make.py --report diagnoses/1
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 100  # characters


def headrace(folder: str, *arguments: str) -> str:
    """Run the command in a folder; return what it prints."""
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def picture(lines: list[str], path: Path) -> None:
    """Write lines of a terminal as an SVG."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=StringIO(), highlight=False)
    for line in lines:
        console.print(line, markup=False, style="bold" if line.startswith("$") else None)
    svg = console.export_svg(title="headrace")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))  # use the reader's own monospace font


def report(folder: Path) -> None:
    """Write a screenshot of the upper part of a diagnosis's report."""
    browser = next(path for name in ("chromium", "google-chrome") if (path := shutil.which(name)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory() as profile:
        flags += [f"--user-data-dir={profile}", "--disable-background-networking", "--window-size=1000,1145"]
        page = (folder / "report.html").resolve().as_uri()
        subprocess.run([browser, *flags, f"--screenshot={HERE / 'report.png'}", page], check=True, timeout=120)


def main() -> None:
    if sys.argv[1:2] == ["--report"]:
        report(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        headrace(folder, "train", "ppo", "CartPole-v1", "--log-folder", "warm")  # fills the kernel cache
        printed = headrace(folder, "train", "ppo", "CartPole-v1")
    picture(["$ headrace train ppo CartPole-v1", *printed.splitlines()], HERE / "terminal.svg")


if __name__ == "__main__":
    main()
