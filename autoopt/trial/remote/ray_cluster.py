"""Ray as the cluster: each host, which starts trials on its machine, is an actor in a placement group of one bundle."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError, EnvironmentLacks, NodeLost
from autoopt.records import JsonDict
from autoopt.records.protocol import TrialSpec
from autoopt.trial.child import LIVE
from autoopt.trial.failures import failure_of
from autoopt.trial.parent import Launcher
from autoopt.trial.preloading import set_variable
from autoopt.trial.process import LocalTrial

PLACE_SECONDS = 600.0
"""How long a free place is waited for: a cluster may have to start a machine."""
UPLOADED = ("autoopt-runs", ".git", ".venv", "__pycache__", "*.pt", "*.ckpt")
"""Files of the working directory that are not the user's code."""
THREADS = "OMP_NUM_THREADS"
"""Ray sets it to 1 in what it starts; a trial has it as the user's machine has it."""


class Host:
    """Trials of one machine, by number.

    Args:
        environment: variables that are as on the user's machine: None where they are not set there.
    """

    def __init__(self, environment: Mapping[str, str | None], live: str = LIVE) -> None:
        for name, value in environment.items():
            set_variable(name, value)
        self._folder = Path(tempfile.mkdtemp(prefix="autoopt-host-"))
        self._launcher = Launcher(compiler_cache=self._folder / "compiled", live=live)
        self._launcher.__enter__()
        self._trials: dict[int, LocalTrial] = {}

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
            return failure_of(error, "").model_dump()
        return {}

    def call(self, number: int, task: str, timeout: float | None, arguments: JsonDict) -> JsonDict:
        """Runs a task of a trial: its ``answer``, or its failure."""
        try:
            return {"answer": self._trials[number].call(task, timeout=timeout, **arguments)}
        except AutooptError as error:
            return failure_of(error, "").model_dump()

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
    if spec.script is not None:  # its command, its launcher's answer and its patch name files by their paths
        folder, interpreter = spec.directory, spec.script.command[0]
        for what, there, named in (
            ("folder", os.path.isdir(folder), folder),
            ("interpreter", os.access(interpreter, os.X_OK), interpreter),
        ):
            if not there:
                raise EnvironmentLacks(
                    f"{platform.node()} has no {named}, the {what} of the script",
                    hint="scripts run on machines that see them under the same path; a build() is brought there",
                )
    if os.path.isdir(spec.directory):
        return spec
    here = os.getcwd()
    path = tuple(folder for folder in spec.search_path if os.path.isdir(folder))
    workload = spec.workload.removeprefix(spec.directory.rstrip("/") + "/")
    return spec.model_copy(update={"directory": here, "search_path": (here, *path), "workload": workload})


def as_users(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables of this machine's environment that a host must have as they are here."""
    mine: dict[str, Any] = {THREADS: environment.get(THREADS)}
    mine |= {name: value for name, value in environment.items() if name.startswith(("MKL_", "KMP_", "TORCH"))}
    return mine


class RayCluster:
    """A Ray cluster, or a Ray of this machine alone where no address is given.

    Args:
        address: ``ray://host:port``, ``host:port`` or ``auto``; None: ``RAY_ADDRESS``, else one is started here.

    Raises:
        EnvironmentLacks: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None = None, live: str = LIVE) -> None:
        self._live = live
        self._ray = ray = _ray()
        self._joined = bool(ray.is_initialized())
        address = address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
        if address is not None:
            # The user's code, for machines that do not have it. Variables of the environment stay: some are secrets.
            code = {"working_dir": os.getcwd(), "excludes": list(UPLOADED)}
            options = {"address": address, "log_to_driver": False, "runtime_env": code}
        if not self._joined:
            try:
                ray.init(**options)
            except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
                raise EnvironmentLacks(
                    f"Ray cannot be reached or started at {address or 'this machine'}: {error}".split("\n")[0],
                    hint="ray status shows whether a cluster runs; --executor ray://HOST:10001 names one",
                ) from None
        self._environment = as_users(os.environ)

    def host(self, processes: int, cuda: bool | None) -> RayHost:
        """A fresh host in a place of its own.

        Args:
            processes: that train together.
            cuda: whether each of them needs a device; None: where there are any.

        Raises:
            EnvironmentLacks: there is no such place.
        """
        ray = self._ray
        bundle = bundle_of([node["Resources"] for node in ray.nodes() if node["Alive"]], processes, cuda)
        group = ray.util.placement_group([bundle], strategy="STRICT_PACK")
        if not group.wait(PLACE_SECONDS):
            ray.util.remove_placement_group(group)
            raise EnvironmentLacks(
                f"no machine of the cluster had {bundle} free within {PLACE_SECONDS:g} s", hint="ray status shows why"
            )
        where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(placement_group=group)
        actor = ray.remote(Host).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=where,
            max_concurrency=2,
            max_restarts=0,
        )
        return RayHost(ray, actor.remote(self._environment, self._live), group)

    def room(self, processes: int, cuda: bool | None) -> int:
        """Hosts that there is room for at the same time."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        bundle = bundle_of(nodes, processes, cuda)
        return sum(int(min(node.get(name, 0) // amount for name, amount in bundle.items())) for node in nodes)

    def close(self) -> None:
        if not self._joined:
            self._ray.shutdown()


class RayHost:
    """An actor that is a host, in its placement group; every method but ``release`` may raise ``NodeLost``."""

    def __init__(self, ray: Any, actor: Any, group: Any) -> None:
        self._ray, self._actor, self._group = ray, actor, group

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the host. A machine that is gone is no verdict on what was measured there."""
        found = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._actor, method).remote(*arguments))
        except found.RayTaskError:
            raise
        except (found.RayActorError, found.NodeDiedError, found.ObjectLostError) as error:
            raise NodeLost(f"a machine of the cluster is gone: {error}".split("\n")[0]) from None

    def release(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.get(self._actor.end.remote(), timeout=20)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)
        with contextlib.suppress(Exception):
            self._ray.util.remove_placement_group(self._group)


def bundle_of(nodes: list[Mapping[str, float]], processes: int, cuda: bool | None) -> dict[str, float]:
    """A machine's resources for a pair of trials: all its cores, or its devices with their share of the cores.

    Args:
        nodes: resources of each live machine.
        processes: that train together, each on a device of its own.
        cuda: whether they train on devices; None: where any machine has one, as ``--device auto`` does here.

    Raises:
        EnvironmentLacks: no machine has as many devices.
    """
    if cuda is None:
        cuda = any(node.get("GPU", 0) for node in nodes)
    if not cuda:
        return {"CPU": min((node["CPU"] for node in nodes if node.get("CPU")), default=1.0)}
    fitting = [node for node in nodes if node.get("GPU", 0) >= processes]
    if not fitting:
        most = max((node.get("GPU", 0) for node in nodes), default=0)
        raise EnvironmentLacks(f"no machine of the cluster has {processes} devices; the most is {most:g}")
    return {
        "CPU": max(1.0, min(node.get("CPU", 1) // node["GPU"] * processes for node in fitting)),
        "GPU": float(processes),
    }


def _ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError:
        raise EnvironmentLacks(
            "--executor ray: Ray is not installed", hint="pip install 'torch-autoopt[ray]'"
        ) from None
    return ray
