"""Starts the sampler in every Python process of a measured script; then runs the sitecustomize that this file hides.

The folder of this file is on PYTHONPATH, which child processes inherit, so Python imports it at its start.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_sampler():
    """Load the package that contains this folder under another name, and start its sampler."""
    package = os.path.dirname(_HERE)
    name = "_headrace_injected"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    _load(name, spec)
    importlib.import_module(name + ".sampler").start()


def _load(name, spec):
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _run_hidden():
    """Run the sitecustomize of the interpreter or the user, which Python would have found without this one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None:
        _load("sitecustomize", spec)


if os.environ.get("HEADRACE_DIAGNOSE"):
    try:
        _start_sampler()
    except Exception as error:  # the script must run, sampled or not
        sys.stderr.write(f"headrace diagnose: this process is not sampled ({type(error).__name__}: {error})\n")
_run_hidden()
