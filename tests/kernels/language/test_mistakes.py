"""Mistakes a user makes: each message names the file and line, what is wrong, and what to write instead."""

import pytest
from helpers.user_file import DUEL, ENV, PIXELS, changed, line_of, load

from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.read import read

RETURN = "return MyEnv.State(s.x, s.n + 1, s.cells), 1.0, s.n > 3"


def before_step_returns(line: str) -> str:
    """WORLD with a line more in step()."""
    return changed(RETURN, line + "\n        " + RETURN)


MISTAKES = {
    # name: (text, the line complained of, what is wrong, what to do)
    "missing observe": (ENV.split("    def observe")[0], "class MyEnv", "MyEnv has no observe", "def observe(s, p)"),
    "missing state": (changed("class State(", "class Stat("), "class MyEnv", "MyEnv has no State", "State(NamedTuple)"),
    "string": (before_step_returns('mood = "happy"'), "happy", "string `'happy'`", "Use a number"),
    "f-string": (before_step_returns('mood = f"{s.x}"'), "mood", "a string cannot", "debugger"),
    "growing list": (before_step_returns("seen = []"), "seen", "a list cannot", "array field of State"),
    "append": (before_step_returns("s.cells.append(1)"), "append", "s.cells.append()", "array field of State"),
    "dict": (before_step_returns("table = {1: 2}"), "table", "a dict cannot", "array constant"),
    "print": (before_step_returns("print(s.x)"), "print", "print() cannot run", "headrace.single"),
    "try": (
        before_step_returns("try:\n            y = 1\n        except ValueError:\n            y = 2"),
        "try",
        "`try`",
        "test",
    ),
    "lambda": (before_step_returns("f = lambda x: x"), "lambda", "a lambda cannot", "def"),
    "numpy array": (before_step_returns("grid = np.zeros(4)"), "grid", "np.zeros() makes an array", "State"),
    "numpy random": (before_step_returns("y = np.random.rand()"), "np.random", "not reproducible", "uniform(key"),
    "tuple length": (changed("return s.x, 0.0", "return s.x, 0.0, 1.0"), "0.0, 1.0", "3 values", "tuple of 2"),
    "no tuple": (changed("return s.x, 0.0", "return s.x"), "return s.x", "observe returns a float", "tuple of 2"),
    "step's results": (
        changed(", s.n > 3", ""),
        "s.cells), 1.0",
        "step returns 2 values",
        "State(...), reward, terminated",
    ),
    "state's length": (
        changed("MyEnv.State(s.x, s.n + 1, ", "MyEnv.State(s.n + 1, "),
        "+ 1",
        "got 2 arguments",
        "x, n, cells",
    ),
    "unknown field": (before_step_returns("y = s.speed"), "speed", "no field 'speed'", "It has x, n, cells"),
    "unknown argument": (changed("s.n + 1, s.cells)", "s.n + 1, cell=s.cells)"), "+ 1", "no argument 'cell'", "cells"),
    "bare State": (changed("MyEnv.State(s.x, s.n", "State(s.x, s.n"), "return State", "'State' is not", "MyEnv.State"),
    "bare self": (before_step_returns("y = self.x"), "self.x", "'self' is not defined", "s is the state"),
    "Gymnasium's results": (
        changed(", s.n > 3", ", s.n > 3, False, 0.0"),
        "s.cells), 1.0",
        "step returns 5 values, as a gymnasium.Env's",
        "State(...), reward, terminated: observe gives observations",
    ),
    "unknown name": (before_step_returns("y = gravity"), "gravity", "'gravity' is not defined", "Define or import"),
    "assigned field": (before_step_returns("s.x = 1.0"), "s.x = 1.0", "`s.x` is assigned", "s._replace"),
    "self": (changed("step(s, p, action, key)", "step(self, s, p, action)"), "def step", "has `self`", "def step(s, p"),
    "float annotation": (changed("x: f32", "x: float"), "x: float", "State.x is annotated float", "f32"),
    "float64 annotation": (changed("x: f32", "x: np.float64"), "np.float64", "State.x is annotated float64", "f32"),
    "float64 observation": (changed("(2,))", "(2,), np.float64)"), "class MyEnv", "float64", "float32 Box"),
    "action space": (changed("Discrete(2)", "Box(0, 1, (2, 2))"), "class MyEnv", "action_space", "Discrete(n)"),
    "steps": (changed("max_steps = 10", "max_steps = 0"), "class MyEnv", "max_steps is 0", "at least 1"),
    "no return": (changed(RETURN, f"if s.n > 2:\n            {RETURN}"), "def step", "without `return`", "at its end"),
    "float index": (before_step_returns("y = s.cells[s.x]"), "y =", "float as index", "int(x)"),
    "index": (before_step_returns("y = s.cells[4]"), "y =", "index 4 into 4 entries", "0 .. 3"),
    "new board": (
        changed("s.n + 1, s.cells)", "s.n + 1, TABLE)") + "TABLE = [1, 2, 3, 4]\n",
        "TABLE)",
        "not s.cells",
        "in place",
    ),
    "changed constant": (
        before_step_returns("TABLE[0] = 1") + "TABLE = [1, 2]\n",
        "TABLE[0]",
        "cannot be changed",
        "array fields",
    ),
    "changing observe": (
        changed("return s.x, 0.0", "s.cells[0] = 1\n        return s.x, 0.0"),
        "[0] = 1",
        "observe",
        "step",
    ),
    "two kinds": (before_step_returns("y = s.x\n        y = s.cells"), "y = s.cells", "'y' is a float", "another name"),
    "used too early": (before_step_returns("y = y + 1"), "y + 1", "'y' is used before", "Assign it first"),
    "loop": (before_step_returns("for c in s.cells:\n            y = c"), "for c in", "`for c in s.cells`", "range(n)"),
    "recursion": (
        before_step_returns("y = f(3)") + "def f(x):\n    return f(x)\n",
        "return f(x)",
        "calls itself",
        "loop",
    ),
    "starred": (before_step_returns("y = max(*s.cells)"), "max(*", "`*` cannot", "Write the values"),
    "word": (before_step_returns("y = uniform(key, 0)"), "y =", "got 2 arguments", "uniform(key, draw, low, high)"),
}


