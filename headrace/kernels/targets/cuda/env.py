"""N environments on a GPU: a generated Numba module, one thread per environment, on torch's stream without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from headrace.core.rng import word
from headrace.data.rollout import Rollout
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.numba_errors import explained
from headrace.kernels.runtime import cache
from headrace.kernels.targets.cuda import block_size
from headrace.kernels.targets.cuda.codegen_cuda import COLUMNS, cuda_module
from headrace.kernels.targets.cuda.codegen_entities_cuda import entity_cuda_module
from headrace.kernels.targets.cuda.codegen_pixels_cuda import cuda_pixel_module
from headrace.kernels.targets.cuda.launch import DeviceArray, array, launch, numba_cuda, on_device, simulated
from headrace.kernels.targets.episode_text import pack_rows
from headrace.kernels.targets.params import ParamValues, pack_params, repacked
from headrace.kernels.targets.tensor_state import TensorEnvs, stored_dtype

NUMBERS = {"reset": 0, "step": 1, "run": 2, "run_random": 3}  # kernel -> integer arguments after its arrays
WARM_UP, TIMED = 3, 30  # launches that choose the threads per block
DEFAULT_BLOCK = 128


class CudaEnvs(TensorEnvs):
    """N environments on a GPU; implements headrace.kernels.targets.base.CompiledTarget.

    Pixel observations are drawn by a second launch, with a thread per pixel.
    With entities, a block of threads steps an environment; otherwise a thread does.
    block: threads per block; None measures the fastest number, once per GPU, environment and number of environments.
    first_env: number of environment 0, where these are a part of a larger set.
    A step is one launch, and may be captured in a CUDA graph, with its t in it: reset() compiles it before. Under
    NUMBA_ENABLE_CUDASIM=1 the same kernels run, slowly, on tensors of the CPU.
    Raises ImportError without numba-cuda, RuntimeError without a GPU.
    """

    def __init__(
        self,
        ir: EnvIR,
        num_envs: int,
        params: ParamValues | None = None,
        device: torch.device | str = "cuda",
        block: int | None = None,
        first_env: int = 0,
    ) -> None:
        numba_cuda()
        self._simulated = simulated()
        if not self._simulated and not torch.cuda.is_available():
            raise RuntimeError('backend="cuda" needs an NVIDIA GPU that torch can use: use backend="cpu"')
        device = torch.device("cpu" if self._simulated else device)
        float_params, integer_params, per_env = pack_params(ir, params or {}, num_envs)
        float_rows, integer_rows = (count * num_envs for count in pack_rows(ir))
        tail = torch.tensor([0, first_env], dtype=torch.int32)  # the seed, the first environment
        floats = torch.cat([torch.zeros(float_rows), torch.from_numpy(float_params).flatten()]).to(device)
        zeros = torch.zeros(integer_rows, dtype=torch.int32)
        integers = torch.cat([zeros, torch.from_numpy(integer_params).flatten(), tail]).to(device)
        self._own_arrays = {
            f.name: torch.zeros(*self._array_shape(f.shape, num_envs, ir), dtype=stored_dtype(f), device=device)  # type: ignore[arg-type]
            for f in ir.arrays
        }
        super().__init__(
            ir,
            num_envs,
            first_env,
            floats[:float_rows].view(-1, num_envs),
            integers[:integer_rows].view(-1, num_envs),
            {n: array if ir.entities else array.movedim(-1, 0) for n, array in self._own_arrays.items()},
        )
        self._packs, self._seed = (floats, integers), integers[-2]
        self._params, self._per_env = (floats[float_rows:], integers[integer_rows:-2]), per_env
        write = entity_cuda_module if ir.entities else cuda_module
        self._module = cache.load(f"{ir.name}_cuda", write(ir, per_env, self._simulated))
        self._pixel_module: ModuleType | None = None
        if ir.frames:
            text = cuda_pixel_module(ir, per_env, self._simulated)
            self._pixel_module = cache.load(f"{ir.name}Pixels_cuda", text)
            self._pixel_threads = num_envs * int(np.prod(ir.observation_space.shape[-2:]))
        self._default = min(DEFAULT_BLOCK, ir.entities) if ir.entities and self._simulated else DEFAULT_BLOCK
        self._block = self._default if block is None and self._simulated else block
        self._rollout: Rollout | None = None
        self._arguments: tuple[DeviceArray, ...] = ()
        self._pixel_arguments: tuple[DeviceArray, ...] = ()

    def set_params(self, params: ParamValues) -> None:
        """Other parameters, where the kernels read them: captured graphs, too."""
        packs = repacked(self.ir, params, self.num_envs, self._per_env)
        for known, values in zip(self._params, packs, strict=True):
            known.copy_(torch.from_numpy(values).flatten())

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Episode 0 of every environment; writes observation[0] and valid[0]."""
        self._bind(rollout)
        self._take_seed(seed)
        self._launch("reset", block=self._block or DEFAULT_BLOCK)
        if self._block is None:
            self._block = block_size.best(self._key(), lambda block: self._seconds(rollout, block))
            self._launch("reset")
        self._draw(-1)

    def step(self, rollout: Rollout, t: int) -> None:
        """Every environment from row t to row t + 1."""
        self._bind(rollout)
        self._launch("step", t)
        self._draw(t)

    def run(self, rollout: Rollout, first: int, last: int) -> None:
        """Rows `first` .. `last` by the actions in the rollout, in one launch (two per row for pixel
        observations); the first call compiles."""
        self._bind(rollout)
        if self._pixel_module is not None:
            super().run(rollout, first, last)
            return
        self._compile("run")
        self._launch("run", first, last)

    def run_random(self, rollout: Rollout, first: int, last: int, counter: int) -> None:
        """Rows `first` .. `last` by random actions (kernels.targets.random_actions), in one launch; the first call
        compiles. counter: steps taken before."""
        self._bind(rollout)
        if self._pixel_module is not None:
            super().run_random(rollout, first, last, counter)
            return
        self._compile("run_random")
        self._launch("run_random", first, last, counter)

    def load_state_dict(self, state: Mapping[str, Tensor | int]) -> None:
        """Resume from state_dict(). Raises ValueError where it belongs to other environments."""
        super().load_state_dict(state)
        self._take_seed(self.seed)

    def _take_seed(self, seed: int) -> None:
        self.seed = word(seed)
        self._seed.fill_(self.seed - (1 << 32) if self.seed >> 31 else self.seed)  # the same bits as an int32

    def _bind(self, rollout: Rollout) -> None:
        """Keep the columns of a rollout as Numba arrays, and compile for them: a step then only launches."""
        if rollout is self._rollout:
            return
        self.check(rollout)
        columns = [getattr(rollout, name) for name in COLUMNS]
        with on_device(self.device):
            self._arguments = tuple(array(x) for x in (*self._packs, *self._own_arrays.values(), *columns))
        # drawing needs only the columns observation and valid
        self._pixel_arguments = self._arguments[: len(self._arguments) - len(columns) + 2]
        self._rollout = rollout
        self._compile("reset", "step")

    def _compile(self, *kernels: str) -> None:
        """Compile kernels for the bound columns, unless that is done."""
        if self._simulated:
            return
        import numba

        types = tuple(argument._numba_type_ for argument in self._arguments)
        wanted = {kernel: (*types, *(numba.types.int64,) * NUMBERS[kernel]) for kernel in kernels}
        announcement = self.ir.announcement("for the GPU")
        with on_device(self.device), explained(self.ir, self._module):
            cache.compile_once(self._module, wanted, announcement)
            if self._pixel_module is not None:
                types = tuple(argument._numba_type_ for argument in self._pixel_arguments)
                cache.compile_once(self._pixel_module, {"draw": (*types, numba.types.int64)}, announcement)

    def _key(self) -> str:
        """Key of the fastest number of threads: all that it depends on."""
        return f"{torch.cuda.get_device_name(self.device)}, {self._module.__name__}, {self.num_envs} environments"

    def _seconds(self, rollout: Rollout, block: int) -> float:
        """Time of a step, measured on the GPU. The environments step on, into row 0."""
        for _ in range(WARM_UP):
            self._launch("step", 0, block=block)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(TIMED):
            self._launch("step", 0, block=block)
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / 1000 / TIMED

    def _draw(self, t: int) -> None:
        """Draw pixel observations of row t + 1."""
        if self._pixel_module is not None:
            launch(self._pixel_module.draw, self._pixel_threads, DEFAULT_BLOCK, self.device, *self._pixel_arguments, t)

    def _launch(self, kernel: str, *rest: int, block: int | None = None) -> None:
        threads = block or self._block or DEFAULT_BLOCK
        count = self.num_envs * threads if self.ir.entities else self.num_envs  # a block, or a thread, for each
        launch(getattr(self._module, kernel), count, threads, self.device, *self._arguments, *rest)

    @staticmethod
    def _array_shape(shape: tuple[int, ...], num_envs: int, ir: EnvIR) -> tuple[int, ...]:
        """Shape of an array field. Neighbouring threads, of environments or of entities, read neighbouring places."""
        return (num_envs, *shape) if ir.entities else (*shape, num_envs)
