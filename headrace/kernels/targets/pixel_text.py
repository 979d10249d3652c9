"""Common text of the generated modules that draw pixel observations.

The same state gives the same gray levels on every target, byte for byte. So, unlike in steps, no product is fused with
a sum: on the CPU no flag allows it, on CUDA products are calls of `_product`.

The newest frame is last among an observation's channels, and older frames move up by one; after a reset all frames are
the first one. Older frames are read from row t of the rollout, so that no other copy is kept.
"""

from __future__ import annotations

from headrace.kernels.language.ir import EnvIR


def gray_levels(ir: EnvIR) -> list[str]:
    """The result `gray` of env_pixel, channel by channel."""
    return ["gray"] if ir.channels == 1 else [f"gray[{c}]" for c in range(ir.channels)]
