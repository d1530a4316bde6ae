"""The device, and all that differs between devices: synchronizing, timing, memory."""

from __future__ import annotations

import gc
import mmap
import weakref
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from autoopt.benchmark.contents import tensor_leaves
from autoopt.benchmark.cputime import descendants, memory
from autoopt.errors import EnvironmentLacks


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are made under it, or shown to it, until they are freed.

    It stands for a device's memory where there is none: activations that autograd saves, gradients and
    optimizer state are all storages, so that a search for the largest batch meets its limit as on a GPU.

    Args:
        limit: bytes; the operator that goes beyond raises ``torch.OutOfMemoryError``.

    Attributes:
        counting: whether storages that are made now are counted; what stands for the host's memory is not.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit, self.counting = limit, True
        self.bytes = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.counting:
            self.add(result)
        return result

    def add(self, tensors: Any) -> None:
        """Counts tensors that are alive already, such as parameters.

        Raises:
            torch.OutOfMemoryError: the limit is passed.
        """
        for leaf in tensor_leaves(tensors):
            if leaf.layout == torch.strided:
                storage = leaf.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key in self._seen and self._seen[key]() is storage:
                    continue

                def gone(_: Any, key: int = key, size: int = size) -> None:
                    self.bytes -= size
                    self._seen.pop(key, None)

                self._seen[key] = weakref.ref(storage, gone)
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
        if self.bytes > self.limit:
            raise torch.OutOfMemoryError(
                f"out of memory: {self.bytes / 2**20:.1f} MiB of tensors are alive, "
                f"the limit is {self.limit / 2**20:.1f} MiB"
            )


