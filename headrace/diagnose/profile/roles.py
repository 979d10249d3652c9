"""The role of a stack, from what its functions are and not from how a script names them."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache

from headrace.diagnose.injected.stacks import JITTED
from headrace.diagnose.profile import source_context
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import OWN, WHOLE_CALL, Hints, read_roles
from headrace.diagnose.profile.source_context import Purpose
from headrace.diagnose.profile.spinning import spins
from headrace.diagnose.profile.spool import Code, Place, Sample, Stack

PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # whole folders: a user's may have such words in their names
STANDARD = re.compile(r"/lib(64)?/python3\.\d+t?/")  # of whichever Python runs the script
GENERATED = ("<frozen", "<string>", "<eval_with_key>", "<__array_func")
CELL = "<ipython-input"  # begins the name that IPython gives a cell in a terminal
PART_OF = {  # role -> roles of callers that it is counted as a part of
    Role.FORWARD: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING, Role.BACKWARD, Role.OPTIMIZER),
    Role.INFERENCE: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING, Role.DATA),
    Role.DATA: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING, Role.BACKWARD, Role.OPTIMIZER, Role.FORWARD),
    Role.COPY: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING),
    Role.IDLE: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING),
    Role.BACKWARD: (Role.ENVIRONMENT,),
    Role.OPTIMIZER: (Role.ENVIRONMENT,),
}
C_FUNCTIONS = {name: role for role, names in read_roles(OWN, "c_functions").items() for name in names}
COPIES = ("item", "tolist", "numpy", "cpu", "cuda", "to", "copy_", "pin_memory", "synchronize")  # if CUDA is used
INCLUDES_ARGUMENTS = (Role.LOGGING, Role.SAVING)  # calls of these roles include the computation of their arguments
CONVERSIONS = {"as_tensor", "from_numpy", "tensor", *COPIES, "detach", "sample"}  # of observations and actions
DRAWS = {"multinomial", "argmax", "log_prob", "rsample"}


class Classifier:
    """Finds the roles of stacks, and caches them."""

    def __init__(self, hints: Hints, cuda: bool) -> None:
        """cuda: whether the process has used a GPU, so that .item() waits for it."""
        self._hints, self._cuda = hints, cuda
        self._known: dict[Stack, tuple[Role, str]] = {}
        self._codes: dict[Code, Role | None] = {}

    def classify(self, stack: Stack) -> tuple[Role, str]:
        """The role of a stack, and its function: "CartPoleEnv.step", "Linear.forward", "item"."""
        if stack not in self._known:
            self._known[stack] = self._classify(stack)
        return self._known[stack]

    def resolve_unknown(self, samples: Iterable[Sample]) -> None:
        """Give stacks of unknown role the role that other samples mostly have below the same place."""
        spent: defaultdict[Place, Counter[tuple[Role, str]]] = defaultdict(Counter)
        for sample in samples:
            result = self.classify(sample.stack)
            if result[0] is not Role.OTHER:
                for place in sample.stack[1:]:
                    spent[place][result] += sample.seconds  # type: ignore[assignment]
        for stack, (role, _) in self._known.items():
            if role is Role.OTHER and stack[0] in spent:
                self._known[stack] = spent[stack[0]].most_common(1)[0][0]

    def _classify(self, stack: Stack) -> tuple[Role, str]:
        roles = [self._of_code(place.code) for place in stack]
        for index in reversed(range(len(stack))):
            if roles[index] in WHOLE_CALL or _is_evaluation(stack, index):
                whole = Role.START_UP if roles[index] is Role.START_UP else Role.EVALUATION
                return whole, title(stack[index].code)
        role, index = self._innermost(stack, roles)
        for outer in range(index + 1, len(stack)):  # the role that the part belongs to
            around = roles[outer]
            if role is not None and around in PART_OF.get(role, ()):
                role, index = around, outer  # type: ignore[assignment]
        if role is Role.FORWARD:
            index = max((place for place, each in enumerate(roles) if each is Role.FORWARD), default=index)
            doing = _purpose(stack[index + 1 :]) or _purpose(stack[index:])
            return (Role.INFERENCE if doing is Purpose.ACT else Role.FORWARD), title(stack[index].code)
        if role in (None, Role.DATA) and spins(stack):
            return Role.WAIT, "a loop that spins"
        if role in (None, Role.DATA):
            argument = self._of_argument(stack)
            if argument is not None:
                return argument
        if role is None:
            return self._of_other_code(stack)
        return role, self._detail(stack, index)

    def _of_code(self, code: Code) -> Role | None:
        if code not in self._codes:
            self._codes[code] = self._hints.role(names(code))
        return self._codes[code]

    def _innermost(self, stack: Stack, roles: list[Role | None]) -> tuple[Role | None, int]:
        """The role of the C function called last, with index -1, or of the innermost function that has a role."""
        call = source_context.call_at(stack[0])
        if self._cuda and call in COPIES:
            return Role.COPY, -1
        role = C_FUNCTIONS.get(call)
        if role is Role.LOGGING and roles[0] is not None:
            role = None  # file.write inside a library has the library's role
        if call in CONVERSIONS and roles[0] is None and _purpose(stack) is Purpose.ACT:
            return Role.INFERENCE, -1
        if role is not None and (roles[0] is None or role is Role.IDLE or (roles[0] is Role.WAIT and call == "loads")):
            return role, -1
        return next(((role, index) for index, role in enumerate(roles) if role is not None), (None, 0))

    def _of_argument(self, stack: Stack) -> tuple[Role, str] | None:
        """The role of a call that prints or saves, for its arguments: json.dumps in `print(json.dumps(x))`."""
        for place in stack:
            if is_own(place.code.file):
                around = (
                    call for call in source_context.calls_around(place) if C_FUNCTIONS.get(call) in INCLUDES_ARGUMENTS
                )
                call = next(around, "")
                return (C_FUNCTIONS[call], call) if call else None
        return None

    def _of_other_code(self, stack: Stack) -> tuple[Role, str]:
        """The role of other code, such as the arithmetic of a loss, by the purpose of the loop around it."""
        doing, call = _purpose(stack), source_context.call_at(stack[0])
        role = None if is_own(stack[0].code.file) else self._hints.plumbing(names(stack[0].code)[0])
        if role is not None:
            return role, call or title(stack[0].code)
        if doing is Purpose.LEARN:
            return Role.FORWARD, call
        compiled = call.startswith(JITTED)
        if doing is Purpose.ACT and (call in DRAWS or compiled or "torch" in stack[0].code.module):
            return Role.INFERENCE, call
        return Role.OTHER, call or title(stack[0].code)

    def _detail(self, stack: Stack, index: int) -> str:
        call = source_context.call_at(stack[0])
        name = title(stack[index].code) if index >= 0 else ""
        return name if not call or name.endswith(call) else f"{name}: {call}" if name and index == 0 else name or call


def names(code: Code) -> tuple[str, ...]:
    """Full names to match with patterns: the function's own, and that of the method in each base of its class."""
    return (f"{code.module}.{code.name}", *(f"{base}.{code.method}" for base in code.ancestors))


