"""The documentation site builds strictly, without a network, and what one looks for is found in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page(site):
    documents = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert not [path for path in documents if not (site / path).exists()]


def test_every_link_between_pages_leads_somewhere(site):
    broken = []
    for page in site.rglob("*.html"):
        for target in re.findall(r'<a [^>]*href="([^"#?:]+)(?:#[^"]*)?"', page.read_text()):
            if page.name != "404.html" and not (page.parent / target).resolve().exists():
                broken.append((page.name, target))
    assert not broken


def test_every_public_name_is_in_the_reference(site):
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    others = {
        "EnvError",
        *(name for name in headrace.__all__ if name.endswith("Config")),
    }  # those are tables of settings
    ours = [name for name in set(headrace.__all__) - others if defined_here(getattr(headrace, name))]
    assert len(ours) > 20 and not [name for name in ours if f'id="headrace.{name}"' not in pages]


def defined_here(value: object) -> bool:
    """Tell whether a public name is no module, and not of Gymnasium."""
    return getattr(value, "__module__", "").startswith("headrace")


def test_a_setting_is_listed_with_its_default_and_its_comment(site):
    page = (site / "reference" / "settings.html").read_text()
    anchored = '<a id="ppo.clip" href="#ppo.clip"><code>clip</code></a>'
    row = re.search(rf"<tr>\s*<td>{anchored}</td>.*?</tr>", page, re.DOTALL)
    assert row and "<code>0.2</code>" in row[0] and "probability ratio" in row[0]


@pytest.mark.parametrize("word", ["overlapped", "bootstrap row", "max_policy_lag", "Philox", "minibatch_size"])
def test_search_finds(site, word):
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any(word.lower() in (entry["title"] + entry["text"]).lower() for entry in index["docs"])


@pytest.mark.parametrize(
    ("word", "page"),
    {
        "LSTM": "algorithms.html",
        "custom loss": "own-algorithm.html",
        "Action masks": "environments.html",
        "PettingZoo": "multi-agent.html",
        "Atari": "simulators.html",
        "worker processes": "workers.html",
        "MATLAB": "words.html",
    }.items(),
)
def test_a_word_is_in_a_title_of_the_page_that_answers_it(site, word, page):
    """Titles come first in the results of a search."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    titles = [entry["title"] for entry in index["docs"] if entry["location"].partition("#")[0] == page]
    assert any(word.lower() in title.lower() for title in titles), titles


def test_pages_load_nothing_from_elsewhere(site):
    for page in ("index.html", "reference/training.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', (site / page).read_text())
        assert not loaded
