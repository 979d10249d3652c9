"""Roles in scripts whose loop is not one function: generators, coroutines, threads, and handlers of events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.diagnose.injected.stacks import ENV_CLASS
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Code, Place, Sample, Stack
from tests.diagnose.profile.test_training_loop import BACKWARD, FORWARD, LEARN, Script

HANDLE = Place(Code("/usr/lib/python3.11/asyncio/events.py", "Handle._run", "asyncio.events", 1, ()), 80)
ARRAYS = Place(Code("/x/site-packages/numpy/_core/numeric.py", "roll", "numpy", 1, ()), 1)


def test_a_generator_that_plays_is_followed_and_what_is_sent_to_it(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def swims():
            while True:
                u = yield s
                s = relax(s, u)

        def walks(k):
            it = swims()
            s = next(it)
            while True:
                rows = []
                for _ in range(9):
                    s = it.send(net(s))
                    rows.append(s)
                yield rows

        for B in walks(0):
            {LEARN}
        """,
    )
    loop = script.at("walks(0)")
    swim = script.at("relax(s, u)", "swims")
    found = script.roles(
        (swim, script.at("it.send(net(s))", "walks"), loop),
        (FORWARD, script.at("net(s)", "walks"), loop),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [Role.ENVIRONMENT, Role.INFERENCE, Role.BACKWARD]


ASYNC = f"""
async def work(world, box):
    s = 0
    while True:
        s = await world.tend(net(s))
        await box.put(s)

async def main():
    box = queue()
    {{start}}
    while True:
        B = await box.get()
        {LEARN}

go(main())
"""


@pytest.mark.parametrize(
    ("start", "played"),
    [("tasks = [spawn(work(w, box)) for w in worlds]", Role.ENVIRONMENT), ("spawn(work(0, other))", Role.EVALUATION)],
)
def test_tasks_of_an_event_loop_are_parts_of_the_training_loop(start: str, played: Role, tmp_path: Path) -> None:
    script = Script(tmp_path, ASYNC.format(start=start))
    around = (HANDLE, script.at("go(main())"))
    tending = (ARRAYS, script.at("await world.tend(net(s))", "work"), *around)
    acting = (FORWARD, script.at("net(s)", "work"), *around)
    update = (BACKWARD, script.at("L.backward()", "main"), *around)
    found = script.roles(*[tending] * 5, acting, update)
    assert found[0] is played and found[6] is Role.BACKWARD
    assert found[5] is (Role.INFERENCE if played is Role.ENVIRONMENT else played)


def test_what_other_threads_play_is_known_by_what_flows_to_the_learner(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def drive(road, box):
            s = road.start()
            while True:
                s = road.load(net(s))
                box.put(s)

        Thread(target=drive, args=(road, box))
        while True:
            B = box.get()
            {LEARN}
        """,
    )
    stacks: list[Stack] = [
        (ARRAYS, script.at("road.load(net(s))", "drive")),
        (Place(FORWARD, 1), script.at("net(s)", "drive")),
        (Place(BACKWARD, 1), script.at("L.backward()")),
    ]
    classifier = Classifier(Hints(), cuda=False)
    threads = [[Sample(float(turn), 0.02, stack) for turn in range(9)] for stack in stacks]
    classifier.learn_from(threads[2], threads[0] + threads[1])
    assert [classifier.classify(stack)[0] for stack in stacks] == [Role.ENVIRONMENT, Role.INFERENCE, Role.BACKWARD]


def test_handlers_of_one_event_have_roles_of_their_own(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        def count(s):
            global line
            line = text(s)

        def learn(s):
            B = table.add(s)
            {LEARN}

        while True:
            s = world.put(net(s))
            for f in handlers:
                f(s)
        """,
    )
    loop = script.at("f(s)")
    found = script.roles(
        (script.at("text(s)", "count"), loop),
        (script.at("table.add(s)", "learn"), loop),
        (BACKWARD, script.at("L.backward()", "learn"), loop),
        (script.at("world.put(net(s))"),),
        (FORWARD, script.at("net(s)")),
    )
    assert found == [Role.SIDE, Role.DATA, Role.BACKWARD, Role.ENVIRONMENT, Role.INFERENCE]


def test_code_below_a_call_that_is_not_followed_learns_only_where_the_network_takes_most_of_it(tmp_path: Path) -> None:
    text = f"def look(q):\n    return sort(net(q))\n\nwhile True:\n    s = world.put(s)\n    B = look(s)\n    {LEARN}"
    script = Script(tmp_path, text)
    sorting = (script.at("sort(net(q))", "look"), script.at("look(s)"))
    network = (FORWARD, script.at("net(q)", "look"), script.at("look(s)"))
    update = (BACKWARD, script.at("L.backward()"))
    assert script.roles(sorting, *[network] * 3, update)[0] is Role.FORWARD
    assert script.roles(*[sorting] * 3, network, update)[0] is Role.OTHER


def test_a_network_that_judges_each_step_is_not_sure_to_learn(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        f"""
        while True:
            rows = []
            for _ in range(9):
                s = world.put(net(s))
                rows.append(old(s))
            B = stack(rows)
            {LEARN}
        """,
    )
    stacks: list[Stack] = [
        (Place(FORWARD, 1), script.at("old(s)")),
        (Place(FORWARD, 1), script.at("net(s)")),
        (script.at("world.put(net(s))"),),
        (Place(BACKWARD, 1), script.at("L.backward()")),
    ]
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(n), 0.02, stack, without_gradients=n == 0) for n, stack in enumerate(stacks)])
    assert classifier.classify(stacks[0])[0] is Role.INFERENCE and classifier.is_guessed(stacks[0])


