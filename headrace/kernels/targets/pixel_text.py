"""What the modules that draw pixel observations have in common on all targets.

A pixel has the same grey on every target, byte for byte, where the state is the same. So here, unlike in steps, no
product is fused with a sum: on the CPU by saying so, on CUDA by `_product`.

The newest frame stands last among an observation's channels, and those before it move up by one; after a reset all are
the first frame. What was drawn before is read from row t of the rollout, so that nothing is kept beside it.
"""

from __future__ import annotations

from headrace.kernels.language.ir import EnvIR


def greys(source: EnvIR) -> list[str]:
    """What env_pixel gave, channel by channel."""
    return ["grey"] if source.channels == 1 else [f"grey[{c}]" for c in range(source.channels)]


def tables(source: EnvIR) -> list[str]:
    """Lines that define the arrays that the functions name."""
    return [f"{name} = np.array({a.tolist()!r}, np.{a.dtype})" for name, a in source.constants.items()]