@cache
def is_own(file: str) -> bool:
    """Whether a file is the user's rather than an installed library's or Python's."""
    standard = sysconfig.get_paths()["stdlib"].replace("\\", "/")
    plain = file.replace("\\", "/")
    if plain.startswith(CELL):
        return True
    generated = plain.startswith("<") or any(part in plain for part in GENERATED)
    return not (generated or plain.startswith(f"{standard}/") or PACKAGES.search(plain) or STANDARD.search(plain))


def title(code: Code) -> str:
    """A function's name with its class: "CartPoleEnv.step"."""
    return ".".join(code.name.rpartition("<locals>.")[2].split(".")[-2:])


def _purpose(stack: Stack) -> Purpose | None:
    """The purpose of the innermost function that acts or learns, at its place."""
    for place in stack:
        scope = source_context.scope(place.code) if _has_markers(place.code) else None
        if scope is not None and scope.markers:
            return scope.purpose_at(place.line)
    return None


def _has_markers(code: Code) -> bool:
    """Whether to read a function's source: the script's own, and RL libraries'."""
    plumbing = ("torch", "numpy", "gymnasium", "importlib", "threading", "multiprocessing", "runpy", "typing")
    return code.module.partition(".")[0] not in plumbing and (
        code.file.startswith(CELL) or not code.file.startswith("<")
    )


def _is_evaluation(stack: Stack, index: int) -> bool:
    """Whether a function of the user evaluates the policy, and is called by one that acts or learns."""
    code = stack[index].code
    if not is_own(code.file) or code.name == "<module>":
        return False
    scope = source_context.scope(code)
    return scope is not None and scope.evaluates and any(_acts_or_learns(outer) for outer in stack[index + 1 :])


def _acts_or_learns(place: Place) -> bool:
    scope = source_context.scope(place.code) if is_own(place.code.file) or _has_markers(place.code) else None
    return scope is not None and bool(scope.markers)