GREY = "return 255.0 if row > column else 0.0"
MISTAKES |= {
    # pictures
    "missing pixel": (PIXELS.split("    def pixel")[0], "class MyEnv", "MyEnv has no pixel", "def pixel(s, p, row"),
    "picture of floats": (
        changed("(2, 8, 8), np.uint8", "(2, 8, 8)", PIXELS),
        "class MyEnv",
        "MyEnv has no observe",
        "def observe(s, p)",
    ),
    "grey bounds": (
        changed("Box(0, 255", "Box(0, 1", PIXELS),
        "class MyEnv",
        "observation_space is Box(0, 1",
        "from 0 to 255",
    ),
    "flat picture": (changed("(2, 8, 8)", "(64,)", PIXELS), "class MyEnv", "(64,)", "for pixels Box(0, 255"),
    "frames": (changed("frames = 2", "frames = 0", PIXELS), "class MyEnv", "frames is 0", "at least 1"),
    "frames without channels": (
        changed("(2, 8, 8)", "(8, 8)", PIXELS),
        "class MyEnv",
        "frames is 2, and observation_space has shape (8, 8)",
        "shape (2, 8, 8)",
    ),
    "channels last": (
        changed("(2, 8, 8)", "(8, 8, 2)", PIXELS),
        GREY,
        "pixel returns a float, but observation_space has shape (8, 8, 2), 4 channels",
        "[channels, height, width]",
    ),
    "array of greys": (
        changed(GREY, "return s.cells", PIXELS),
        "return s.cells",
        "pixel returns an array",
        "one number",
    ),
    "too many greys": (changed(GREY, "return s.x, s.x", PIXELS), "return s.x, s.x", "a tuple of 2", "one number"),
    "picture with a key": (
        changed("row, column):", "row, column, key):", PIXELS),
        "def pixel",
        "pixel takes (s, p, row, column, key)",
        "def pixel(s, p, row, column)",
    ),
    "changing pixel": (
        changed(GREY, f"s.cells[0] = 1\n        {GREY}", PIXELS),
        "[0] = 1",
        "pixel changes s.cells",
        "Change it in step",
    ),
    "no grey": (changed(GREY, "y = 1", PIXELS), "def pixel", "without `return`", "at its end"),
    # several agents
    "missing num_agents": (
        changed("    num_agents = 2\n", "", DUEL)
        .replace("action[0] - action[1]", "action")
        .replace("(1.0, -1.0)", "1.0"),
        "def observe",
        "observe takes (s, p, agent), and MyEnv has no num_agents",
        "num_agents = 2",
    ),
    "no agents": (changed("num_agents = 2", "num_agents = 0", DUEL), "class MyEnv", "num_agents is 0", "at least 1"),
    "agents' names": (
        changed("num_agents = 2", 'num_agents = 2\n    agents = ("cat", "cat")', DUEL),
        "class MyEnv",
        "agents is ('cat', 'cat'), and num_agents is 2",
        "2 different names",
    ),
    "groups": (
        changed("num_agents = 2", 'num_agents = 2\n    groups = {"cats": ("agent_0",)}', DUEL),
        "class MyEnv",
        "groups is",
        "each agent in exactly one group",
    ),
    "order of groups": (
        changed("num_agents = 2", 'num_agents = 2\n    groups = {"b": ["agent_1"], "a": ["agent_0"]}', DUEL),
        "class MyEnv",
        "the agents are agent_0, agent_1",
        "agents = ('agent_1', 'agent_0')",
    ),
    "observe without agent": (
        changed("observe(s, p, agent)", "observe(s, p)", DUEL).replace("s.x, agent", "s.x, 0.0"),
        "def observe",
        "observe takes (s, p)",
        "def observe(s, p, agent)",
    ),
    "one reward": (
        changed("(1.0, -1.0)", "1.0", DUEL),
        "1.0, False",
        "value 1 that step returns is a float",
        "(reward, reward), terminated",
    ),
    "three rewards": (
        changed("(1.0, -1.0)", "(1.0, -1.0, 0.0)", DUEL),
        "-1.0, 0.0), False",
        "value 1 that step returns is a tuple of 3",
        "(reward, reward), terminated",
    ),
    "an agent too many": (changed("- action[1]", "- action[2]", DUEL), "action[2]", "index 2 into 2", "0 .. 1"),
    "action without an agent": (
        changed("action[0] - action[1]", "action", DUEL),
        "+ action",
        "`action` is a tuple of 2",
        "number is needed",
    ),
    "pictures of several": (
        changed("Box(-1.0, 1.0, (2,))", "Box(0, 255, (8, 8), np.uint8)", DUEL),
        "class MyEnv",
        "2 agents and pixel observations",
        "float32 Box",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(tmp_path, name):
    text, place, wrong, instead = MISTAKES[name]
    cls, path = load(tmp_path, text)
    with pytest.raises(EnvError) as caught:
        read(cls)
    error = caught.value
    assert wrong in error.wrong and instead in error.instead
    assert error.file == str(path)
    assert error.line == line_of(path, place)
    assert str(error).startswith(f"{path}:{error.line}: ")


def test_without_mistakes(tmp_path):
    cls, _ = load(tmp_path, ENV)
    ir = read(cls)
    assert [f.name for f in ir.functions] == ["env_reset", "env_step", "env_observe"]
