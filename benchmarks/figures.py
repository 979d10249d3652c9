"""One look for the figures: the width of a paper's column or page, colours that everybody can tell apart, units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLUMN, PAGE = 3.5, 7.2  # inches
# Okabe & Ito 2008, safe for colour blindness; each also has a marker of its own
STYLES = {
    "subprocess": ("#E69F00", "s"),
    "inline": ("#D55E00", "v"),
    "torch": ("#56B4E9", "^"),
    "kernel": ("#0072B2", "o"),
    "kernel-threads": ("#009E73", "D"),
    "sb3": ("#000000", "X"),
    "torch-cuda": ("#F0E442", "<"),
}
BLOCK_COLOURS = ("#99d8c9", "#66c2a4", "#41ae76", "#238b45", "#006d2c", "#00441b")  # threads a block, light to dark
STYLES |= {f"cuda-{32 << i}": (colour, "d") for i, colour in enumerate(BLOCK_COLOURS)}
FONT = {"font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7, "svg.fonttype": "none"}
FONT |= {"xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "font.family": "DejaVu Sans"}


def canvas(width: float, height: float, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its panels, for savefig alone: no screen is asked for."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(FONT)
    figure = Figure(figsize=(width, height), dpi=300, layout="constrained")
    return figure, figure.subplots(1, columns, **options)


def dress(panel: Any) -> None:
    """A quiet grid, no frame where there is no axis."""
    panel.grid(color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def line(panel: Any, name: str, x: Any, y: Any, label: str | None = None, **options: Any) -> None:
    """A line in the colour and with the marker that belong to a way of running environments."""
    colour, marker = STYLES[name]
    look = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.3, "markeredgewidth": 0}
    panel.plot(x, y, **{**look, "label": label, **options})


def save(figure: Any, folder: Path, name: str) -> Path:
    """Write NAME.png into the folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path)
    return path
