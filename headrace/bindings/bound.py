"""Objects that hold addresses of arrays, such as compiled calls, kept until an address is stale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

Held = TypeVar("Held")


class Bound(Generic[Held]):
    """Holder of at most one object for each owner (a policy, a rollout), dropped with its owner.

    An object is stale, and made again, once anything it depends on differs: a tensor by the address of its data,
    anything else by equality.
    """

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[object, tuple[list[object], Held]] = WeakKeyDictionary()

    def find(self, owner: object, *depends_on: object) -> Held | None:
        """The owner's object; None where there is none or it is stale."""
        found = self._held.get(owner)
        return None if found is None or found[0] != _key(depends_on) else found[1]

    def known(self, owner: object) -> Held | None:
        """The owner's object, stale or not; None where there is none."""
        found = self._held.get(owner)
        return None if found is None else found[1]

    def last(self, owner: object) -> Held:
        """Object that get() gave last for this owner. It is not checked whether it is stale."""
        return self._held[owner][1]

    def get(self, make: Callable[[], Held], owner: object, *depends_on: object) -> Held:
        """The owner's object; made where there is none or it is stale."""
        found = self.find(owner, *depends_on)
        if found is None:
            found = make()
            self._held[owner] = _key(depends_on), found
        return found


def _key(depends_on: tuple[object, ...]) -> list[object]:
    return [x.data_ptr() if isinstance(x, Tensor) else x for x in depends_on]


def place(parameter: Tensor, flat: Tensor) -> int:
    """Index at which a parameter begins in the buffer that it is a view of."""
    return (parameter.data_ptr() - flat.data_ptr()) // flat.element_size()
