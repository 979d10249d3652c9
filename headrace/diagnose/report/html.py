"""The report as one HTML file: no scripts, nothing from the network, light or dark by the system's setting."""

from __future__ import annotations

from html import escape as _escape
from importlib.resources import files
from pathlib import Path

from headrace.core.terminal import LINES
from headrace.core.text import printable
from headrace.diagnose.profile.formatting import percent, times
from headrace.diagnose.profile.profile import Lane, Role, Series
from headrace.diagnose.record.trials import Trials
from headrace.diagnose.report import charts
from headrace.diagnose.report.answer import Answer, answer, command_line
from headrace.diagnose.report.table import Row, mostly, rows, scene
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import Remedy
from headrace.diagnose.verdict.verdict import Verdict, gain_text

REPORT = "report.html"
MOST_LANES = 24
ZOOM = 0.5  # s shown by the second, enlarged timeline
TICKS = 6


def save(
    facts: Facts, verdict: Verdict, folder: Path, found: Answer | None = None, tried: Trials | None = None
) -> Path:
    """Write report.html into a folder, and give its path."""
    path = folder / REPORT
    path.write_text(page(facts, verdict, found, tried), encoding="utf-8")
    return path


def page(facts: Facts, verdict: Verdict, found: Answer | None = None, tried: Trials | None = None) -> str:
    """The whole file, with the answer first. found, tried: of --try; by default, `found` is the verdict's answer."""
    seen, found = bool(facts.profile.lanes), found or answer(facts, verdict)
    sections = [_answer(found), _parts(facts) if seen else "", _trials(tried) if tried else ""]
    sections += [_verdict(verdict), _remedies(verdict.remedies)]
    sections += [_timeline(facts), _utilisation(facts)] if seen else []
    sections += [_limitations(verdict)]
    style = files("headrace.diagnose.report").joinpath("report.css").read_text(encoding="utf-8")
    command = escape(command_line(facts.profile))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{command}: where the time goes</title>\n<style>\n{style}</style></head>\n<body><main>\n"
        f'<header><p class="tool">headrace diagnose <code>{command}</code></p>\n'
        f"<h1>{escape(found.sentence)}</h1></header>\n"
        + "\n".join(section for section in sections if section)
        + f"\n<footer>{escape(scene(facts.profile))}</footer>\n</main></body></html>\n"
    )


def _answer(found: Answer) -> str:
    """The speed, the first remedy, its gain and its code: readable without scrolling."""
    speed = f'<p class="speed">{escape(found.speed)}</p>' if found.speed else ""
    if not found.title:
        return f'<section id="answer">{speed}</section>' if speed else ""
    return (
        f'<section id="answer">{speed}<div class="head"><h2>{escape(found.title)}</h2>'
        f'<span class="gain">{escape(found.gain)}</span></div>\n<pre>{escape(found.command)}</pre></section>'
    )


def _trials(tried: Trials) -> str:
    """The table of what --try measured."""
    items = [
        f'<tr><td><code>{escape(trial.change)}</code></td><td class="number">{times(trial.gain)}</td>'
        f'<td class="number">{times(trial.low)} to {times(trial.high)}</td>'
        f'<td class="number">{", ".join(f"{rate:,.0f}" for rate in trial.rates)}</td></tr>'
        for trial in tried.found
    ]
    head = "<tr><th>with</th>" + "".join(
        f'<th class="number">{name}</th>' for name in ("as fast", "interval", "optimizer steps/s, by turn")
    )
    rows = f'<div class="table"><table><thead>{head}</tr></thead><tbody>{"".join(items)}</tbody></table></div>'
    notes = "".join(f"<p>{escape(note)}</p>" for note in tried.notes)
    return _section("trials", f"Measured in {tried.runs} runs", (rows if items else "") + notes)


def _parts(facts: Facts) -> str:
    shown, left_out = rows(facts), ""
    if facts.start_up >= 0.05:
        left_out = f'<p class="soft">Start-up, {facts.start_up:.1f} s of the window, is not counted.</p>'
    content = (
        f'{charts.bar(shown)}\n<div class="table"><table><thead><tr><th>activity</th><th class="number">seconds</th>'
        '<th class="number">share</th><th class="where">mostly at</th></tr></thead>\n'
        f"<tbody>{''.join(_row(facts, row) for row in shown)}</tbody></table></div>{left_out}"
    )
    return _section("parts", "Wall time of the training thread", content)


def _row(facts: Facts, row: Row) -> str:
    numbers = f'<td class="number">{row.seconds:.1f}</td><td class="number">{percent(row.share)}</td>'
    where = f'<td class="where"><code>{escape(mostly(facts, row.role))}</code></td>'
    return f'<tr><td class="part">{_dot(row.colour)}{escape(row.title)}</td>{numbers}{where}</tr>'


def _verdict(verdict: Verdict) -> str:
    paragraphs = [verdict.where, verdict.bounds, *verdict.notes]
    text = "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs if paragraph)
    return _section("verdict", "Summary", text)


