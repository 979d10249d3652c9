"""Declarations of an environment class besides its functions: spaces, time limit, stacked frames, agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space

from headrace.data.flat_dict import ACTION_MASK, OBSERVATION, FlatDict, joinable
from headrace.kernels.language.errors import EnvError

MAX_ENTITIES = 65_536  # an entity's number is 16 bits of the key of its random draws
PIXELS = "Box(0, 255, (2, 42, 42), np.uint8)"


@dataclass(frozen=True)
class Declarations:
    """The checked attributes of a class."""

    observation_space: Box
    action_space: Space
    max_steps: int | None
    frames: int  # images stacked in a pixel observation; 0 for other observations
    agents: tuple[str, ...]  # their names, in the order of their columns
    groups: Mapping[str, tuple[str, ...]] = field(hash=False)  # name -> agents that share a policy
    entities: int  # equal parts of an environment, each with an entry in every array field of that size; 0: none
    phase_names: tuple[str, ...]  # functions for one entity that make a step, in their order
    reset_phase_names: tuple[str, ...]  # those that follow a reset

    @property
    def masked(self) -> bool:
        """True if observations end with an action mask."""
        return isinstance(self.observation_space, FlatDict) and ACTION_MASK in self.observation_space.members

    @property
    def num_agents(self) -> int:
        """Number of agents that share an environment."""
        return len(self.agents)

    @property
    def entity_agents(self) -> bool:
        """True if the first num_agents entities are the agents."""
        return self.entities > 0 and self.num_agents > 1

    @property
    def channels(self) -> int:
        """Gray levels of a pixel in one frame."""
        shape = self.observation_space.shape
        return shape[0] // self.frames if len(shape) == 3 else 1


class EnvClass(NamedTuple):
    """A class, and where it was written."""

    cls: type
    file: str
    line: int

    def fail(self, wrong: str, instead: str) -> NoReturn:
        """Raise EnvError at the class."""
        raise EnvError(self.file, self.line, wrong, instead)


def read_declarations(of: EnvClass) -> Declarations:
    """The declarations of a class. Raises EnvError where they cannot be compiled."""
    observation, drawn = _observation_space(of)
    agents = _agents(of)
    if drawn and len(agents) > 1:
        wrong = f"{of.cls.__name__} has {len(agents)} agents and pixel observations"
        of.fail(wrong, "Give them a float32 Box and observe(s, p, agent)")
    frames = _frames(of, observation) if drawn else 0
    entities = _entities(of, len(agents))
    if entities and hasattr(of.cls, "action_mask") and of.cls.action_mask is not None:
        of.fail(f"{of.cls.__name__} has entities and action_mask()", "Leave one of them out")
    if drawn and entities:
        of.fail(f"{of.cls.__name__} has entities and pixel observations", "Give it a float32 Box and observe(s, p)")
    phases = [_phase_names(of, name) for name in ("phases", "reset_phases")]
    return Declarations(
        observation, _action_space(of), _max_steps(of), frames, agents, _groups(of, agents), entities, *phases
    )


def _observation_space(of: EnvClass) -> tuple[Box, bool]:
    """The space, and whether its observations are pixels."""
    space = getattr(of.cls, "observation_space", None)
    if isinstance(space, Dict) and joinable(space):
        space = FlatDict(space.spaces)
    if getattr(of.cls, ACTION_MASK, None) is not None:
        return _with_mask(of, space), False
    wrong = f"{of.cls.__name__}.observation_space is {space}"
    if isinstance(space, Box) and space.dtype == np.float32:
        return space, False
    if isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        if space.low.any() or not (space.high == 255).all():
            of.fail(wrong, f"Pixels range from 0 to 255: give bounds like those of {PIXELS}")
        return space, True
    of.fail(wrong, f"Give a float32 Box, such as Box(-inf, inf, (4,)), or for pixels {PIXELS}")


def _with_mask(of: EnvClass, space: object) -> FlatDict:
    """The space of observations and action masks together."""
    actions = _action_space(of)
    if isinstance(actions, Box):
        wrong = f"{of.cls.__name__} has an action_mask, and action_space is {actions}"
        of.fail(wrong, "Masks are for Discrete and MultiDiscrete actions: leave it out")
    if not isinstance(space, Box) or space.dtype != np.float32 or len(space.shape) != 1:
        wrong = f"{of.cls.__name__} has an action_mask, and observation_space is {space}"
        of.fail(wrong, "Give a float32 Box of one dimension, such as Box(-inf, inf, (4,))")
    size = int(actions.n) if isinstance(actions, Discrete) else int(actions.nvec.sum())  # type: ignore[attr-defined]
    members = space.members if isinstance(space, FlatDict) else {OBSERVATION: space}
    return FlatDict({**members, ACTION_MASK: MultiBinary(size)})


def _action_space(of: EnvClass) -> Space:
    space = getattr(of.cls, "action_space", None)
    if isinstance(space, Discrete):
        return space
    if isinstance(space, (Box, MultiDiscrete)) and len(space.shape) == 1 and min(space.shape) > 0:
        return space
    wrong = f"{of.cls.__name__}.action_space is {space}"
    of.fail(wrong, "Give Discrete(n), MultiDiscrete([n, m]) or a Box of one dimension")


def _max_steps(of: EnvClass) -> int | None:
    steps = getattr(of.cls, "max_steps", None)
    if steps is None or (isinstance(steps, int) and 1 <= steps < 2**31):
        return steps
    of.fail(f"max_steps is {steps!r}", "Give a whole number of at least 1, or None for no limit")


def _frames(of: EnvClass, space: Box) -> int:
    frames = getattr(of.cls, "frames", 1)
    if not isinstance(frames, int) or isinstance(frames, bool) or frames < 1:
        of.fail(f"frames is {frames!r}", "Give a whole number of at least 1")
    channels = space.shape[0] if len(space.shape) == 3 else 1
    if channels % frames:
        shape = (frames, *space.shape[-2:])
        wrong = f"frames is {frames}, and observation_space has shape {space.shape}"
        of.fail(wrong, f"Give it shape {shape}: stacked frames are its channels, and they come first")
    return frames


def _agents(of: EnvClass) -> tuple[str, ...]:
    count = getattr(of.cls, "num_agents", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        of.fail(f"num_agents is {count!r}", "Give a whole number of at least 1")
    given = getattr(of.cls, "agents", None)
    names = tuple(f"agent_{k}" for k in range(count)) if given is None else tuple(given)
    if len(set(names)) != count:
        of.fail(f"agents is {given!r}, and num_agents is {count}", f"Give {count} different names, or no names")
    return names


def _entities(of: EnvClass, num_agents: int) -> int:
    count = getattr(of.cls, "num_entities", None)
    if count is None:
        if getattr(of.cls, "phases", ()) or getattr(of.cls, "reset_phases", ()):
            of.fail(f"{of.cls.__name__} has phases and no num_entities", "Write `num_entities = 64` in the class")
        return 0
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_ENTITIES:
        of.fail(f"num_entities is {count!r}", f"Give a whole number from 1 to {MAX_ENTITIES}")
    if num_agents > count:
        wrong = f"num_agents is {num_agents}, and num_entities is {count}"
        of.fail(wrong, "The first num_agents entities are the agents: give at least as many entities")
    if not getattr(of.cls, "phases", ()):
        of.fail(f"{of.cls.__name__} has num_entities and no phases", "Write `phases = (move,)` below `def move`")
    return count


def _phase_names(of: EnvClass, name: str) -> tuple[str, ...]:
    given: tuple[Callable[..., None], ...] = getattr(of.cls, name, ())
    if not isinstance(given, tuple) or not all(callable(phase) for phase in given):
        of.fail(f"{name} is {given!r}", f"Give a tuple of the functions themselves: `{name} = (sense, move)`")
    names = tuple(getattr(phase, "__name__", "?") for phase in given)
    if not all(callable(getattr(of.cls, phase, None)) for phase in names):
        of.fail(f"{name} is ({', '.join(names)})", f"Define each of them in {of.cls.__name__}, above `{name} = ...`")
    return names


def _groups(of: EnvClass, agents: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    given = getattr(of.cls, "groups", None)
    if given is None:
        return {"all": agents}
    members = [name for group in given.values() for name in group]
    wrong = f"groups is {dict(given)!r}, and the agents are {', '.join(agents)}"
    if sorted(members) != sorted(agents):
        of.fail(wrong, "Name each agent in exactly one group")
    if members != list(agents):
        of.fail(wrong, f"Order the agents by group: agents = {tuple(members)}")
    return {name: tuple(group) for name, group in given.items()}
