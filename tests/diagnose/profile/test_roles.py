"""Roles of stacks."""

from __future__ import annotations

import ast
import fnmatch
import sysconfig
import textwrap
from pathlib import Path

import pytest

import headrace
from headrace.diagnose.injected.stacks import ENV_CLASS
from headrace.diagnose.profile import source_context
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import OWN, Hints, read_roles
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Code, Place, Sample

SCRIPT = textwrap.dedent("""
    def go(net, world, opt, x):
        while True:
            a = net(x)
            y, r, z, _, _ = world.step(a)
            rows.append((x, r))
            target = net(y)
            loss = (net(x) - target).square().mean()
            loss.backward()
            opt.step()
            time.sleep(1)
            value = loss.item()

    go(net, world, opt, x)
""")
FORWARD = Code("/x/site-packages/torch/nn/modules/module.py", "Module._call_impl", "torch.nn.modules.module", 1, ())
LINEAR = Code("/x/site-packages/torch/nn/linear.py", "Linear.forward", "torch.nn.linear", 9, ())
STEP = Code("/me/game.py", "Game.step", "game", 5, ("game.Game", "gymnasium.core.Env", ENV_CLASS))
DUCK = Code("/me/game.py", "Duck.step", "game", 5, ("game.Duck", ENV_CLASS))
RECV = Code(
    "/lib/connection.py",
    "Connection.recv",
    "multiprocessing.connection",
    5,
    ("multiprocessing.connection._ConnectionBase",),
)
IMPORT = Code("<frozen importlib._bootstrap>", "_find_and_load", "importlib._bootstrap", 5, ())
SAVE = Code("/x/site-packages/torch/serialization.py", "save", "torch.serialization", 5, ())
MONITOR = Code("/x/csv.py", "DictWriter.writerow", "csv", 5, ("csv.DictWriter",))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.py"
    path.write_text(SCRIPT)
    return path


def at(script: Path, text: str, function: str, occurrence: int = 0) -> Place:
    """The place of a call in the script, by its text."""
    lines = SCRIPT.splitlines()
    start = next(number for number, line in enumerate(lines, 1) if line.startswith(f"def {function}("))
    found = [number for number, line in enumerate(lines, 1) if text in line and number > start][occurrence]
    column = lines[found - 1].index(text)
    return Place(Code(str(script), function, "__main__", start, ()), found, found, column, column + len(text))


def role(*stack: Place | Code, hints: Path | None = None, cuda: bool = False) -> Role:
    places = tuple(each if isinstance(each, Place) else Place(each, each.line) for each in stack)
    return Classifier(Hints(hints), cuda).classify(places)[0]


def test_a_network_acts_or_learns_by_what_the_function_around_it_does() -> None:
    act, learn = (Code(f"/x/site-packages/some/{name}.py", name, f"some.{name}", 5, ()) for name in ("act", "learn"))
    backward = Code("/x/site-packages/torch/_tensor.py", "Tensor.backward", "torch._tensor", 1, ())
    stacks = [
        tuple(Place(each, each.line) for each in stack)
        for stack in (
            (LINEAR, FORWARD, act),
            (STEP, act),
            (LINEAR, FORWARD, learn),
            (backward, learn),
            (LINEAR, FORWARD),
        )
    ]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(index), 0.1, stack) for index, stack in enumerate(stacks)])
    found = [classifier.classify(stack)[0] for stack in stacks]
    assert found == [Role.INFERENCE, Role.ENVIRONMENT, Role.FORWARD, Role.BACKWARD, Role.FORWARD]


def test_a_network_without_gradients_acts_where_nothing_else_is_known() -> None:
    stack = Place(LINEAR, 9), Place(FORWARD, 1)
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(1.0, 0.1, stack, without_gradients=True)])
    assert classifier.classify(stack)[0] is Role.INFERENCE


def test_samples_that_cannot_tell_of_gradients_do_not_count_as_with_them() -> None:
    stack = Place(LINEAR, 9), Place(FORWARD, 1)
    classifier = Classifier(Hints(), cuda=False)
    seen = [Sample(1.0, 0.1, stack, without_gradients=True)]
    classifier.learn_from(seen + [Sample(float(moment), 0.1, stack, blocked=True) for moment in range(2, 9)])
    assert classifier.classify(stack)[0] is Role.INFERENCE


