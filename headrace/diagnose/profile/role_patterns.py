"""The roles of functions of known libraries, by pattern. Users can add patterns in a TOML file.

A pattern is matched against a function's full name, `module.Class.method`, and against the same method of each base of
its class: `gymnasium.core.Env.step` matches the step of every environment. Of several roles, the first that matches
counts. The file looks like this:

    [roles]
    environment = ["my_game.engine.*"]
    "learning.forward" = ["my_game.losses.*"]
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import translate
from pathlib import Path

from headrace.diagnose.injected.stacks import ENV_CLASS
from headrace.diagnose.profile.profile import Role

STEPS = ("step", "reset", "step_wait", "step_async", "reset_wait", "reset_async", "send", "recv", "env_method")
PATTERNS: dict[Role, tuple[str, ...]] = {  # the first match counts
    Role.ENVIRONMENT: (
        *(f"{ENV_CLASS}.{name}" for name in STEPS),
        *(f"gymnasium.core.*.{name}" for name in STEPS),
        *(f"gymnasium.vector.vector_env.*.{name}" for name in STEPS),
        *(f"stable_baselines3.common.vec_env.base_vec_env.VecEnv.{name}" for name in STEPS),
        "gymnasium.vector.async_vector_env._async_worker",
        "stable_baselines3.common.vec_env.subproc_vec_env._worker",
        "headrace.envs.*.step*", "headrace.envs.*.reset*",
    ),
    Role.BACKWARD: (
        "torch._tensor.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad", "torch.autograd.graph.*",
        "torch.autograd.__init__.*",
    ),
    Role.OPTIMIZER: (
        "headrace.algorithms.adam.*", "torch.optim.*", "torch.nn.utils.clip_grad.*",
        "stable_baselines3.common.utils.polyak_update", "torch._foreach*", "torch.amp.grad_scaler.*",
    ),
    Role.WAIT: (
        "multiprocessing.connection.*Connection*.recv", "multiprocessing.connection.*Connection*.recv_bytes",
        "multiprocessing.connection.*Connection*.poll", "multiprocessing.connection.*Connection*._recv*",
        "multiprocessing.connection.*Connection*._poll",
        "multiprocessing.connection.wait", "multiprocessing.queues.*.get", "multiprocessing.queues.*.put",
        "multiprocessing.pool.*Result.get", "multiprocessing.pool.*Result.wait", "multiprocessing.pool.*.next",
        "multiprocessing.popen_*.Popen.wait", "multiprocessing.popen_*.Popen.poll", "multiprocessing.process.*.join",
        "multiprocessing.synchronize.*", "multiprocessing.managers.*._callmethod",
        "threading.Condition.wait*", "threading.Event.wait", "threading.Thread.join", "threading.Thread._wait*",
        "threading.Barrier.wait*", "threading.Semaphore.acquire", "threading._shutdown",
        "queue.*.get", "queue.*.put", "concurrent.futures._base.*.result", "concurrent.futures._base.wait",
        "subprocess.Popen.wait", "subprocess.Popen.communicate", "subprocess.Popen._wait",
        "ray._private.worker.get", "ray._private.worker.wait", "selectors.*.select", "multiprocessing.forkserver.*",
        "multiprocessing.util._exit_function",
    ),
    Role.EVALUATION: (
        "stable_baselines3.common.evaluation.evaluate_policy", "headrace.evaluation.evaluator.*",
        "tianshou.trainer.*.test_*", "ray.rllib.algorithms.algorithm.Algorithm.evaluate",
    ),
    Role.SAVING: (
        "torch.serialization.*", "stable_baselines3.common.save_util.*", "stable_baselines3.common.base_class.*.save",
        "stable_baselines3.common.callbacks.CheckpointCallback.*", "imageio.*", "moviepy.*", "zipfile.*", "shutil.*",
        "gymnasium.wrappers.rendering.RecordVideo.stop_recording", "headrace.runs.checkpoint.*", "safetensors.*",
        "numpy.lib.*.save*",
    ),
    Role.DATA: (
        "stable_baselines3.common.buffers.*", "stable_baselines3.her.*", "torch.utils.data.*", "numpy.*", "pandas.*",
        "stable_baselines3.common.utils.explained_variance", "stable_baselines3.common.utils.obs_as_tensor",
        "stable_baselines3.common.preprocessing.*", "headrace.data.*", "headrace.core.returns.*", "headrace.core.rng.*",
        "headrace.algorithms.minibatches.*", "headrace.bindings.rng_*", "headrace.bindings.returns_*",
        "headrace.bindings.replay_batches.*", "pickle.*",
        "multiprocessing.reduction.*", "multiprocessing.connection.*Connection*.send*",
        "multiprocessing.connection.*Connection*._send*", "cloudpickle.*", "copy.*",
        "random.*", "torchrl.data.*", "tensordict.*",
    ),
    Role.LOGGING: (
        "torch.utils.tensorboard.*", "tensorboardX.*", "tensorboard.*", "stable_baselines3.common.logger.*",
        "stable_baselines3.common.monitor.ResultsWriter.*", "csv.*", "logging.*", "wandb.*", "tqdm.*", "rich.*",
        "mlflow.*", "stable_baselines3.common.*.dump_logs", "stable_baselines3.common.*._dump_logs",
        "headrace.runs.logs.*", "headrace.runs.recorder.*", "headrace.training.episodes.*", "headrace.runs.progress.*",
        "matplotlib.*", "stable_baselines3.common.base_class.*._update_info*", "traceback.*", "warnings.*",
    ),
    Role.START_UP: (
        "importlib._bootstrap*", "_frozen_importlib*", "torch._dynamo.convert_frame.*",
        "numba.core.*", "gymnasium.envs.registration.*", "multiprocessing.process.BaseProcess.start",
        "multiprocessing.spawn.*prepare*", "torch.nn.init.*", "torch.nn.modules.*.__init__", "site.*",
        "torch.nn.modules.*.reset_parameters", "headrace.training.trainer.Trainer.__init__", "ctypes.*.__init__",
        "argparse.*", "tyro._parsers.*", "tyro._arguments.*", "tyro._resolver.*", "tyro._fields.*",
        "tyro._docstrings.*", "tyro._strings.*", "tyro._backends.*", "tyro.constructors.*",
        "dataclasses._process_class", "dataclasses.make_dataclass",
    ),
    Role.FORWARD: (  # last, as it holds the widest patterns
        "torch.nn.modules.module.Module._wrapped_call_impl", "torch.nn.modules.module.Module._call_impl",
        "torch.nn.functional.*", "torch.distributions.*", "stable_baselines3.common.distributions.*",
        "stable_baselines3.common.policies.*", "stable_baselines3.common.torch_layers.*",
        "headrace.policies.*", "headrace.algorithms.*", "headrace.bindings.*",
        "torch.functional.*", "torch._tensor.*", "torch._refs.*",
    ),
}  # fmt: skip
WHOLE_CALL = (Role.EVALUATION, Role.START_UP)  # roles that include everything that their functions call


class Hints:
    """Roles of functions, by pattern; those of the user's file come first."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises FileNotFoundError, and ValueError if the file is not such a table."""
        own = _read(file) if file else {}
        tables: list[dict[Role, tuple[str, ...]]] = [own, PATTERNS]
        self._tables = [
            [(role, re.compile("|".join(map(translate, patterns)))) for role, patterns in table.items() if patterns]
            for table in tables
        ]

    def role(self, names: tuple[str, ...]) -> Role | None:
        """The role of a function under any of its names, or None."""
        for table in self._tables:
            for role, pattern in table:
                if any(pattern.match(name) for name in names):
                    return role
        return None


def _read(file: Path) -> dict[Role, tuple[str, ...]]:
    try:
        table = tomllib.loads(file.read_text())["roles"]
        return {Role(role): tuple(patterns) for role, patterns in table.items()}
    except (tomllib.TOMLDecodeError, KeyError, ValueError, AttributeError, TypeError) as error:
        roles = ", ".join(role.value for role in Role)
        raise ValueError(
            f"{file} is no valid hints file ({error}): it needs [roles], with lists of patterns under any of {roles}"
        ) from error