def test_moving_a_target_network_is_a_part_of_learning(tmp_path: Path) -> None:
    text = "def drift(k):\n    old.load_state_dict(mix(old, net))\n\n"
    script = Script(tmp_path, f"{text}while True:\n    s = world.put(net(s))\n    B = s\n    drift(0)\n    {LEARN}")
    update = (BACKWARD, script.at("L.backward()"))
    drift = (script.at("mix(old, net)", "drift"), script.at("drift(0)"))
    assert script.roles(drift, update, (FORWARD, script.at("net(s)")))[0] is Role.OPTIMIZER


def test_arrays_of_the_scripts_code_outside_a_loop_are_no_data_handling_and_those_of_a_librarys_are(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path, "def tide(h):\n    return roll(h)\n\ntide(0)")
    library = Place(Code("/x/site-packages/some/runner.py", "run", "some.runner", 1, ()), 1)
    own: Stack = (ARRAYS, script.at("roll(h)", "tide"), script.at("tide(0)"))
    other: Stack = (ARRAYS, library, script.at("tide(0)"))
    assert script.roles(own, other) == [Role.OTHER, Role.DATA]


def test_a_network_that_each_turn_copies_is_made_again(tmp_path: Path) -> None:
    script = Script(tmp_path, f"while True:\n    old = gc.copy(net)\n    s = world.put(net(s))\n    B = s\n    {LEARN}")
    update = (BACKWARD, script.at("L.backward()"))
    assert script.roles((script.at("gc.copy(net)"),), update, (FORWARD, script.at("net(s)")))[0] is Role.REMADE


@pytest.mark.parametrize("kind", ["", "array", "container"])
def test_what_is_between_the_network_and_a_known_environment_plans_and_a_method_of_data_plays_nothing(
    kind: str, tmp_path: Path
) -> None:
    script = Script(
        tmp_path,
        f"""
        while True:
            u = net(s)
            for _ in range(9):
                u = cost(plans, u)
            s = look(world.put(u))
            s = keep.turn(s)
            B = s
            {LEARN}
        """,
    )

    def at(call: str) -> Place:
        place = script.at(call)
        return replace(place, kinds=(*place.kinds, ("keep", kind))) if kind else place

    environment = Place(Code("/x/world.py", "World.step", "world", 1, ("gymnasium.core.Env", ENV_CLASS)), 1)
    found = script.roles(
        (at("cost(plans, u)"),),
        (environment, at("world.put(u)")),
        (at("look(world.put(u))"),),
        (at("keep.turn(s)"),),
        (FORWARD, at("net(s)")),
        (BACKWARD, at("L.backward()")),
    )
    turned = Role.INFERENCE if kind else Role.ENVIRONMENT
    assert found[:4] == [Role.INFERENCE, Role.ENVIRONMENT, Role.INFERENCE, turned]