def test_a_callbacks_network_evaluates_where_its_function_plays_though_gradients_are_recorded() -> None:
    loop, collect = (Code(f"/x/site-packages/some/{name}.py", name, f"some.{name}", 5, ()) for name in ("run", "play"))
    backward = Code("/x/site-packages/torch/_tensor.py", "Tensor.backward", "torch._tensor", 1, ())
    plays, learns = (Code("/me/train.py", name, "__main__", 5, ()) for name in ("examine", "regularize"))
    codes = [(STEP, plays, collect, loop), (LINEAR, FORWARD, plays, collect, loop), (STEP, collect, loop)]
    codes += [(backward, loop), (backward, learns, loop), (LINEAR, FORWARD, learns, loop)]
    made = [tuple(Place(each, each.line) for each in stack) for stack in codes]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(index), 0.1, stack) for index, stack in enumerate(made)])
    roles = [classifier.classify(stack)[0] for stack in made]
    assert roles[:4] == [Role.EVALUATION, Role.EVALUATION, Role.ENVIRONMENT, Role.BACKWARD]
    assert roles[5] is Role.FORWARD


@pytest.mark.parametrize(("elsewhere", "role"), [(True, Role.EVALUATION), (False, Role.ENVIRONMENT)])
def test_a_callback_that_plays_evaluates_where_its_library_plays_too(elsewhere: bool, role: Role) -> None:
    """The script's function may be an override that collects the data, unless another place plays."""
    loop, collect = (Code(f"/x/site-packages/some/{name}.py", name, f"some.{name}", 5, ()) for name in ("run", "play"))
    backward = Code("/x/site-packages/torch/_tensor.py", "Tensor.backward", "torch._tensor", 1, ())
    callback = Code("/me/train.py", "Check._on_step", "__main__", 5, ("__main__.Check",))
    codes = [(STEP, callback, collect, loop), (backward, loop)] + [(STEP, collect, loop)] * elsewhere
    made = [tuple(Place(each, each.line) for each in stack) for stack in codes]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(index), 0.1, stack) for index, stack in enumerate(made)])
    assert [classifier.classify(stack)[0] for stack in made] == [role, Role.BACKWARD] + [Role.ENVIRONMENT] * elsewhere


GZIP = Code("/lib/gzip.py", "GzipFile.write", "gzip", 5, ("gzip.GzipFile", "_compression.BaseStream"))


@pytest.mark.parametrize(
    ("stack", "moves", "role"),
    [
        (SAVE, [Role.SAVING], Role.SAVING),
        (SAVE, [Role.READING], Role.READING),  # a package that saves also reads
        (SAVE, [], Role.OTHER),
        (GZIP, [Role.SAVING, Role.READING], Role.SAVING),
        (Code("/x/numpy/lib/npyio.py", "load", "numpy.lib.npyio", 5, ()), [], Role.READING),  # pages of memory
    ],
)
def test_what_saves_moves_bytes_out_and_what_reads_moves_them_in(stack: Code, moves: list[Role], role: Role) -> None:
    assert Classifier(Hints(), False, moves).classify((Place(stack, 5),))[0] is role


def test_environments_are_known_by_their_classes(script: Path) -> None:
    step = at(script, "world.step(a)", "go")
    assert role(STEP, step) is Role.ENVIRONMENT
    assert role(DUCK, step) is Role.ENVIRONMENT
    assert role(LINEAR, FORWARD, STEP, step) is Role.ENVIRONMENT  # an opponent
    assert role(MONITOR, STEP, step) is Role.LOGGING
    assert role(RECV, STEP, step) is Role.WAIT


def test_c_functions_are_known_by_their_names(script: Path) -> None:
    assert role(at(script, "loss.backward()", "go")) is Role.BACKWARD
    assert role(at(script, "time.sleep(1)", "go")) is Role.IDLE
    assert role(at(script, "rows.append((x, r))", "go")) is Role.OTHER  # a list may be of anything
    item = at(script, "loss.item()", "go")
    assert source_context.call_at(item) == "item"
    assert role(item, cuda=True) is Role.COPY


def test_other_names_of_c_functions_and_of_compiled_ones_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text("while True:\n    nap(1)\n    pick(x)\n    env.step(1)\n")
    code = Code(str(path), "<module>", "__main__", 1, (), (("nap", "sleep"), ("pick", "jit choose")))
    assert role(Place(code, 2, 2, 4, 10)) is Role.IDLE
    assert role(Place(code, 3, 3, 4, 11)) is Role.FORWARD


SPINNING = """while not (flags == 2).all():
    pass
while True:
    if flags[0] != 1:
        continue
    work(flags)
while True:
    if (flags == 2).all():
        break
while total < 3:
    total += flags.sum()
for row in rows:
    if row.any():
        continue
while learn(flags):
    pass
"""