def _remedies(remedies: list[Remedy]) -> str:
    if not remedies:
        return ""
    items = [
        f'<li><div class="head"><h3>{number}. {escape(remedy.title)}</h3>'
        f'<span class="gain">speedup {gain_text(remedy)}</span>'
        f'<span class="soft">effort: {escape(remedy.effort)}</span></div>\n<p>{escape(remedy.why)}</p>\n'
        f"<pre>{escape(remedy.change)}</pre></li>"
        for number, remedy in enumerate(remedies, 1)
    ]
    return _section("remedies", "Remedies", f'<ol class="remedies">{"".join(items)}</ol>')


def _timeline(facts: Facts) -> str:
    profile = facts.profile
    busiest = profile.lanes[:1] + sorted(profile.lanes[1:], key=lambda lane: -lane.cpu_seconds)
    hidden = len(busiest) - MOST_LANES
    lanes = [lane for lane in profile.lanes if any(lane is shown for shown in busiest[:MOST_LANES])]
    middle = max(profile.seconds / 2 - ZOOM / 2, 0.0)
    caption = "The whole window. Each column shows the shares of time in its interval."
    gpus = [series for series in profile.series if series.name.startswith("gpu") and series.unit == "%"]
    whole = _figure(lanes, gpus, 0.0, profile.seconds, caption)
    caption = f"Zoom: {ZOOM:g} s from the middle of the window."
    zoom = _figure(lanes, gpus, middle, min(middle + ZOOM, profile.seconds), caption)
    roles = [role for role in Role if any(lane.seconds.get(role, 0.0) > 0 for lane in lanes)]
    legend = "".join(f"<span>{_dot(role.colour)}{escape(facts.title(role))}</span>" for role in roles)
    more = f'<p class="soft">{hidden} more threads, which used less CPU time, are not shown.</p>' if hidden > 0 else ""
    content = f'{whole}\n{zoom}\n<div class="legend">{legend}</div>{more}'
    return _section("timeline", "Timeline of processes and threads", content)


def _figure(lanes: list[Lane], gpus: list[Series], start: float, end: float, caption: str) -> str:
    drawn = "\n".join([*(_lane(lane, start, end) for lane in lanes), *(_gpu(series, start, end) for series in gpus)])
    return (
        f'<figure><figcaption>{caption}</figcaption>\n<div class="lanes">{drawn}\n'
        f'<div class="corner"></div>{_axis(start, end)}</div></figure>'
    )


def _lane(lane: Lane, start: float, end: float) -> str:
    picture = charts.strip if lane.samples or lane.total else charts.effort
    kind = "" if lane.name.startswith(lane.kind) else f"{lane.kind}, "
    return (
        f'<div class="lane">{escape(lane.name)}<small>{kind}process {lane.pid}, '
        f"{lane.cpu_seconds:.1f} s of CPU time</small></div>{picture(lane, start, end)}"
    )


def _gpu(series: Series, start: float, end: float) -> str:
    """A GPU's lane: the share of time in which a kernel ran."""
    name = escape(series.name.removesuffix(" busy"))
    return f'<div class="lane">{name}<small>busy, by NVML</small></div>{charts.level(series, start, end)}'


def _axis(start: float, end: float) -> str:
    digits = 0 if end - start >= 2 * TICKS else 1 if end - start > 1 else 2
    ticks = [start + (end - start) * tick / (TICKS - 1) for tick in range(TICKS)]
    return f'<div class="axis">{"".join(f"<span>{tick:.{digits}f} s</span>" for tick in ticks)}</div>'


def _utilisation(facts: Facts) -> str:
    profile = facts.profile
    cores = [series for series in profile.series if series.unit == "cores"]
    others = [[series] for series in profile.series if series.unit != "cores"]
    figures = []
    for shown in [cores, *others] if cores else others:
        mean = sum(charts.summed(shown, profile.seconds, charts.COLUMNS)) / charts.COLUMNS
        top, name, unit = float(facts.cores), escape(shown[0].name), escape(shown[0].unit)
        caption = f"Cores used by all processes: {mean:.2f} of {facts.cores} on average."
        if shown is not cores:
            top = 100.0 if unit == "%" else max([*shown[0].values, 1.0])
            caption = f"{name}: {mean:.0f} {unit} on average; the chart's height is {top:.0f}."
        picture = charts.area(shown, profile.seconds, top) + _axis(0.0, profile.seconds)
        figures.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
    if not profile.machine.gpu:
        figures.append('<p class="soft">This machine has no GPU that the script can see.</p>')
    return _section("utilisation", "CPU and GPU use", "".join(figures))


def _limitations(verdict: Verdict) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in verdict.limitations)
    return _section("limitations", "Accuracy and limitations", f'<ul class="plain">{items}</ul>')


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>\n{content}</section>'


def escape(text: str) -> str:
    """Text as HTML, with numbers and their units on one line."""
    return _escape(printable(text, LINES)).replace(" %", "&nbsp;%")


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background:{colour}"></span>'
