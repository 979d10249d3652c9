"""Environments: `make` gives N of them, by name, Gymnasium id, `file.py:Class`, class or function. Names only."""

import headrace.gym  # noqa: F401  registers ids with Gymnasium
from headrace.envs.base import Env as Env
from headrace.envs.compiled.kernel_env import KernelEnv as KernelEnv
from headrace.envs.construct import Listing as Listing
from headrace.envs.construct import adapted as adapted
from headrace.envs.construct import can_render as can_render
from headrace.envs.construct import comes_as_vector as comes_as_vector
from headrace.envs.construct import entry_of as entry_of
from headrace.envs.construct import factory as factory
from headrace.envs.construct import listing as listing
from headrace.envs.construct import make as make
from headrace.envs.registry import Source as Source
from headrace.envs.registry import Spec as Spec
from headrace.envs.registry import register as register
from headrace.envs.registry import spec as spec