def test_a_loop_that_only_asks_waits(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(SPINNING)
    code = Code(str(path), "<module>", "__main__", 1, ())
    inside = Code("/x/site-packages/numpy/_core/_methods.py", "_all", "numpy._core._methods", 60, ())
    learn = Code(str(tmp_path / "other.py"), "learn", "other", 1, ())
    for line, waits in ((1, True), (4, True), (5, True), (6, False), (8, True), (11, False), (13, False), (15, True)):
        for stack in ((Place(code, line),), (inside, Place(code, line))):
            assert (role(*stack) is Role.WAIT) == waits, line
    assert role(learn, Place(code, 15)) is not Role.WAIT


@pytest.mark.parametrize(
    ("loop", "waits"),
    [
        ("while not ready(): time.sleep(0.1)", True),
        ("while rows < 9 and time.monotonic() < end: time.sleep(0.1)", True),
        ("while time.monotonic() < end: time.sleep(0.1)", False),
        ("while True: time.sleep(0.1)", False),
        ("while True:\n if rows < 9:\n  time.sleep(0.1)\n  continue\n learn()", True),
        ("while True:\n if time.time() < end:\n  time.sleep(0.1)\n  continue\n learn()", False),
        ("while not done():\n learn()\n time.sleep(0.1)", False),
    ],
)
def test_sleeping_until_it_asks_again_is_waiting_and_sleeping_until_a_time_is_not(
    loop: str, waits: bool, tmp_path: Path
) -> None:
    path = tmp_path / "run.py"
    path.write_text(f"import time\n{loop}\n")
    number, line = next(each for each in enumerate(path.read_text().splitlines(), 1) if "sleep" in each[1])
    column, call = line.index("time.sleep(0.1)"), "time.sleep(0.1)"
    code = Code(str(path), "<module>", "__main__", 1, ())
    place = Place(code, number, number, column, column + len(call), (), ())
    assert role(place) is (Role.WAIT if waits else Role.IDLE)


def test_imports_and_saving(script: Path) -> None:
    assert role(SAVE, IMPORT, at(script, "net(x)", "go")) is Role.START_UP
    assert role(LINEAR, SAVE, at(script, "net(x)", "go")) is Role.SAVING


def test_the_users_table_goes_first(script: Path, tmp_path: Path) -> None:
    hints = tmp_path / "hints.toml"
    hints.write_text('[roles]\nlogging = ["game.Game.*"]\n')
    assert role(STEP, at(script, "world.step(a)", "go"), hints=hints) is Role.LOGGING


def test_no_pattern_is_hidden_by_a_wider_one_of_another_role() -> None:
    hints = Hints()
    for role, patterns in read_roles(OWN).items():
        for pattern in patterns:
            assert hints.role((pattern.replace("*", "x"),)) is role
    assert hints.role(("some_script.train_step",)) is None


def functions_of_headrace() -> list[str]:
    """Full names of all functions and methods of the package."""
    root = Path(headrace.__file__).parent
    names = []

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                names.append(f"{prefix}.{child.name}")
            elif isinstance(child, ast.ClassDef):
                collect(child, f"{prefix}.{child.name}")

    for path in root.rglob("*.py"):
        module = ".".join(("headrace", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        collect(ast.parse(path.read_text()), module)
    return names


def test_every_pattern_of_headrace_matches_one_of_its_functions() -> None:
    names = functions_of_headrace()
    every = [pattern for patterns in read_roles(OWN).values() for pattern in patterns]
    patterns = [pattern for pattern in every if pattern.startswith("headrace.")]
    assert patterns and [pattern for pattern in patterns if not fnmatch.filter(names, pattern)] == []


@pytest.mark.parametrize(
    ("file", "own"),
    {
        "/home/me/site-packages-study/train.py": True,
        "/home/me/my-packages/train.py": True,
        "/home/me/lib/python3-course/train.py": True,
        f"{sysconfig.get_paths()['stdlib']}-mine/train.py": True,
        "/home/me/ü b/train.py": True,
        "/x/lib/python3.12/json/encoder.py": False,
        "/usr/lib/python3/dist-packages/torch/nn/linear.py": False,
        "C:\\Python\\Lib\\site-packages\\torch\\nn\\linear.py": False,
        "<frozen importlib._bootstrap>": False,
    }.items(),
)
def test_whole_names_of_folders_say_whose_a_file_is(file: str, own: bool) -> None:
    assert source_context.is_own(file) is own
