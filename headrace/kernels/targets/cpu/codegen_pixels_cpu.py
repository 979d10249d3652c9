"""EnvIR -> the text of a Numba module that draws pixel observations on the CPU."""

from __future__ import annotations

from textwrap import indent

from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import INNER, prelude
from headrace.kernels.targets.cpu.state_layout import CpuText
from headrace.kernels.targets.episode_text import constants, decorated, title
from headrace.kernels.targets.pixel_text import gray_levels

EXACT = f'@njit(error_model="numpy", forceinline=True, {INNER})'
KERNEL = f'@njit(error_model="numpy", nogil=True, {INNER})'

# Environment 0 of a block that begins at lo.
DRAW = """\
{exact}
def draw_env({names}, t, lo):
    i = np.uint64(0)
{state}
    image = (t + 1) * frame_row + lo * frame_env
    newest = image + {older}
    for y in range({height}):
        line = newest + y * {width}
        for x in range(np.uint64({width})):
            gray = env_pixel(s, p, I32(y), I32(x))
{pixels}
    if t >= 0 and valid[t * row + lo]:
        earlier = t * frame_row + lo * frame_env + {frame}
        for k in range(np.uint64({older})):
            observation[np.uint64(image) + k] = observation[np.uint64(earlier) + k]
    else:
        for older in range({older_frames}):
            for k in range(np.uint64({frame})):
                observation[np.uint64(image + older * {frame}) + k] = observation[np.uint64(newest) + k]


{kernel}
def draw({names}, lo, hi, t):
    for env in range(lo, hi):
        draw_env({names}, t, env)

"""


def cpu_pixel_module(ir: EnvIR, per_env: bool) -> str:
    """The text of a Numba module with `draw(..., lo, hi, t)`, which writes row t + 1 of environments lo .. hi - 1.

    per_env: each parameter has a value per environment. Observations are given flat, frame_row bytes from row to row
    and frame_env from environment to environment."""
    height, width = ir.observation_space.shape[-2:]
    frame = ir.channels * height * width
    text = CpuText(ir, per_env)
    pixels = [
        f"observation[np.uint64(line + {c * height * width}) + x] = U8(_byte({gray}))"
        for c, gray in enumerate(gray_levels(ir))
    ]
    draw = DRAW.format(
        exact=EXACT,
        kernel=KERNEL,
        names=f"{text.arguments()}, observation, valid, row, frame_row, frame_env",
        state=indent("\n".join([*text.packs(), *text.load]), " " * 4),
        height=height,
        width=width,
        frame=frame,
        older_frames=ir.frames - 1,
        older=(ir.frames - 1) * frame,
        pixels=indent("\n".join(pixels), " " * 12),
    )
    head = [title(ir, "pixel observations, drawn on the CPU"), "from numba import njit", prelude(EXACT)]
    return "\n\n".join([*head, *constants(ir), decorated(ir.pixel_code, EXACT), draw])
