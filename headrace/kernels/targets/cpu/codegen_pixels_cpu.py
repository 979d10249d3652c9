"""EnvIR -> the text of a Numba module that draws pixel observations on the CPU."""

from __future__ import annotations

from textwrap import indent

from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import prelude
from headrace.kernels.targets.cpu.state_layout import blocks, params, state, state_arguments
from headrace.kernels.targets.pixel_text import greys, tables

EXACT = '@njit(error_model="numpy", forceinline=True)'
KERNEL = '@njit(error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)'
PARALLEL = '@njit(error_model="numpy", nogil=True, cache=True, parallel=True)'
COLUMNS = "observation, valid, row, frame_row, frame_world"

# Of one world, whose number is lo.
CPU = """\
{exact}
def draw_world({names}, t, lo):
    i = np.uint64(0)
{state}
    image = (t + 1) * frame_row + lo * frame_world
    newest = image + {older}
    for y in range({height}):
        line = newest + y * {width}
        for x in range(np.uint64({width})):
            grey = env_pixel(s, p, I32(y), I32(x))
{greys}
    if t >= 0 and valid[t * row + lo]:
        earlier = t * frame_row + lo * frame_world + {frame}
        for k in range(np.uint64({older})):
            observation[np.uint64(image) + k] = observation[np.uint64(earlier) + k]
    else:
        for older in range({older_frames}):
            for k in range(np.uint64({frame})):
                observation[np.uint64(image + older * {frame}) + k] = observation[np.uint64(newest) + k]


{kernel}
def draw({names}, lo, hi, t):
    for world in range(lo, hi):
        draw_world({names}, t, world)


{parallel}
def draw_parallel({names}, cut, t):
    for part in prange(cut.shape[0] - 1):
        draw({names}, cut[part], cut[part + 1], t)
"""


def cpu_pictures(source: EnvIR, per_env: bool) -> str:
    """The text of a Numba module with `draw(..., lo, hi, t)` and `draw_parallel(..., cut, t)`, which write row t + 1 of
    worlds lo .. hi - 1. per_env: each parameter has a value per world. The observations are given flat, frame_row
    bytes from row to row and frame_world from world to world."""
    height, width = source.observation_space.shape[-2:]
    frame = source.channels * height * width
    loaded = [*blocks(source, per_env), *([params(source, True)] if per_env else []), state(source)]
    drawn = [
        f"observation[np.uint64(line + {c * height * width}) + x] = U8(_byte({grey}))"
        for c, grey in enumerate(greys(source))
    ]
    draw = CPU.format(
        exact=EXACT,
        kernel=KERNEL,
        parallel=PARALLEL,
        names=f"{state_arguments(source)}, {COLUMNS}",
        state=indent("\n".join(loaded), " " * 4),
        height=height,
        width=width,
        frame=frame,
        older_frames=source.frames - 1,
        older=(source.frames - 1) * frame,
        greys=indent("\n".join(drawn), " " * 12),
    )
    head = f'"""Pictures of {source.name}, drawn on the CPU. Generated; the environment\'s own file is the source."""'
    pixel = source.picture_code.replace("def env_", f"{EXACT}\ndef env_")
    return "\n\n".join(
        [head, "from numba import njit, prange", prelude(EXACT), *tables(source), pixel, draw],
    )
