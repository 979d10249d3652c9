"""Reads a variable of a running function without changing the function.

Before Python 3.13, reading frame.f_locals copies all variables into a dictionary. That dictionary stays with the frame
until the function returns, which keeps deleted tensors alive. It is also the dictionary that locals() gave to the
script.
"""

import ctypes
import sys
import types

_CODE, _VARIABLES = 32, 72  # offsets in Python 3.11's _PyInterpreterFrame: f_code, localsplus
_FRAME = 24  # offset of the pointer to it in a frame object
_WORD = ctypes.sizeof(ctypes.c_void_p)


def read(frame, name):
    """The value of a variable. None if it has none, or if this version of Python does not let it be read safely."""
    if name not in _names(frame.f_code):
        return None
    return _READ(frame, name)


def attributes(value):
    """The attributes that a value has of its own, by name, without calling any code of its class; {} without any."""
    for base in type(value).__mro__:
        found = base.__dict__.get("__dict__")
        if found is not None:
            return found.__get__(value) if type(found) is types.GetSetDescriptorType else {}
    return {}


NETWORK, OPTIMIZER, CODE, GENERATOR, COMPILED = "network", "optimizer", "code", "generator", "compiled"
ARRAY, CONTAINER, NUMBER = "array", "container", "number"  # kinds of data: their methods step no environment
_NUMBERS = (int, float, complex)
_OF_DATA = {"torch": ARRAY, "numpy": ARRAY, "jaxlib": ARRAY, "builtins": CONTAINER, "collections": CONTAINER}
_BASES = {
    "torch.nn.modules.module.Module": NETWORK,
    "flax.linen.module.Module": NETWORK,
    "flax.nnx.module.Module": NETWORK,
    "equinox._module.Module": NETWORK,
    "haiku._src.transform.Transformed": NETWORK,
    "torch.optim.optimizer.Optimizer": OPTIMIZER,
    "torch.optim.lr_scheduler.LRScheduler": OPTIMIZER,
    "torch.amp.grad_scaler.GradScaler": OPTIMIZER,
    "optax._src.base.GradientTransformation": OPTIMIZER,
    "numpy.random._generator.Generator": GENERATOR,
    "numpy.random.mtrand.RandomState": GENERATOR,
    "random.Random": GENERATOR,
    "torch._C.Generator": GENERATOR,
}
_MODULE, _NAME = (type.__dict__[name].__get__ for name in ("__module__", "__qualname__"))
_FUNCTIONS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def kinds(frame):
    """Name -> kind of value.

    Kinds mark values through which no data of a training loop flow: networks, optimizers, functions, ... Among values
    that are data, only arrays, containers and numbers have a kind. The names are those that a frame's code uses: its
    variables, globals, and attributes of its variables, as ".name".
    """
    code, found = frame.f_code, {}
    own = [(name, read(frame, name)) for name in _names(code)]
    for name, value in own + [(name, frame.f_globals.get(name)) for name in code.co_names]:
        found[name] = kind(value) or _kind_of_data(value)
    for _, value in own:
        table = {} if kind(value) else attributes(value)
        known = [name for name in code.co_names if name in table]
        found.update({f".{name}": kind(table[name]) or _kind_of_data(table[name]) for name in known})
    return {name: each for name, each in found.items() if each}


def kind(value):
    """The kind of a value, by the classes that it inherits from; "" for data."""
    if issubclass(type(value), _FUNCTIONS):  # isinstance() would read __class__, which may be code of the user
        return CODE
    if type(value).__name__ == "PjitFunction":
        return COMPILED
    if type(value).__name__ in ("CPUDispatcher", "CUDADispatcher"):  # of Numba
        return CODE
    for base in type(value).__mro__:
        known = _BASES.get(full_name(base))
        if known:
            return known
    return ""


def _kind_of_data(value):
    """ARRAY, CONTAINER or NUMBER for values of the classes of array libraries and of Python; "" for others and None."""
    if issubclass(type(value), _NUMBERS) or any(full_name(base) == "numpy.number" for base in type(value).__mro__):
        return NUMBER
    return "" if value is None else _OF_DATA.get(str(_MODULE(type(value))).partition(".")[0], "")


def full_name(base):
    """The full name of a class, without calling code of its metaclass; some have no module."""
    try:
        return f"{_MODULE(base)}.{_NAME(base)}"
    except AttributeError:
        return _NAME(base)


def signature(frame):
    """A number that changes when a function's variables refer to other objects."""
    code = frame.f_code
    if code.co_name == "<module>":
        return hash(tuple(map(id, list(frame.f_globals.values()))))
    return hash(_IDS(frame))


def _names(code):
    """A function's own variables, then those of the functions around it, in their order in memory."""
    known = _NAMES.get(id(code))
    if known is None:
        cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        known = _NAMES[id(code)] = code.co_varnames + cells + code.co_freevars, code
    return known[0]


_NAMES = {}  # type: ignore[var-annotated]  # id of a code object -> its names, and the object, so that its id stays unique


def _ids(frame):
    """Ids of the objects that the variables refer to."""
    return tuple(id(_READ(frame, name)) for name in _names(frame.f_code))


def _ids_in_memory(frame):
    """Same as _ids() in Python 3.11: reads all words at once, except variables that several functions use."""
    code = frame.f_code
    inner, names = _word(id(frame) + _FRAME), _names(code)
    if not inner or _word(inner + _CODE) != id(code):
        return ()
    words = tuple((ctypes.c_void_p * len(names)).from_address(inner + _VARIABLES))
    return words, tuple(id(_READ(frame, name)) for name in code.co_cellvars + code.co_freevars)


def _of_proxy(frame, name):
    """Read a variable from f_locals, which is no copy from Python 3.13 on (PEP 667)."""
    return frame.f_locals.get(name)


def _of_interface(frame, name):
    """Python 3.12 has a function for it."""
    try:
        return _get_variable(frame, name.encode())
    except NameError:  # deleted, or not yet set
        return None


def _of_memory(frame, name):
    """Python 3.11 has none: the variables are words in memory, in the order of _names()."""
    inner = _word(id(frame) + _FRAME)
    if not inner or _word(inner + _CODE) != id(frame.f_code):
        return None
    address = _word(inner + _VARIABLES + _WORD * _names(frame.f_code).index(name))
    if not address:
        return None
    value = ctypes.cast(address, ctypes.py_object).value
    if isinstance(value, types.CellType) and name in frame.f_code.co_cellvars + frame.f_code.co_freevars:
        # several functions use it
        try:
            return value.cell_contents
        except ValueError:
            return None
    return value


def _of_nothing(frame, name):
    return None


def _word(address):
    return ctypes.c_void_p.from_address(address).value


def _reader():
    """The function for this interpreter."""
    if sys.implementation.name != "cpython" or _WORD != 8 or sys.version_info < (3, 11):
        return _of_nothing
    if sys.version_info >= (3, 13):
        return _of_proxy
    return _of_interface if sys.version_info >= (3, 12) else _of_memory


_READ = _reader()
_IDS = _ids_in_memory if _READ is _of_memory else _ids
if _READ is _of_interface:
    _get_variable = ctypes.pythonapi.PyFrame_GetVarString
    _get_variable.restype, _get_variable.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_char_p)
