"""Kernels in PTX, loaded and launched by the GPU's driver, on torch's context and stream. Needs nothing besides the
driver."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

_IMAGE_LOG, _LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_SHARED_OF_BLOCK = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DEFAULT_SHARED = 48 * 1024  # bytes that a kernel may have without asking


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def architecture(device: torch.device) -> str:
    """The architecture that PTX is made for: "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def shared_memory(device: torch.device) -> int:
    """Bytes that a block's own memory can have."""
    torch.cuda.init()  # which makes the driver ready
    found, own = ctypes.c_int(), ctypes.c_int()
    number = torch.cuda.current_device() if device.index is None else device.index
    _checked(_driver().cuDeviceGet(ctypes.byref(own), number), "find the device")
    _checked(_driver().cuDeviceGetAttribute(ctypes.byref(found), _SHARED_OF_BLOCK, own), "ask for its memory")
    return found.value


def _checked(result: int, what: str) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        raise RuntimeError(f"CUDA could not {what}: {(text.value or b'error ' + str(result).encode()).decode()}")


class Kernels:
    """The kernels of a module, on a device.

    Raises RuntimeError, with what the driver says of it, where it cannot be loaded.
    """

    def __init__(self, ptx: bytes, device: torch.device) -> None:
        self.device = device
        self._module = ctypes.c_void_p()
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._resident: dict[str, int] = {}
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(_IMAGE_LOG, _LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # torch's context is there
            torch.empty(1, device=device)
            result = _driver().cuModuleLoadDataEx(ctypes.byref(self._module), ptx + b"\0", 2, options, values)
        _checked(result, f"load a kernel ({log.value.decode(errors='replace').strip()[:500]})")

    def launch(self, name: str, blocks: int, threads: int, shared: int, address: int, together: bool = False) -> None:
        """Launch a kernel with the argument at a host's address, on torch's current stream. It is copied at once.
        shared: bytes of a block's own memory. together: as many blocks, at most, as the GPU runs at once, which may
        wait for each other."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._find(name, shared)
        arguments = (ctypes.c_void_p * 1)(address)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        if together:
            blocks = min(blocks, self._at_once(name, function, threads, shared))
            sizes = blocks, 1, 1, threads, 1, 1, shared
            result = _driver().cuLaunchCooperativeKernel(function, *sizes, stream, arguments)
        else:
            result = _driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, arguments, None)
        if result:
            _checked(result, f"launch {name}")

    def _at_once(self, name: str, function: ctypes.c_void_p, threads: int, shared: int) -> int:
        """Blocks of a kernel that the GPU runs at once."""
        if name not in self._resident:
            found = ctypes.c_int()
            ask = _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
            _checked(ask(ctypes.byref(found), function, threads, ctypes.c_size_t(shared)), f"ask how much {name} takes")
            processors = torch.cuda.get_device_properties(self.device).multi_processor_count
            self._resident[name] = found.value * processors
        return self._resident[name]

    def _find(self, name: str, shared: int) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        result = _driver().cuModuleGetFunction(ctypes.byref(function), self._module, name.encode())
        _checked(result, f"find {name}")
        if shared > DEFAULT_SHARED:
            _checked(_driver().cuFuncSetAttribute(function, _MOST_SHARED, shared), f"give {name} {shared:,} bytes")
        return function
