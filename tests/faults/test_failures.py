"""From exceptions and wait statuses to plain reasons, without processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from autoopt.errors import EnvironmentLacks, TrialFailed, WorkloadError
from autoopt.trial.failures import LONGEST_REASON, ended, failure_of, hung

GIB = 2**30


def caught(raiser: Callable[[], object]) -> BaseException:
    try:
        raiser()
    except BaseException as error:
        return error
    raise AssertionError


def raised(error: BaseException) -> BaseException:
    def raise_it() -> None:
        raise error

    return caught(raise_it)


def judged(error: BaseException, oom_kills: int | None = 0) -> tuple[str, str]:
    failure = failure_of(raised(error), "step", oom_kills)
    return failure.failure, failure.message


KILLED = "DataLoader worker (pid 123) is killed by signal: Killed. "
ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free."
IN_WORKER = (
    "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "data.py", line 3, in __getitem__\n    raise ValueError("bad file")\nValueError: bad file\n'
)


@pytest.mark.parametrize(
    ("error", "oom_kills", "kind", "message"),
    [
        (RuntimeError(KILLED), 1, "out_of_memory", "the kernel killed data loader worker 123 for lack of memory"),
        (RuntimeError(KILLED), 0, "crashed", "data loader worker 123 was killed by a signal: Killed"),
        (RuntimeError(KILLED), None, "crashed", "data loader worker 123 was killed by a signal: Killed"),
        (torch.OutOfMemoryError(FULL + ADVICE), 0, "out_of_memory", FULL),
        (ValueError(IN_WORKER), 0, "error", "ValueError: bad file (in a data loader worker)"),
    ],
    ids=["killed for memory", "killed", "killed, as far as is known", "without torch's advice", "in a worker's words"],
)
def test_a_failure_is_told_in_plain_words(error: BaseException, oom_kills: int | None, kind: str, message: str) -> None:
    assert judged(error, oom_kills) == (kind, message)


def test_the_first_worker_to_die_is_the_one_to_blame() -> None:
    def raiser() -> None:
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
        except RuntimeError as error:
            raise RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly") from error

    failure = failure_of(caught(raiser), "train")
    assert (failure.failure, failure.message) == (
        "crashed",
        "data loader worker 7 was killed by a signal: Segmentation fault",
    )


SAID: dict[str, list[str]] = {
    "out_of_memory": [
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "CUDA error: out of memory\nCUDA kernel errors might",
        "HIP out of memory. Tried to allocate 2.00 GiB.",
        "MPS backend out of memory (MPS allocated: 9 GiB)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory",
        "[Errno 12] Cannot allocate memory",
        "unable to write to file </torch_1_2_3>: No space left on device (28)",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseCreate(handle)`",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "NCCL error: unhandled cuda error, Failed to CUDA calloc async 608 bytes",
        "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
        "CUDA driver error: out of memory",
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":995',
        "NPU out of memory. Tried to allocate 2.00 GiB",
        "[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes",
        "std::bad_alloc",
    ],
    "crashed": [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "No CUDA GPUs: no CUDA-capable device is detected",
    ],
    "timeout": [
        "DataLoader timed out after 5 seconds",
    ],
    "error": [
        "the model forgot what it had in memory",
        "shape '[2, 3]' is invalid for input of size 5",
    ],
}
"""What torch and the libraries below it say, by what that means."""


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for kind, texts in SAID.items() for text in texts])
def test_what_torch_says_is_understood(text: str, kind: str) -> None:
    assert judged(RuntimeError(text))[0] == kind


@pytest.mark.parametrize(
    ("kind", "message", "detail", "alone"),
    [
        ("crashed", "the device failed: CUDA error: all CUDA-capable devices are busy or unavailable", "", True),
        ("error", "build() failed", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", True),
        ("out_of_memory", "CUDA out of memory.", "", True),
        ("crashed", "the device failed: CUDA error: device-side assert triggered", "", False),
        ("crashed", "No CUDA GPUs: no CUDA-capable device is detected", "", False),
    ],
)
def test_a_device_that_another_process_has_may_do_for_one_alone(
    kind: str, message: str, detail: str, alone: bool
) -> None:
    assert TrialFailed(kind, message, detail=detail).for_want_of_room is alone


def test_a_reason_is_one_line_of_bounded_length() -> None:
    kind, message = judged(ValueError("a\n\tb " + "x" * 10_000))
    assert kind == "error"
    assert "\n" not in message
    assert len(message) <= LONGEST_REASON


def test_where_it_happened_is_the_users_line() -> None:
    def in_user_code() -> None:
        raise ValueError("here")

    line = in_user_code.__code__.co_firstlineno + 1
    failure = failure_of(caught(in_user_code), "step")
    assert failure.message == f"ValueError: here (test_failures.py:{line})"
    assert "in_user_code" in failure.detail


def test_frames_of_autoopt_above_the_users_are_left_out() -> None:
    from autoopt.storage.interrupts import Interrupts

    def on_first() -> None:
        raise ValueError("in the user's code")

    error = caught(lambda: Interrupts(on_first)._handle(signal.SIGINT, None))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert error.__traceback__.tb_frame.f_code.co_name == "_handle"
    detail = failure_of(error, "step").detail
    assert "on_first" in detail
    assert "_handle" not in detail


def test_a_verdict_passes_through_and_other_errors_keep_message_and_exit_code() -> None:
    failure = failure_of(TrialFailed("not_finite", "NaN at 3", where="step"), "train")
    assert (failure.failure, failure.message, failure.where) == ("not_finite", "NaN at 3", "step")
    for error in (
        WorkloadError("wrong", hint="do this", detail="x"),
        EnvironmentLacks("no such device", hint="there is: cpu"),
    ):
        failure = failure_of(error, "build")
        assert (failure.message, failure.hint, failure.exit_code) == (error.message, error.hint, error.exit_code)


@pytest.mark.parametrize(
    ("status", "oom_kills", "kind", "said"),
    [
        (signal.SIGKILL, 1, "out_of_memory", "the kernel killed the process for lack of memory, which held 3.0 GiB"),
        (signal.SIGKILL, 0, "crashed", "signal 9"),
        (signal.SIGKILL, None, "crashed", "signal 9"),
        (signal.SIGSEGV, 1, "crashed", "signal 11"),  # whatever else was killed
        (0, 0, "crashed", "its main thread ended"),
        (7 << 8, 0, "crashed", "exit code 7"),
        (255 << 8, 0, "crashed", "exit code 255"),
        (None, None, "crashed", "the process is gone"),
    ],
)
def test_how_a_process_without_an_answer_ended(status: int | None, oom_kills: int | None, kind: str, said: str) -> None:
    failure = ended(status, oom_kills, 3 * GIB, "step")
    assert failure.kind == kind
    assert said in failure.message


@pytest.mark.parametrize("number", [*range(1, 65)])
def test_every_signal_has_its_name(number: int) -> None:
    assert ended(number, 0, None, "step").message.startswith(f"signal {number} (")


def test_a_loader_that_waits_because_shared_memory_is_full_is_out_of_memory() -> None:
    said = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)"
    log = f"Traceback ...\n{said}\n"
    failure = hung("no answer within 60 s (train)", log + "Current thread 0x1 (most recent call first):\n", "train")
    assert failure.kind == "out_of_memory"
    assert "/dev/shm is full" in failure.message
    assert hung("no answer within 60 s (train)", "Epoch 1\n", "train").kind == "timeout"


@pytest.mark.parametrize(
    "text",
    [
        "Torch not compiled with CUDA enabled",
        "PyTorch is not linked with support for cuda devices",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "No CUDA GPUs are available",
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?",
        "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ],
)
def test_a_device_that_is_not_here_is_what_the_environment_lacks(text: str) -> None:
    failure = failure_of(RuntimeError(text), "start")
    assert failure.exit_code == 4
    assert failure.message.startswith("the code asks for a device that is not here: RuntimeError: ")
    assert failure.hint.startswith("there is: cpu")


@pytest.mark.parametrize("full", [True, False])
def test_a_convolution_without_an_engine_is_out_of_memory_on_a_full_device_alone(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoopt.trial.failures.device_full", lambda: full)
    found = judged(RuntimeError("GET was unable to find an engine to execute this computation"))[0]
    assert found == ("out_of_memory" if full else "error")


def test_an_exception_that_answers_with_others_is_a_failure_all_the_same() -> None:
    class Odd(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise KeyError("text")

        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise KeyError("cause")

    failure = failure_of(Odd(), "step")
    assert (failure.failure, failure.where) == ("error", "step")
    assert failure.message == "Odd, which raises KeyError when it is printed"


def test_an_exception_that_is_a_frozen_dataclass_is_told_with_its_traceback() -> None:
    @dataclass(frozen=True)
    class NoSuchFile(Exception):  # noqa: N818
        name: str

    try:
        raise NoSuchFile("cats.zip")
    except NoSuchFile as error:
        failure = failure_of(error, "step")
    assert failure.message.startswith("NoSuchFile")
    assert 'raise NoSuchFile("cats.zip")' in failure.detail
