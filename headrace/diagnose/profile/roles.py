"""The role of a stack: from the flow of values through the script's loop, and from its classes and libraries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from headrace.diagnose.injected.stacks import FOUNDATIONS, JITTED
from headrace.diagnose.profile import source_context
from headrace.diagnose.profile.loop_roles import LoopRoles
from headrace.diagnose.profile.loop_search import UPDATES
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import C_FUNCTIONS, WHOLE_CALL, Hints
from headrace.diagnose.profile.source_context import is_own
from headrace.diagnose.profile.spinning import polls, spins
from headrace.diagnose.profile.spool import Code, Place, Sample, Stack
from headrace.diagnose.profile.training_loop import TrainingLoop

PART_OF = {  # role -> roles of callers that it is counted as a part of
    Role.FORWARD: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING, Role.BACKWARD, Role.OPTIMIZER),
    Role.INFERENCE: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING, Role.DATA),
    Role.DATA: (Role.ENVIRONMENT, Role.READING, Role.LOGGING, Role.SAVING, Role.BACKWARD, Role.OPTIMIZER, Role.FORWARD),
    Role.COPY: (Role.ENVIRONMENT, Role.READING, Role.LOGGING, Role.SAVING),
    Role.IDLE: (Role.ENVIRONMENT, Role.LOGGING, Role.SAVING),
    Role.SAVING: (Role.READING,),
    Role.BACKWARD: (Role.ENVIRONMENT,),
    Role.OPTIMIZER: (Role.ENVIRONMENT,),
}
COPIES = ("item", "tolist", "numpy", "cpu", "cuda", "to", "copy_", "pin_memory", "synchronize")  # if CUDA is used
MOVES = (Role.READING, Role.SAVING)  # bytes into the process, and out of it
JAX = ("jax.", "flax.", "optax.")
DISK = "a disk (fsync)"  # as record.system_calls says
GENERAL = ("numpy", "pandas", "copy", "collections", "random", "json", "pickle")  # general packages, which show no role
PLAYING = (Role.ENVIRONMENT, Role.FORWARD, Role.INFERENCE)


class Classifier:
    """Finds the roles of stacks, and caches them.

    The evidence for a stack is the role that its classes and libraries show. In a training loop of the script's own,
    the flow of values through the calls decides, supported by the evidence.
    """

    def __init__(self, hints: Hints, cuda: bool, moves: Collection[Role] = MOVES) -> None:
        """cuda: whether the process has used a GPU, so that .item() waits for the GPU. moves: the roles of MOVES that
        the process can have, by the directions in which it moves bytes."""
        self._hints, self._cuda, self._moves = hints, cuda, moves
        self._known: dict[Stack, tuple[Role, str]] = {}
        self._evident: dict[Stack, Role | None] = {}
        self._codes: dict[Code, Role | None] = {}
        self._doing: defaultdict[Code, set[Role]] = defaultdict(set)  # functions that update, and that play
        self._without_gradients: Counter[Stack] = Counter()  # samples without gradients minus samples with gradients
        self._synced: Counter[Stack] = Counter()  # seconds blocked by a disk's writes minus all other seconds
        self._evaluated: set[Stack] = set()  # stacks that step environments in a callback of a library's training loop
        self._guessed: set[Stack] = set()  # stacks whose role is likely, and not sure
        self.loop: TrainingLoop | None = None
        self._loop_roles: LoopRoles | None = None

    def learn_from(self, *threads: Sequence[Sample]) -> None:
        """Find the training loop of a process in the samples of its threads, the main one's first; then all roles."""
        samples = [sample for thread in threads for sample in thread]
        for sample in samples:
            self._synced[sample.stack] += sample.seconds if sample.waits_for == DISK else -sample.seconds  # type: ignore[assignment]
        for sample in samples:
            if not sample.blocked:  # of a thread that another one looked at, it is not known
                self._without_gradients[sample.stack] += 1 if sample.without_gradients else -1
            role = self.evidence(sample.stack)
            if role in (*UPDATES, Role.ENVIRONMENT):
                for place in sample.stack:
                    self._doing[place.code].add(Role.BACKWARD if role in UPDATES else Role.ENVIRONMENT)  # type: ignore[arg-type]
        others = [[s for other in threads if other is not thread for s in other] for thread in threads]
        pairs = zip(threads, others, strict=True)
        loops = (TrainingLoop(one, self.evidence, self.has_gradients, rest) for one, rest in pairs)
        self.loop = max((loop for loop in loops if loop.tree), key=lambda loop: loop.updating, default=None)
        if self.loop is None:
            played = {s.stack for s in samples if self.evidence(s.stack) in PLAYING and self._plays(s.stack)}
            called_back = {stack for stack in played if self._is_called_back(stack)}
            self._evaluated = called_back if called_back != played else set()
        else:
            self._loop_roles = LoopRoles(self.loop)
        self._resolve_unknown(samples)

    def _plays(self, stack: Stack) -> bool:
        """Tell whether a stack steps an environment, or runs a network that does not learn meanwhile."""
        if self.evidence(stack) is Role.ENVIRONMENT or not self.has_gradients(stack):
            return True
        return self._acting_or_learning(stack) is Role.INFERENCE  # with gradients, which a part of predict() records

    def _is_called_back(self, stack: Stack) -> bool:
        """Tell whether a library's loop that updates parameters calls code of the script that steps environments."""
        inside = False
        for place in reversed(stack):
            if self._of_code(place.code) in PLAYING:
                return False
            if inside and is_own(place.code.file):
                return True
            inside = inside or (not is_own(place.code.file) and Role.BACKWARD in self._doing.get(place.code, ()))
        return False

    def has_gradients(self, stack: Stack) -> bool:
        """Tell whether most samples of a stack recorded gradients."""
        return self._without_gradients[stack] <= 0

    def classify(self, stack: Stack) -> tuple[Role, str]:
        """The role of a stack, and its function: "CartPoleEnv.step", "Linear.forward", "item"."""
        if stack not in self._known:
            self._known[stack] = self._classify(stack)
        return self._known[stack]

    def is_guessed(self, stack: Stack) -> bool:
        """Tell whether the role of a stack is likely rather than sure."""
        self.classify(stack)
        return stack in self._guessed

    def evidence(self, stack: Stack) -> Role | None:
        """The role of a stack by the classes and libraries that it is in; None without any that is known."""
        if stack not in self._evident:
            self._evident[stack] = self._by_class(stack)[0]
        return self._evident[stack]

    def _resolve_unknown(self, samples: Iterable[Sample]) -> None:
        """Give stacks of unknown role the role of others below the same place, if no loop of the script was found."""
        spent: defaultdict[Place, Counter[tuple[Role, str]]] = defaultdict(Counter)
        for sample in samples:
            result = self.classify(sample.stack)
            if result[0] is not Role.OTHER:
                for place in sample.stack[1:]:
                    spent[place][result] += sample.seconds  # type: ignore[assignment]
        for stack, (role, _) in self._known.items():
            if role is Role.OTHER and stack[0] in spent and self.loop is None:
                self._known[stack] = spent[stack[0]].most_common(1)[0][0]
                self._guessed.add(stack)

    def _classify(self, stack: Stack) -> tuple[Role, str]:
        role, index = self._by_class(stack)
        found = self._loop_roles.finding(stack) if self._loop_roles else None
        if found is not None:
            if not found.sure:
                self._guessed.add(stack)
            return found.role, self._detail(stack, index) if role is not None else self._own_call(stack)
        if stack in self._evaluated:
            return Role.EVALUATION, self._detail(stack, index)
        if role is Role.FORWARD:
            return self._acting_or_learning(stack), title(stack[index].code)
        if role is None:
            return self._of_other_code(stack)
        caller = next((place for place in stack if _package(place) not in GENERAL), stack[0])
        if role is Role.DATA and (index < 0 or _package(stack[index]) in GENERAL) and is_own(caller.code.file):
            return Role.OTHER, self._own_call(stack)  # a simulator computes with arrays, too
        return role, self._detail(stack, index)

    def _by_class(self, stack: Stack) -> tuple[Role | None, int]:
        """The role by class and library, and the index of the function that has it; -1 for a C function."""
        roles = [self._of_code(place.code) for place in stack]
        for index in reversed(range(len(stack))):
            if roles[index] in WHOLE_CALL:
                return roles[index], index
        role, index = self._innermost(stack, roles)
        for outer in range(index + 1, len(stack)):  # the role that the part belongs to
            around = roles[outer]
            if role is not None and around in PART_OF.get(role, ()):
                role, index = around, outer
        if role is Role.FORWARD:
            index = max((place for place, each in enumerate(roles) if each is Role.FORWARD), default=index)
        if role in (None, Role.DATA) and self._synced[stack] > 0:
            return Role.LOGGING, 0  # whichever library writes
        if role in (None, Role.DATA) and spins(stack):
            return Role.WAIT, 0
        if role is Role.IDLE and polls(stack):
            return Role.WAIT, index
        if role in MOVES and role not in self._moves:  # packages that save also read
            other = next(iter(self._moves), None)
            return (role if role is Role.READING else None, index) if other is None else (other, index)
        return role, index

    def _acting_or_learning(self, stack: Stack) -> Role:
        """The role of a network, from the roles of the innermost function around it in other samples."""
        jax = source_context.call_at(stack[0]).startswith(JITTED) or stack[0].code.module.startswith(JAX)
        for place in stack:
            if place.code.module.partition(".")[0] in FOUNDATIONS:
                continue
            # where JAX computes gradients they are not seen, but a library's own function may be known to learn
            if jax and self._hints.plumbing(names(place.code)[0]) is Role.FORWARD:
                return Role.FORWARD
            doing = self._doing.get(place.code, set())
            if len(doing) == 1:
                return Role.INFERENCE if Role.ENVIRONMENT in doing else Role.FORWARD
            if doing:
                break
        return Role.FORWARD if self.has_gradients(stack) else Role.INFERENCE

    def _own_call(self, stack: Stack) -> str:
        """The name of what the script calls, at the innermost place of its own."""
        place = next((place for place in stack if is_own(place.code.file)), stack[0])
        return source_context.call_at(place) or title(place.code)

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
        if role is not None and (roles[0] is None or role is Role.IDLE or (roles[0] is Role.WAIT and call == "loads")):
            return role, -1
        return next(((role, index) for index, role in enumerate(roles) if role is not None), (None, 0))

    def _of_other_code(self, stack: Stack) -> tuple[Role, str]:
        """The role of a library's own code around the parts that have one, and of functions that JAX has compiled."""
        call = source_context.call_at(stack[0])
        role = None if is_own(stack[0].code.file) else self._hints.plumbing(names(stack[0].code)[0])
        if role is None and call.startswith(JITTED):
            role = self._acting_or_learning(stack)
        return role or Role.OTHER, call or title(stack[0].code)

    def _detail(self, stack: Stack, index: int) -> str:
        call = source_context.call_at(stack[0])
        name = title(stack[index].code) if index >= 0 else ""
        return name if not call or name.endswith(call) else f"{name}: {call}" if name and index == 0 else name or call


def _package(place: Place) -> str:
    return place.code.module.partition(".")[0]


def names(code: Code) -> tuple[str, ...]:
    """Full names to match with patterns: the function's own, and that of the method in each base of its class."""
    return (f"{code.module}.{code.name}", *(f"{base}.{code.method}" for base in code.ancestors))


def title(code: Code) -> str:
    """A function's name with its class: "CartPoleEnv.step"."""
    return ".".join(code.name.rpartition("<locals>.")[2].split(".")[-2:])
