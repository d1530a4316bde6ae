"""From exceptions and wait statuses to plain reasons, without processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

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


def test_a_worker_that_the_kernel_killed_for_memory_is_out_of_memory() -> None:
    assert judged(RuntimeError(KILLED), 1) == (
        "out_of_memory",
        "the kernel killed data loader worker 123 for lack of memory",
    )
    for no_evidence in (0, None):
        assert judged(RuntimeError(KILLED), no_evidence)[0] == "crashed"


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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("CUDA error: out of memory\nCUDA kernel errors might", "out_of_memory"),
        ("HIP out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        ("MPS backend out of memory (MPS allocated: 9 GiB)", "out_of_memory"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out_of_memory"),
        ("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", "out_of_memory"),
        ("[Errno 12] Cannot allocate memory", "out_of_memory"),
        ("unable to write to file </torch_1_2_3>: No space left on device (28)", "out_of_memory"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "out_of_memory"),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "out_of_memory"),
        ("CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseCreate(handle)`", "out_of_memory"),
        ("cuFFT error: CUFFT_ALLOC_FAILED", "out_of_memory"),
        ("NCCL error: unhandled cuda error, Failed to CUDA calloc async 608 bytes", "out_of_memory"),
        ("ncclUnhandledCudaError: Cuda failure 2 'out of memory'", "out_of_memory"),
        ("CUDA driver error: out of memory", "out_of_memory"),
        (
            'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":995',
            "out_of_memory",
        ),
        ("NPU out of memory. Tried to allocate 2.00 GiB", "out_of_memory"),
        (
            "[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes",
            "out_of_memory",
        ),
        ("std::bad_alloc", "out_of_memory"),
        ("CUDA error: device-side assert triggered", "crashed"),
        ("CUDA error: an illegal memory access was encountered", "crashed"),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "crashed"),
        ("No CUDA GPUs: no CUDA-capable device is detected", "crashed"),
        ("DataLoader timed out after 5 seconds", "timeout"),
        ("the model forgot what it had in memory", "error"),
        ("shape '[2, 3]' is invalid for input of size 5", "error"),
    ],
)
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


def test_torchs_advice_on_settings_is_left_out_of_the_reason() -> None:
    import torch

    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free. If reserved but unallocated memory is "
        "large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
    message = judged(torch.OutOfMemoryError(text))[1]
    assert message == "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free."


def test_an_error_of_a_worker_is_told_in_the_workers_words() -> None:
    text = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "data.py", line 3, in __getitem__\n    raise ValueError("bad file")\nValueError: bad file\n'
    )
    assert judged(ValueError(text)) == ("error", "ValueError: bad file (in a data loader worker)")


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
    assert error.__traceback__ is not None
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
