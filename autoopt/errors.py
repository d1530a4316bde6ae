"""The tree of errors; each leaf knows its exit code.

::

    AutooptError                 1   an error of autoopt's own
    ├── UsageError               2   a bad option, value or key
    │   └── DocumentError        2   a document that cannot be read, or of a newer schema
    ├── WorkloadError            3   the user's code cannot be imported or built, or its baseline fails
    ├── EnvironmentLacks         4   no such device, an extra that is not installed
    │   └── NodeLost             4   a machine of a cluster went away; what it measured is measured again
    ├── TrialFailed              -   a trial ended badly: a verdict, not an error of the run
    └── Interrupted            130   the user stopped the run

Every message says what is wrong, which value was given, and what to do.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable

_DEVICE_TAKEN = re.compile(r"CUDA-capable device\S* \S+ busy or unavailable", re.I)
"""The words of ``cudaErrorDevicesUnavailable`` of several versions: a device in exclusive mode has its one process."""


class AutooptError(Exception):
    """Base of every error that autoopt raises on purpose.

    Args:
        message: one line: what is wrong and which value was given.
        hint: what to do about it, shown on a line of its own.
        detail: longer text, such as the user's own traceback or a working example.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return "\n".join(part for part in (self.message, self.hint, self.detail) if part)


class UsageError(AutooptError):
    """A bad option, value or key."""

    exit_code = 2


class DocumentError(UsageError):
    """A saved document is damaged, of a newer schema, or not what it should be."""


class WorkloadError(AutooptError):
    """The user's code could not be imported or built, or its baseline fails."""

    exit_code = 3


class EnvironmentLacks(AutooptError):  # noqa: N818 - reads as the sentence that the user gets
    """This machine or installation lacks what was asked for."""

    exit_code = 4


class NodeLost(EnvironmentLacks):
    """A machine of a cluster went away: no verdict on what was measured there."""


class Interrupted(AutooptError):  # noqa: N818
    """The user asked to stop at once."""

    exit_code = 130


class TrialFailed(AutooptError):  # noqa: N818
    """A trial ended without a result.

    Args:
        kind: ``out_of_memory``, ``timeout``, ``crashed``, ``error`` or ``not_finite``.
        message: the plain reason that the report shows after the kind.
        detail: the traceback or the tail of the trial's log.
        where: ``build``, ``setup``, ``step``, ``evaluate`` ...: what it was doing.

    Attributes:
        side: of two that are compared: 1 the candidate, which it is where nobody says so; 0 what it is compared with.
    """

    side = 1
    KINDS = ("out_of_memory", "timeout", "crashed", "error", "not_finite")

    def __init__(self, kind: str, message: str, *, detail: str = "", where: str = "") -> None:
        super().__init__(message, detail=detail)
        if kind not in self.KINDS:
            raise ValueError(f"unknown kind of failure {kind!r}; one of {', '.join(self.KINDS)}")
        self.kind = kind
        self.where = where

    @property
    def reason(self) -> str:
        """The trial's ``reason`` as result.json holds it, such as ``crashed: signal 11``."""
        return f"{self.kind}: {self.message}"

    @property
    def for_want_of_room(self) -> bool:
        """Whether it may run where no other process is alive: memory was short, or the device takes one at a time."""
        return self.kind == "out_of_memory" or _DEVICE_TAKEN.search(f"{self.message}\n{self.detail}") is not None


class ScriptEnded(TrialFailed):
    """A script came to its end before it had trained as far as it was asked to."""

    WHERE = "script ended"

    def __init__(self, steps: int) -> None:
        super().__init__(
            "error",
            f"the script ended after {steps} training steps, before they could be measured: give it more to train, "
            "such as more epochs behind --",
            where=self.WHERE,
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint: ``did you mean x?``, or all the names there are where none is near."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    # "prepare" and "preparation" share a beginning rather than most of their letters.
    near = near or [other for other in names if len(name) > 3 and other.startswith(name[:4])]
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"


EXTRAS = {
    "accelerate": ("accelerate", "yaml"),
    "card": ("PIL",),
    "examples": ("skimage", "sklearn"),
    "lightning": ("lightning",),
    "mcp": ("mcp",),
    "mlflow": ("mlflow",),
    "model": ("peft", "torch_pruning"),
    "profilers": ("line_profiler", "pynvml"),
    "ray": ("ray",),
    "serving": ("onnx", "onnxruntime", "onnxscript", "torchao"),
    "tensorboard": ("tensorboard",),
    "transformers": ("transformers",),
    "tune": ("optuna",),
    "wandb": ("wandb",),
}
"""Packages that are optional, by the extra that brings them."""


def not_installed(package: str, what: str = "") -> EnvironmentLacks:
    """The error for a package that is not there, with the extra that brings it.

    Args:
        what: begins the message, such as ``--tune: ``.
    """
    extra = next((f"torch-autoopt[{extra}]" for extra, packages in EXTRAS.items() if package in packages), package)
    return EnvironmentLacks(f"{what}{package} is not installed", hint=f"pip install '{extra}'")


def require(*packages: str, what: str = "") -> None:
    """Checks that optional packages are there, without importing them.

    Raises:
        EnvironmentLacks: see :func:`not_installed`.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise not_installed(package, what)