def available_devices() -> list[str]:
    """Every device that torch can train on here, such as ``["cpu", "cuda:0"]``."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def resolve_device(name: str) -> torch.device:
    """The device of a name: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    Raises:
        EnvironmentLacks: it is not there; says which are.
    """
    there = available_devices()
    if name == "auto":
        return torch.device("cuda:0" if "cuda:0" in there else there[-1])
    wanted = "cuda:0" if name == "cuda" else name
    if wanted in there:
        return torch.device(wanted)
    hint = f"there is: {', '.join(there)}"
    if name.startswith("cuda") and torch.version.cuda is None and torch.version.hip is None:
        hint += f" (torch {torch.__version__} is built without CUDA)"
    raise EnvironmentLacks(f"there is no device {name!r} on this machine", hint=hint)


class Device:
    """A device; the CPU here, see :class:`CudaDevice` for the other.

    Args:
        memory_limit_bytes: a limit on the tensors that are alive, enforced by counting them. For trying
            on the CPU what happens on a device whose memory ends.
    """

    timed_by_events = False

    def __init__(self, device: torch.device, memory_limit_bytes: int | None = None) -> None:
        self.torch = device
        self.kind = device.type
        self.limit = memory_limit_bytes
        self.tensors = TensorMemory(memory_limit_bytes) if memory_limit_bytes is not None else None

    def __str__(self) -> str:
        return str(self.torch)

    def synchronize(self) -> None:
        if self.kind == "mps":
            torch.mps.synchronize()

    def now(self) -> float:
        """Seconds, with the device's work done."""
        self.synchronize()
        return perf_counter()

    def watched(self) -> AbstractContextManager[Any]:
        """Counts tensors where a limit is set."""
        return self.tensors or nullcontext()

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy that takes none of the device's memory."""
        if self.tensors is None:
            return tensor.cpu()
        self.tensors.counting = False
        try:
            return tensor.clone()
        finally:
            self.tensors.counting = True

    def copied(self, state: Any) -> Any:
        """A copy of a state's tensors on the device; on the host where the device has no room for two of it."""
        free = self.free_bytes()
        full = free is not None and free < 2 * sum(tensor.nbytes for tensor in tensor_leaves(state))

        def copy(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return deepcopy(leaf)
            return self.to_host(leaf.detach()) if full else leaf.detach().to(self.torch, copy=True)

        found = tree_map(copy, state)
        if hasattr(state, "_metadata"):  # versions of modules, which they are loaded by
            found._metadata = state._metadata
        return found

    def free_bytes(self) -> int | None:
        """Memory of the device that no step so far has taken; None on a CPU without a limit."""
        return self.tensors.limit - self.tensors.peak if self.tensors is not None else None

    def reset_peak(self) -> None:
        if self.tensors is not None:
            self.tensors.peak = self.tensors.bytes
        reset_host_peak()

    def peak_bytes(self) -> int | None:
        """Most bytes that tensors held on the device since ``reset_peak``; the process's own peak on the CPU."""
        if self.tensors is not None:
            return self.tensors.peak
        return host_peak_bytes() if self.kind == "cpu" else None

    def allocated_bytes(self) -> int | None:
        """The part of the peak that tensors held at once; the rest is cache and fragmentation of the allocator."""
        return self.peak_bytes() if self.tensors is not None else None

    def limit_bytes(self) -> int | None:
        """Memory that tensors may take."""
        if self.tensors is not None:
            return self.tensors.limit
        return memory()[0] if self.kind == "cpu" else None

    def memory_used(self) -> float | None:
        """The share of the memory that was taken at the most since ``reset_peak``; None on a CPU without a limit."""
        return self.tensors.peak / self.tensors.limit if self.tensors is not None else None

    def allocation_retries(self) -> int:
        """How often the allocator had to free its cache and try again, since the process started."""
        return 0

    def empty_cache(self) -> None:
        gc.collect()


class CudaDevice(Device):
    """A CUDA device. Stage times come from events on its stream."""

    timed_by_events = True

    def __init__(self, device: torch.device, memory_limit_bytes: int | None = None) -> None:
        super().__init__(device)
        torch.cuda.set_device(device)
        if memory_limit_bytes is not None:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(memory_limit_bytes / total, 1.0), device)
        self.limit = memory_limit_bytes  # which the allocator keeps: tensors are not counted

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch)

    def event(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch)
        reset_host_peak()

    def peak_bytes(self) -> int | None:
        """The allocator's reserved peak: what tensors held, with what is kept of earlier ones and between them."""
        return torch.cuda.max_memory_reserved(self.torch)

    def allocated_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.torch)

    def limit_bytes(self) -> int | None:
        return self.limit or torch.cuda.get_device_properties(self.torch).total_memory

    def memory_used(self) -> float | None:
        """As much of the limit as the allocator had reserved, or what of the device is taken, by whomever."""
        free, total = torch.cuda.mem_get_info(self.torch)
        own = torch.cuda.max_memory_reserved(self.torch) / (self.limit or total)
        return max(own, 1.0 - free / total)

    def free_bytes(self) -> int | None:
        free, total = torch.cuda.mem_get_info(self.torch)
        held = torch.cuda.memory_reserved(self.torch)
        return min(free, (self.limit or total) - held)

    def allocation_retries(self) -> int:
        return int(torch.cuda.memory_stats(self.torch).get("num_alloc_retries", 0))

    def empty_cache(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


def open_device(name: str, memory_limit_bytes: int | None = None) -> Device:
    """The device of a name.

    Raises:
        EnvironmentLacks: it is not there.
    """
    device = resolve_device(name)
    kind = CudaDevice if device.type == "cuda" else Device
    return kind(device, memory_limit_bytes)


def reset_host_peak() -> None:
    """Starts a new measurement of this process's peak resident memory, where the kernel lets us."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def host_peak_bytes() -> int | None:
    """Peak resident memory of this process and what its children hold now (shared pages counted once), bytes."""
    own = status_bytes("VmHWM")
    if own is None:
        return None
    return own + sum(private_bytes(pid) for pid in descendants())


def private_bytes(pid: int) -> int:
    """Resident memory of a process that it shares with no other; 0 of one that is gone."""
    with suppress(OSError), open(f"/proc/{pid}/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * mmap.PAGESIZE
    return 0


def status_bytes(key: str) -> int | None:
    """A size in the status of this process, such as ``VmRSS``; None where the kernel does not name it."""
    with suppress(OSError, StopIteration), open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(key))
        return int(line.split()[1]) * 1024
    return None
