"""Failures of a trial, explained: from an exception, or from the way in which its process ended, to a plain reason."""

from __future__ import annotations

import re
import signal
import sys
import traceback
from pathlib import Path

from autoopt.benchmark.libraries import is_users
from autoopt.errors import AutooptError, EnvironmentLacks, TrialFailed, UsageError, WorkloadError
from autoopt.loading.importing import chain, user_traceback
from autoopt.records.protocol import Failure

LONGEST_REASON = 300
"""Characters of a reason: it stands in one line of the report."""
_DEVICE_MEMORY = re.compile(
    r"(CUDA|HIP|XPU|MPS|NPU)\b.*out of memory|cuda(Error)?MemoryAllocation|"
    r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|CURAND_STATUS_ALLOCATION_FAILED|"
    # libraries that find no room for a handle or a workspace of their own say so in other words
    r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|"
    r"CUSPARSE_STATUS_INSUFFICIENT_RESOURCES|Failed to CUDA (c|m)alloc|Error out of memory at line|"
    # on a part of a device (MIG) torch fails as it collects who has the memory that it did not get
    r"NVML_SUCCESS == r",
    re.I,
)
_NO_ENGINE = re.compile(r"unable to find an engine to execute this computation", re.I)
"""Of a convolution; for lack of memory where the device is full, else since there is none for it."""
_HOST_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|not enough memory: you tried to allocate|std::bad_alloc", re.I
)
_SHARED_MEMORY = re.compile(
    r"out of shared memory|insufficient shared memory|shared memory\(shm\)|"
    r"(torch_shm_manager|/torch_\S+).*No space left on device",
    re.I | re.S,
)
_DEVICE_LOST = re.compile(
    r"(CUDA|HIP|ROCm) error: (?!out of memory)|CUDNN_STATUS_(EXECUTION|INTERNAL)|CUBLAS_STATUS_(EXECUTION|INTERNAL)|"
    r"fallen off the bus|no CUDA-capable device",
    re.I,
)
_NO_DEVICE = re.compile(
    r"not compiled with CUDA enabled|not linked with support for \w+ devices|Found no NVIDIA driver|"
    r"No CUDA GPUs are available|torch\.cuda\.is_available\(\) is False|invalid device ordinal|"
    r"Invalid device id|no GPUs found|Cannot access accelerator device when none is available",
    re.I,
)
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) is killed by signal: ([^.]*)")
_WORKER_GONE = re.compile(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) exited unexpectedly(?: with (exit code \d+))?")
_WORKER_SLOW = re.compile(r"DataLoader timed out after (\S+) seconds")
_FROM_WORKER = re.compile(r"Caught \w+ in (DataLoader worker process \d+|pin memory thread\S*.*?)\.\n")


def failure_of(error: BaseException, where: str, oom_kills: int | None = None) -> Failure:
    """The failure that an exception in a trial amounts to; never raises itself, since nobody would answer the parent.

    Args:
        oom_kills: how many processes the kernel has killed for lack of memory since the trial started.
    """
    try:
        if isinstance(error, TrialFailed):
            return Failure(failure=error.kind, message=error.message, where=error.where or where, detail=error.detail)
        if isinstance(error, AutooptError):
            return Failure(
                failure="error",
                message=error.message,
                where=where,
                hint=error.hint,
                detail=error.detail or ("" if error.__cause__ is None else user_traceback(error.__cause__)),
                exit_code=error.exit_code,
            )
        if _NO_DEVICE.search(_text(error)):
            from autoopt.benchmark.device import available_devices  # torch is there: it is what has failed

            here = ", ".join(available_devices())
            return Failure(
                failure="error",
                message=_one_line(f"the code asks for a device that is not here: {_named(error)}"),
                where=where,
                hint=f"there is: {here}; train on a machine with that device, or on one that is here",
                detail=user_traceback(error),
                exit_code=EnvironmentLacks.exit_code,
            )
        kind, message = _judge(error, oom_kills)
        return Failure(failure=kind, message=_one_line(message), where=where, detail=user_traceback(error))
    except Exception as broken:  # an exception of the user's own class may answer with another one to anything
        named = f"{type(error).__name__}, which raises {type(broken).__name__} when it is printed"
        return Failure(failure="error", message=_one_line(named), where=where)


