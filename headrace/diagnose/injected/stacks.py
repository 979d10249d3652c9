"""Numbers for stacks: each code object, each place in a code object and each stack of places is described once."""

import itertools
import opcode
import sys
import types

from . import variables

_RESUME = opcode.opmap.get("RESUME", -1)  # Python 3.11 and later
JITTED = "jit "  # before the name of a function that JAX has compiled
ENV_CLASS = "<environment>"  # listed as a base of every class that has step() and reset(), and does not train
FOUNDATIONS = ("torch", "numpy", "gymnasium", "jax", "jaxlib", "flax", "numba", "scipy", "pandas")
_OWN, _FOUNDATION, _LIBRARY = range(3)  # what a code object is of
_KINDS = {}  # type: ignore[var-annotated]  # id of a code object -> one of these, and the object, so that its id stays unique
_STANDARD = getattr(sys, "stdlib_module_names", frozenset())  # type: ignore[var-annotated]
MOST_FRAMES = 200  # innermost first; those further out do not affect roles


class Stacks:
    """Numbers for stacks; `new` holds the descriptions that are not yet written, as records of the spool file.

    Several threads may call number() at the same time: each number is used once, and other threads get it only after
    its description is in `new`.
    """

    def __init__(self):
        self.new = []
        self._numbers = itertools.count()
        self._codes = {}  # id -> (number, the code object, kept so that its id stays unique)
        self._places = {}  # (id of code, offset of instruction) -> (number, whether the function has just been entered)
        self._stacks = {}

    def number(self, frame):
        """The number of the stack whose innermost frame is `frame`.

        A function that has only just been entered is left out: the tick came before the call.
        """
        frames = _frames(frame)
        key = tuple((id(each.f_code), each.f_lasti) for each in frames)
        if key not in self._stacks:
            places = []  # type: ignore[var-annotated]
            for index, place in enumerate(key):
                places.append(self._places.get(place) or self._describe(frames[index], place, index == 0))
            if places[0][1] and len(places) > 1:
                del places[0]
            number = next(self._numbers)
            self.new.append(["stack", number, [place[0] for place in places]])
            self._stacks[key] = number
        return self._stacks[key]

    def _describe(self, frame, place, innermost):
        code, offset = frame.f_code, place[1]
        known = self._codes.get(place[0])
        if known is None:
            known = next(self._numbers), code
            name = getattr(code, "co_qualname", code.co_name)
            module = str(frame.f_globals.get("__name__", ""))
            ancestors = ancestry(frame, module, name)
            record = ["code", known[0], code.co_filename, name, module, code.co_firstlineno, ancestors]
            self.new.append([*record, other_names(code, frame.f_globals)])
            self._codes[place[0]] = known
        entered = False
        position = (frame.f_lineno, None, None, None)
        if hasattr(code, "co_positions"):
            entered = code.co_code[offset : offset + 2] == bytes((_RESUME, 0))
            position = next(itertools.islice(code.co_positions(), offset // 2, None), position)
        found = next(self._numbers), entered
        aliases = local_names(frame) if innermost else {}  # a function called by an outer frame has a frame itself
        kinds = {} if _is_foundation(code, frame) else variables.kinds(frame)
        self.new.append(["place", found[0], known[0], *position, aliases, kinds])
        self._places[place] = found
        return found


def _frames(frame):
    """The frames of a stack, the innermost first. Where an event loop waits, they include the waiting coroutine's."""
    found = []  # type: ignore[var-annotated]
    while frame is not None and len(found) < MOST_FRAMES:
        if len(found) == 1 and frame.f_code.co_name == "_run_once" and _is_asyncio(frame):
            found += _suspended(frame)
        found.append(frame)
        frame = frame.f_back
    return found


def _suspended(frame):
    """The frames of the coroutine that asyncio.run() was given, the innermost first, while its event loop waits."""
    while frame is not None and frame.f_code.co_name != "run_until_complete":
        frame = frame.f_back
    task = variables.read(frame, "future") if frame is not None and _is_asyncio(frame) else None
    coroutine = getattr(task, "get_coro", lambda: None)()
    found = []  # type: ignore[var-annotated]
    while isinstance(coroutine, types.CoroutineType) and coroutine.cr_frame is not None:
        found.append(coroutine.cr_frame)
        coroutine = coroutine.cr_await
    return found[::-1]


def _is_asyncio(frame):
    return frame.f_globals.get("__name__") == "asyncio.base_events"


def variables_of(frame):
    """A number that changes when variables of the script's running functions refer to other objects.

    Functions that a library calls back do not count, because one compilation may trace many of them.
    """
    found = 0
    while frame is not None:
        kind = (_KINDS.get(id(frame.f_code)) or _kind(frame))[0]
        if kind == _OWN:
            found ^= variables.signature(frame)
        elif kind == _FOUNDATION:
            found = 0
        frame = frame.f_back
    return found & 0xFFFFFFFF


def _kind(frame):
    code = frame.f_code
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    own = "-packages" not in code.co_filename and not _is_foundation(code, frame)
    _KINDS[id(code)] = (_OWN if own else _FOUNDATION if top in FOUNDATIONS else _LIBRARY), code
    return _KINDS[id(code)]


def _is_foundation(code, frame):
    """Tell whether a function belongs to Python or to a library below all others: neither has a training loop."""
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return code.co_filename.startswith("<") or top in FOUNDATIONS or top in _STANDARD


def other_names(code, values):
    """Names by which a code object calls something else: {"nap": "sleep"} after `from time import sleep as nap`.

    Functions compiled by jax.jit have no frame; they are given as {"update": "jit update"}.
    """
    return _c_functions((name, values.get(name)) for name in code.co_names)


def local_names(frame):
    """Names as in other_names(), for a frame's own variables, those of the functions around it, and all their
    attributes: `nap = time.sleep`, `self.nap = time.sleep`.
    """
    code = frame.f_code
    own = [(name, variables.read(frame, name)) for name in code.co_varnames + code.co_freevars]
    tables = [variables.attributes(value) for _, value in own]
    return _c_functions([(name, table[name]) for name in code.co_names for table in tables if name in table] + own)


def _c_functions(named):
    """Name -> the name of the C function that it refers to, where the two differ."""
    found = {}
    for name, value in named:
        kind = type(value).__name__  # nothing else is read from a value whose class may be the user's
        if kind == "builtin_function_or_method" and value.__name__ != name:
            found[name] = value.__name__
        elif kind == "PjitFunction":
            found[name] = JITTED + str(getattr(value, "__name__", name))
    return found


def ancestry(frame, module, name):
    """Names of the class of the method that a frame runs, and of its bases; [] for a plain function."""
    owner: object = sys.modules.get(module)
    for part in name.split(".")[:-1]:
        owner = getattr(owner, "__dict__", {}).get(part)
    if not isinstance(owner, type):
        code = frame.f_code
        first = code.co_varnames[0] if code.co_argcount else ""
        if first not in ("self", "cls"):
            return []
        variable = variables.read(frame, first)
        if variable is None:
            return []
        owner = variable if isinstance(variable, type) else type(variable)
    names = [variables.full_name(base) for base in owner.__mro__ if base is not object]
    # an environment that inherits from nothing is recognised by its methods
    steps = callable(getattr(owner, "step", None)) and hasattr(owner, "reset")
    return [*names, ENV_CLASS] if steps and not _trains(owner) else names


def _trains(owner):
    """Tell whether a class with step() and reset() is an algorithm rather than an environment: it can train or learn.

    The train() of torch's modules only sets a mode.
    """
    bases = [base for base in owner.__mro__ if not variables.full_name(base).startswith("torch.")]
    return any(callable(base.__dict__.get(name)) for base in bases for name in ("train", "learn", "fit"))
