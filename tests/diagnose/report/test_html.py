"""report.html: complete, self-contained, and drawn by a browser where one is installed."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from helpers.profiles import facts, lane, profile, worker

from headrace.diagnose.profile.profile import Kind, Role, Series, Span
from headrace.diagnose.report import charts, html
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge

BROWSER = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--virtual-time-budget=1000"
)


class Reader(HTMLParser):
    """Collects the tags, and checks that what is opened is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def made():
    return facts(worker(1, 0.2), worker(2, 0.2), worker(3, 0.6), WAIT=0.65, INFERENCE=0.1, FORWARD=0.25)


def test_it_is_well_formed_and_needs_no_network(made):
    reader = Reader()
    page = html.page(made, judge(made))
    reader.feed(page)
    assert reader.open == []
    assert reader.links == []
    assert "script" not in reader.tags
    assert "@import" not in page and "url(" not in page


def test_it_has_every_section_lane_and_remedy(made):
    page = html.page(made, judge(made))
    for section in ("parts", "verdict", "remedies", "timeline", "utilisation", "limitations"):
        assert f'<section id="{section}">' in page
    for name in ("main", "worker 1", "worker 2", "worker 3"):
        assert page.count(f'<div class="lane">{name}<') == 2  # the whole window, and the zoom
    for remedy in judge(made).remedies:
        assert remedy.title in page


def test_the_answer_comes_first_and_every_gpu_has_a_lane():
    made = facts(EVALUATION=0.56, FORWARD=0.44, counters={"env_rate": 951.0})
    made.profile.series += [Series(f"gpu {number} busy", "%", [0.0, 9.0], [20.0, 90.0]) for number in (0, 1)]
    page, first = html.page(made, judge(made)), judge(made).remedies[0]
    assert page.index('<section id="answer">') < page.index('<section id="parts">')
    answer = page[page.index('<section id="answer">') : page.index('<section id="parts">')]
    assert "951 steps/s" in answer and first.title in answer and f"about {first.gain:.2f}x" in answer
    assert page.count('<div class="lane">gpu 0<') == page.count('<div class="lane">gpu 1<') == 2
    assert "evaluation</i>" in page  # a part of the bar, with its name


def test_words_of_a_script_are_escaped():
    made = profile()
    made.command = ["<script>alert(1)</script>.py"]
    assert "<script>" not in html.page(Facts(made), judge(Facts(made)))


def test_a_script_that_was_not_seen_gives_a_page_all_the_same():
    made = profile()
    made.lanes = []
    assert "No samples were taken." in html.page(Facts(made), judge(Facts(made)))


def test_the_shares_of_a_column_add_up():
    spans = [Span(0.0, 1.5, Role.ENVIRONMENT), Span(1.5, 4.0, Role.FORWARD)]
    first, second, third, fourth = charts.binned(spans, 0.0, 4.0, 4)
    assert first == {Role.ENVIRONMENT: 1.0}
    assert second == {Role.ENVIRONMENT: 0.5, Role.FORWARD: 0.5}
    assert third == fourth == {Role.FORWARD: 1.0}


def test_a_series_holds_its_value_until_the_next_and_series_are_summed():
    one = Series("cores", "cores", [0.0, 1.0], [1.0, 3.0])
    other = Series("cores", "cores", [0.0], [0.5])
    assert charts.summed([one, other], 4.0, 4) == [1.5, 3.5, 3.5, 3.5]


def test_a_native_thread_is_drawn_by_its_use_of_a_core():
    pool = lane(100, Kind.POOL, "pool", turns=1, OTHER=1.0)
    pool.spans[0].on_cpu = 0.25
    assert "M0 75.0h1V100h-1z" in charts.effort(pool, 0.0, 50.0, 1)


@pytest.mark.slow  # a browser has moods of its own
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_the_chart_and_the_table(made, tmp_path):
    path = html.save(made, judge(made), tmp_path)
    command = [BROWSER, *FLAGS.split(), f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", f"file://{path}"]
    dom = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert dom.count("<svg") == 2 * 4 + 1  # two timelines of four lanes, and the cores
    assert '<td class="part"><span class="dot"' in dom
    shot = tmp_path / "report.png"
    command = [*command[:-2], "--window-size=1400,3000", f"--screenshot={shot}", f"file://{path}"]
    subprocess.run(command, capture_output=True, check=True)
    assert {"#e8833a", "#9bd0a5", "#3b7dd8"} <= colours(shot)


def colours(path):
    """Colours of an image that a hundred points or more have."""
    from PIL import Image

    with Image.open(path) as picture:
        counted = picture.convert("RGB").getcolors(1 << 24)
    return {f"#{r:02x}{g:02x}{b:02x}" for number, (r, g, b) in counted if number >= 100}
