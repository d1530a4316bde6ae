"""A host: starts trials on its machine and passes on what they are asked; Ray makes an actor of it."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError, EnvironmentLacks
from autoopt.records import JsonDict
from autoopt.trial.child import LIVE
from autoopt.trial.parent import Launcher, Trial
from autoopt.trial.protocol import TrialSpec

THREADS = "OMP_NUM_THREADS"
"""Ray sets it to 1 in what it starts; a trial has it as the user's machine has it."""


class Host:
    """Trials of one machine, by number.

    Args:
        environment: variables that are as on the user's machine: None where they are not set there.
        live: what a trial makes of its spec; see ``Launcher``.
    """

    def __init__(self, environment: Mapping[str, str | None], live: str = LIVE) -> None:
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._folder = Path(tempfile.mkdtemp(prefix="autoopt-host-"))
        self._launcher = Launcher(compiler_cache=self._folder / "compiled", live=live)
        self._launcher.__enter__()
        self._trials: dict[int, Trial] = {}

    def kind(self) -> JsonDict:
        """Facts that must be alike for two measurements to be compared: device, driver, torch, processor."""
        import torch

        from autoopt.benchmark.environment import cpu_name, usable_cores

        cuda = torch.cuda.is_available()
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if cuda else None,
            "cuda": torch.version.cuda,
            "driver": _driver() if cuda else None,
            "cpu": cpu_name(),
            "cores": usable_cores(),
        }

    def sees(self, folder: str) -> bool:
        """Whether this machine has a folder, and may write to it."""
        return os.access(folder, os.W_OK | os.X_OK)

    def start(self, number: int, spec: JsonDict, timeout: float) -> JsonDict:
        """Starts a trial; see ``Launcher.start``. What failed is reported, not raised: errors travel as documents."""
        try:
            log = self._folder / f"{number}.log"
            self._trials[number] = self._launcher.start(_here(TrialSpec.model_validate(spec)), log=log, timeout=timeout)
        except AutooptError as error:
            return _told(error)
        return {}

    def call(self, number: int, task: str, timeout: float | None, arguments: JsonDict) -> JsonDict:
        """Runs a task of a trial: its ``answer`` or its error, and the last ``progress`` that it reported, if any."""
        told: list[JsonDict] = []
        try:
            found = {"answer": self._trials[number].call(task, timeout=timeout, on_progress=told.append, **arguments)}
        except AutooptError as error:
            found = _told(error)
        return {**found, "progress": told[-1:]}

    def freeze(self, number: int) -> None:
        self._trials[number].freeze()

    def thaw(self, number: int) -> None:
        self._trials[number].thaw()

    def close(self, number: int) -> str:
        """Ends a trial; what it has printed, at most the last mebibyte."""
        trial = self._trials.pop(number, None)
        if trial is not None:
            trial.close()
        log = self._folder / f"{number}.log"
        return log.read_bytes()[-(2**20) :].decode("utf-8", "replace") if log.exists() else ""

    def end(self) -> None:
        """Ends all of it."""
        import shutil

        self._launcher.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _driver() -> str | None:
    """The version of NVIDIA's driver, as the kernel reports it."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), None)


def _here(spec: TrialSpec) -> TrialSpec:
    """The spec with the user's folder where it is on this machine: the one that was brought, unless it has the same.

    Raises:
        EnvironmentLacks: a script's folder, or its interpreter, is not where it is on the user's machine.
    """
    if spec.script is not None:
        _check_script(spec.directory, spec.script.command[0])
    if os.path.isdir(spec.directory):
        return spec
    here = os.getcwd()
    path = tuple(folder for folder in spec.search_path if os.path.isdir(folder))
    workload = spec.workload.removeprefix(spec.directory.rstrip("/") + "/")
    return spec.model_copy(update={"directory": here, "search_path": (here, *path), "workload": workload})


def _check_script(folder: str, interpreter: str) -> None:
    """A script's command, its launcher's answer and its patch name files by their paths: they must be the same here."""
    for what, there, path in (
        ("folder", os.path.isdir(folder), folder),
        ("interpreter", os.access(interpreter, os.X_OK), interpreter),
    ):
        if not there:
            raise EnvironmentLacks(
                f"{platform.node()} has no {path}, the {what} of the script",
                hint="scripts run on machines that see them under the same path; a build() is brought there",
            )


def _told(error: AutooptError) -> JsonDict:
    kind = getattr(error, "kind", None)
    return {
        "error": type(error).__name__,
        "kind": kind,
        "message": error.message,
        "hint": error.hint,
        "detail": error.detail,
        "where": getattr(error, "where", ""),
    }


def as_users(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables of this machine's environment that a host must have as they are here."""
    mine: dict[str, Any] = {THREADS: environment.get(THREADS)}
    mine |= {name: value for name, value in environment.items() if name.startswith(("MKL_", "KMP_", "TORCH"))}
    return mine
