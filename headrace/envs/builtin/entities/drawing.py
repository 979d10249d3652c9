"""Images of environments on a plane."""

from __future__ import annotations

import numpy as np

BACKGROUND = (24, 24, 32)
Color = tuple[int, int, int]


def plane(pixels: int) -> np.ndarray:
    """An empty image, uint8 [pixels, pixels, 3]."""
    return np.full((pixels, pixels, 3), BACKGROUND, np.uint8)


def discs(image: np.ndarray, x: np.ndarray, y: np.ndarray, radius: float, color: Color) -> None:
    """Paint discs into a square image. x, y [M]: from the left and from below, 0 to 1; radius: pixels. What is outside
    of the image is left out."""
    size = len(image)
    reach = np.arange(-int(radius), int(radius) + 1)
    right, down = np.meshgrid(reach, reach)
    inside = right * right + down * down <= radius * radius
    column = np.floor(np.asarray(x)[:, None] * size).astype(int) + right[inside]
    row = np.floor((1.0 - np.asarray(y))[:, None] * size).astype(int) + down[inside]
    seen = (column >= 0) & (column < size) & (row >= 0) & (row < size)
    image[row[seen], column[seen]] = color
