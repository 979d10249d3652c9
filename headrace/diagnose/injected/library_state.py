"""State of imported libraries that is cheap to read: versions, torch's threads, sizes of batches and networks."""

import sys
import time

from . import variables

LIBRARIES = (
    "torch", "numpy", "gymnasium", "gym", "stable_baselines3", "sb3_contrib", "ray", "torchrl", "tianshou", "cleanrl",
    "rl_games", "skrl", "sample_factory", "pufferlib", "envpool", "ale_py", "mujoco", "dm_control", "pettingzoo", "jax",
    "tensorflow", "tensorboardX", "wandb", "headrace", "numba", "cv2", "isaacgym", "brax",
)  # fmt: skip
_COUNTS = ("num_envs", "env_num", "num_workers")  # of environments: Gymnasium's name, Tianshou's, TorchRL's
_FORWARD = ("_wrapped_call_impl", "_call_impl")  # of torch.nn.Module, around every forward


def versions():
    """Name -> version of the known libraries that are imported, "" if a library has no version."""
    found = {}
    for name in LIBRARIES:
        if name in sys.modules:
            version = _attributes(sys.modules[name]).get("__version__")
            found[name] = version if isinstance(version, str) else ""
    return found


def of_torch():
    """Counters of torch, once it is imported. Call it in the main thread: each thread has its own settings."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_interop_threads"):  # not imported, or being imported
        return {}
    return {
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "cuda": int(getattr(sys.modules.get("torch.cuda"), "_initialized", False)),
    }


def without_gradients():
    """Tell whether torch, in this thread, records no gradients; False without torch."""
    enabled = getattr(sys.modules.get("torch"), "is_grad_enabled", None)
    return enabled is not None and not enabled()


def of_stack(frame, sizes):
    """Counters from the variables of frames: the batch of the outermost forward pass, and the number of environments.

    sizes: a cache of the numbers of parameters, by module.
    """
    counters = {}
    while frame is not None:
        name = frame.f_code.co_name
        if name in _FORWARD and frame.f_globals.get("__name__", "").startswith("torch.nn.modules."):
            counters.update(_of_forward(variables.read(frame, "self"), variables.read(frame, "args"), sizes))
        elif name in ("step", "step_wait", "step_async", "_step", "send", "recv"):
            own = _attributes(variables.read(frame, "self"))
            count = next((own[key] for key in _COUNTS if isinstance(own.get(key), int)), None)
            if count is not None:
                counters["num_envs"] = count
        elif name in ("learn", "iterate"):
            counters.update(_of_learner(variables.read(frame, "self"), sizes))
        frame = frame.f_back
    return counters


def _attributes(value):
    return getattr(value, "__dict__", {})


def _of_learner(learner, sizes):
    """Environment steps per second, if a learner counts its steps: in num_timesteps (Stable-Baselines3), or in
    steps."""
    own = _attributes(learner)
    total = own.get("num_timesteps", own.get("steps"))
    if not isinstance(total, int):
        return {}
    now = time.monotonic()
    began, before = sizes.setdefault("steps", (now, total))
    return {"env_rate": (total - before) / (now - began)} if now > began + 1.0 else {}


def _positions(value):
    """Number of positions at which each row uses the parameters, such as a sequence's length; 0 for images: unknown."""
    tokens = value.dim() == 2 and not value.is_floating_point()
    if value.dim() > 3:
        return 0
    return int(value.shape[1]) if value.dim() == 3 or tokens else 1


def _of_forward(module, arguments, sizes):
    if not hasattr(module, "parameters"):
        return {}
    inputs = list(arguments or ())
    if id(module) not in sizes:
        sizes[id(module)] = sum(parameter.numel() for parameter in module.parameters())
    found = {"parameters": max(size for size in sizes.values() if isinstance(size, int))}
    while inputs:
        value = inputs.pop(0)
        if isinstance(value, dict):
            inputs += value.values()
        elif isinstance(value, sys.modules["torch"].Tensor):
            found["batch"] = int(value.shape[0]) if value.dim() > 1 else 1
            found["positions"] = _positions(value)
            break
    return found