TREE = """
class Node:
    def __init__(self, game):
        self.game = game

def look(node, k):
    p = net(node.game)
    for k in p:
        g = gc.copy(node.game)
        g.turn(k)
        node.kids[k] = Node(g)
    return p

def draw(rows, k):
    return sort(rows)

while True:
    for _ in range(9):
        node = best(node)
        p = look(node, 0)
        rows.append(p)
    B = draw(rows, 9)
    {learn}
"""


def test_copies_in_a_tree_search_are_a_part_of_acting_and_drawing_from_memory_is_not(tmp_path: Path) -> None:
    script = Script(tmp_path, TREE.format(learn=LEARN))
    outer = script.at("look(node, 0)")
    found = script.roles(
        (script.at("gc.copy(node.game)", "look"), outer),
        (FORWARD, script.at("net(node.game)", "look"), outer),
        (script.at("sort(rows)", "draw"), script.at("draw(rows, 9)")),
        (BACKWARD, script.at("L.backward()")),
    )
    assert found == [Role.INFERENCE, Role.INFERENCE, Role.DATA, Role.BACKWARD]


def test_what_waits_until_a_disk_has_written_logs_whatever_library_it_is_in(tmp_path: Path) -> None:
    script = Script(tmp_path, f"while True:\n    s = world.put(net(s))\n    note(s)\n    B = s\n    {LEARN}")
    note: Stack = (ARRAYS, script.at("note(s)"))
    update: Stack = (Place(BACKWARD, 1), script.at("L.backward()"))
    for waits_for, role in (("a disk (fsync)", Role.LOGGING), ("", Role.DATA)):
        classifier = Classifier(Hints(), cuda=False)
        classifier.learn_from([Sample(float(n), 0.1, s, True, False, waits_for) for n, s in enumerate((note, update))])
        assert (classifier.evidence(note) is Role.LOGGING) == (role is Role.LOGGING)


def test_without_networks_what_gives_its_own_next_input_is_likely_the_environment(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        def fly(u):
            return glide(u)

        def flight(w):
            x = 0
            for _ in range(9):
                x = world.fly(turn(w, x))
            return x

        for n in ages:
            f = [flight(w + e) for e in noise]
            w = mix(w, f)
        """,
    )
    places = script.at("glide(u)", "fly"), script.at("world.fly(turn(w, x))", "flight"), script.at("flight(w + e)")
    flying: Stack = tuple(replace(place, kinds=()) for place in places)
    mixing: Stack = (replace(script.at("mix(w, f)"), kinds=()),)
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(n), 0.1, flying if n % 9 else mixing) for n in range(90)])
    assert classifier.classify(flying)[0] is Role.ENVIRONMENT and classifier.is_guessed(flying)
    assert classifier.classify(mixing)[0] is Role.OTHER


@pytest.mark.parametrize(
    ("ends", "role"), [("print(rank(rows))", Role.LOGGING), ("film.save(k)", Role.SAVING), ("rank(rows)", Role.SIDE)]
)
def test_side_work_of_a_function_that_writes_logs_or_saves(ends: str, role: Role, tmp_path: Path) -> None:
    text = f"def look(k):\n    rows = sort(k)\n    {ends}\n\n"
    script = Script(tmp_path, f"{text}while True:\n    s = world.put(net(s))\n    look(s)\n    B = s\n    {LEARN}")
    update: Stack = (Place(BACKWARD, 1), script.at("L.backward()"))
    side: Stack = (script.at("sort(k)", "look"), script.at("look(s)"))
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(n), 0.1, stack) for n, stack in enumerate((side, update))])
    assert classifier.classify(side)[0] is role and classifier.is_guessed(side)


@pytest.mark.parametrize(
    ("body", "role"), [("u = net(s)", Role.INFERENCE), ("y = old(B)", Role.FORWARD), ("pass", Role.SIDE)]
)
def test_entering_a_context_belongs_to_the_network_inside(body: str, role: Role, tmp_path: Path) -> None:
    text = f"while True:\n    s = world.put(net(s))\n    B = s\n    with torch.no_grad():\n        {body}\n"
    script = Script(tmp_path, f"{text}    s = world.put(u)\n    L = f(net(B), y); L.backward(); opt.step()")
    update: Stack = (Place(BACKWARD, 1), script.at("L.backward()"))
    context: Stack = (script.at("torch.no_grad()"),)
    classifier = Classifier(Hints(), cuda=False)
    classifier.learn_from([Sample(float(n), 0.1, stack) for n, stack in enumerate((context, update))])
    assert classifier.classify(context)[0] is role
