"""Programs run by helpers.forked find what those run by subprocess find, except that some modules are loaded
already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from helpers import forked

FACTS = """
import os, signal, sys
facts = [sys.argv, sys.orig_argv, sys.path, sys.flags, os.getcwd(), os.environ["OWN"], __name__, sys.stdin.read()]
print(facts, [getattr(sys, name).line_buffering for name in ("stdin", "stdout", "stderr")], sys.stdout, sys.stderr)
print({number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)})
print(os.getsid(0) == os.getpid(), sys.modules["__main__"].__dict__["facts"] is facts)
sys.exit("ended")
"""
ENDINGS = [
    "raise SystemExit(3)",
    "def f():\n    1 / 0\nf()",
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import atexit, threading, time; atexit.register(print, 'last')\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
]


@pytest.mark.parametrize("how", ["-c", "-m", "script"])
@pytest.mark.parametrize("session", [True, False])
def test_a_program_finds_what_a_new_process_would(how, session, tmp_path):
    (tmp_path / "facts.py").write_text(FACTS)
    (tmp_path / "own").mkdir()
    program = {"-c": ["-c", FACTS], "-m": ["-m", "facts"], "script": ["facts.py"]}[how]
    variables = os.environ | {"OWN": "value", "PYTHONPATH": os.pathsep.join((str(tmp_path / "own"), str(tmp_path)))}
    options = {"input": "told", "capture_output": True, "text": True, "cwd": tmp_path, "env": variables}
    command = [sys.executable, *program, "first", "-second"]
    new, old = (kind.run(command, start_new_session=session, **options) for kind in (subprocess, forked))
    assert new.stdout == old.stdout and new.stderr == old.stderr and new.returncode == old.returncode == 1
    assert old.stderr == "ended\n"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_as_a_new_process_would(ending):
    command = [sys.executable, "-c", ending]
    new, old = (kind.run(command, capture_output=True, text=True) for kind in (subprocess, forked))
    assert (new.stdout, new.stderr, new.returncode) == (old.stdout, old.stderr, old.returncode)


def test_it_can_be_waited_for_and_signalled():
    program = "import time; print('began', flush=True); time.sleep(1000)"
    with forked.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "began\n" and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == process.poll() == -signal.SIGTERM


def test_headrace_and_torch_are_loaded():
    program = "import sys; print({'headrace', 'torch'} <= {*sys.modules}, len(sys.argv))"
    assert forked.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True 1\n"


@pytest.mark.parametrize(
    ("command", "options"),
    [([sys.executable, "-I", "-c", ""], {}), (["true"], {}), ([sys.executable, "-c", ""], {"umask": 0o22})],
)
def test_what_it_cannot_do_is_said(command, options):
    with pytest.raises(ValueError, match="use subprocess"):
        forked.run(command, **options)


def test_other_variables_that_are_read_when_modules_are_loaded_are_those_of_another_server():
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    program = "import torch; print(torch.get_num_threads())"
    assert forked.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True).stdout == "1\n"