def _judge(error: BaseException, oom_kills: int | None) -> tuple[str, str]:
    text = _text(error)
    if _WORKER_GONE.search(text):  # how the first of them ended stands further up the chain
        text = next((_text(link) for link in chain(error) if _WORKER_KILLED.search(_text(link))), text)
    no_room = _NO_ENGINE.search(text) is not None and device_full()
    if type(error).__name__ == "OutOfMemoryError" or _DEVICE_MEMORY.search(text) or no_room:
        words = text.strip().partition(" If reserved but unallocated")[0]  # torch's advice on settings
        return "out_of_memory", words.partition("\n")[0].strip() or "the device has no memory left"
    if isinstance(error, MemoryError) or _HOST_MEMORY.search(text):
        said = " in a data loader worker" if _FROM_WORKER.match(text) else _said(text)
        return "out_of_memory", f"the host has no memory left{said}{_at(error)}"
    if _SHARED_MEMORY.search(text):
        return "out_of_memory", f"/dev/shm is full{_said(text)}"
    if found := _WORKER_KILLED.search(text):
        how = found[2].strip()
        if how.startswith("Killed") and oom_kills:
            return "out_of_memory", f"the kernel killed data loader worker {found[1]} for lack of memory"
        return "crashed", f"data loader worker {found[1]} was killed by a signal: {how}"
    if found := _WORKER_GONE.search(text):
        return "crashed", f"data loader worker {found[1]} ended without a word{f' ({found[2]})' if found[2] else ''}"
    if found := _WORKER_SLOW.search(text):
        return "timeout", f"the data loader gave no batch within {found[1]} s, the limit that the workload sets"
    if _DEVICE_LOST.search(text):
        return "crashed", f"the device failed: {_first_line(text)}"
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return "error", f"the code called sys.exit({code}){_at(error)}"
    return "error", _named(error)


def error_of(failure: Failure) -> AutooptError:
    """The error that another process has reported as a failure."""
    if failure.exit_code is None:
        return TrialFailed(failure.failure, failure.message, where=failure.where, detail=failure.detail)
    kinds: dict[int, type[AutooptError]] = {2: UsageError, 3: WorkloadError, 4: EnvironmentLacks}
    return kinds.get(failure.exit_code, AutooptError)(failure.message, hint=failure.hint, detail=failure.detail)


def device_full() -> bool:
    """Whether nearly all memory of the CUDA device that this process uses is taken."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    free, total = torch.cuda.mem_get_info()
    return bool(free < 0.05 * total)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's own __str__
        return ""


def _named(error: BaseException) -> str:
    """``ValueError: text (file:line)``; of an error in a loader worker, the worker's own line and not the wrapping."""
    text = _text(error)
    if _FROM_WORKER.match(text):
        lines = [line for line in text.rstrip().splitlines() if line and not line.startswith(" ")]
        return f"{lines[-1]} (in a data loader worker)"
    first = _first_line(text)
    return (f"{type(error).__name__}: {first}" if first else type(error).__name__) + _at(error)


def _said(text: str) -> str:
    first = _first_line(text)
    return f": {first}" if first else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."


def _at(error: BaseException) -> str:
    """Where in the user's own code it happened: `` (train.py:12)``; empty where none of it is on the call stack."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users(frame.f_code.co_filename):
            place = f" ({Path(frame.f_code.co_filename).name}:{line})"
    return place


def hung(message: str, log: str, where: str) -> TrialFailed:
    """The failure of a trial that gave no answer in time.

    Loader workers that find /dev/shm full say so on standard error alone, and the loader waits for ever.

    Args:
        log: what the trial has printed.
    """
    full = next((line for line in reversed(log.splitlines()) if _SHARED_MEMORY.search(line)), None)
    if full is None:
        return TrialFailed("timeout", message, where=where)
    said = _one_line(f"/dev/shm is full, and the data loader waits for ever: {full.strip()}")
    return TrialFailed("out_of_memory", said, where=where)


def ended(status: int | None, oom_kills: int | None, peak_rss: int | None, where: str) -> TrialFailed:
    """The failure of a trial whose process is gone without an answer.

    Args:
        status: its wait status; None where it is not known.
        oom_kills: processes that the kernel killed for lack of memory while it ran.
        peak_rss: its peak resident memory, bytes.
    """
    if status is None:
        return TrialFailed("crashed", "the process is gone", where=where)
    number, code = status & 0x7F, status >> 8
    if number == signal.SIGKILL and oom_kills:
        held = f", which held {peak_rss / 2**30:.1f} GiB" if peak_rss else ""
        return TrialFailed("out_of_memory", f"the kernel killed the process for lack of memory{held}", where=where)
    if number:
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        words = (signal.strsignal(number) or "").lower()
        if name == "SIGBUS":
            words += ", often for lack of space in /dev/shm"
        return TrialFailed("crashed", f"signal {number} ({name}{', ' + words if words else ''})", where=where)
    how = "its main thread ended" if code == 0 else f"the process ended with exit code {code}"
    return TrialFailed("crashed", f"{how} without an answer", where=where)
