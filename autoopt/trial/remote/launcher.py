"""Starts trials on hosts: all that live at the same time on one, so that a pair never spans machines.

Ray is the cluster: each host, which starts trials on its machine, is an actor in a placement group of one bundle.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError, EnvironmentLacks, NodeLost, TrialFailed
from autoopt.records import JsonDict
from autoopt.records.protocol import Failure, TrialSpec
from autoopt.trial.child import LIVE
from autoopt.trial.failures import error_of, failure_of
from autoopt.trial.parent import Launcher
from autoopt.trial.preloading import set_variable
from autoopt.trial.process import Closing, LocalTrial, Task, name_of

MOST_OF_OTHER_KINDS = 8
"""Hosts that are given back because they are of another kind than the first, one after the other."""
PLACE_SECONDS = 600.0
"""How long a free place is waited for: a cluster may have to start a machine."""
UPLOADED = ("autoopt-runs", ".git", ".venv", "__pycache__", "*.pt", "*.ckpt")
"""Files of the working directory that are not the user's code."""
THREADS = "OMP_NUM_THREADS"
"""Ray sets it to 1 in what it starts; a trial has it as the user's machine has it."""


class RemoteLauncher(Closing):
    """A ``Launcher`` over the machines of a cluster.

    Args:
        cluster: where hosts are started.
        folder: of the run, in which trials leave files; every machine must see it.
        kind: that all hosts must be of, shared with those next to this one; empty: as the first one turns out to be.
    """

    def __init__(self, cluster: RayCluster, folder: str, kind: JsonDict | None = None) -> None:
        self._cluster, self._folder = cluster, folder
        self._host: RayHost | None = None
        self._kind: JsonDict = {} if kind is None else kind
        self._helpers: list[RemoteLauncher] = []
        self._held = 0
        self._numbers = itertools.count()
        self._trials: list[RemoteTrial] = []

    def start(self, spec: TrialSpec, *, log: Path, timeout: float) -> RemoteTrial:
        """Starts a trial next to those that live; where none does, on a fresh host. See ``Launcher.start``.

        Raises:
            NodeLost: the host is gone; whoever measures begins anew.
        """
        self._trials = [trial for trial in self._trials if not trial.closed]
        if not self._trials and not self._held:
            self._release()
        try:
            host = self._host = self._host or self._of_its_kind(spec)
            trial = RemoteTrial(host, next(self._numbers), spec, log)
            self._trials.append(trial)
            try:
                trial.begin(timeout)
            except AutooptError:
                trial.close()
                raise
        except NodeLost:
            self._release()
            raise
        return trial

    def places(self, count: int, processes: int, device: str) -> tuple[RemoteLauncher, ...]:
        """Launchers of so many hosts at the same time, this one the first.

        Raises:
            EnvironmentLacks: the cluster has no room for them.
        """
        room = self._cluster.room(processes, wants_cuda(device))
        if count > room:
            raise EnvironmentLacks(
                f"--parallel {count}: the cluster has room for {room} pairs of trials", hint="ray status shows it"
            )
        self._helpers = [RemoteLauncher(self._cluster, self._folder, self._kind) for _ in range(count - 1)]
        return (self, *self._helpers)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Everything that is started within is started on one host, also where nothing lives in between."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def _of_its_kind(self, spec: TrialSpec) -> RayHost:
        """A host of the kind of the first one: what was measured on different kinds is never compared.

        Raises:
            EnvironmentLacks: all that can be had are of other kinds.
        """
        others: list[RayHost] = []
        try:
            while len(others) < MOST_OF_OTHER_KINDS:
                host = self._cluster.host(spec.processes, wants_cuda(spec.device))
                kind = host.ask("kind")
                if self._kind in ({}, kind):
                    self._kind.update(kind)
                    if not host.ask("sees", self._folder):
                        host.release()
                        raise EnvironmentLacks(
                            f"a machine of the cluster does not see {self._folder}, where trials leave files",
                            hint="--out DIR names a folder that all machines share",
                        )
                    return host
                others.append(host)  # kept until another is found, so that the next one is on another machine
            raise EnvironmentLacks(
                f"machines of other kinds alone are free: {kind}", hint=f"the run was begun on {self._kind}"
            )
        finally:
            for host in others:
                host.release()

    def _release(self) -> None:
        for trial in self._trials:
            trial.closed = True
        self._trials.clear()
        if self._host is not None:
            self._host.release()
            self._host = None

    def close(self) -> None:
        """Ends everything that was started. May be called twice."""
        for helper in self._helpers:
            helper.end()
        self.end()
        self._cluster.close()

    def end(self) -> None:
        """Ends the trials of this one, and gives its host back."""
        for trial in self._trials:
            trial.close()
        self._release()


def wants_cuda(device: str) -> bool | None:
    """Whether trials need devices; None: where there are any."""
    return None if device == "auto" else device.startswith("cuda")


class RemoteTrial(Closing):
    """A live trial on a host, as ``LocalTrial`` is one here; every method may raise ``NodeLost``."""

    def __init__(self, host: RayHost, number: int, spec: TrialSpec, log: Path) -> None:
        self.spec, self.log = spec, log
        self.closed = False
        self._host, self._number = host, number

    def begin(self, timeout: float) -> None:
        """Starts it.

        Raises:
            AutooptError: as ``Launcher.start``.
        """
        _raised(self._host.ask("start", self._number, self.spec.model_dump(), timeout))

    def call(self, task: Task, *, timeout: float | None = None, **arguments: Any) -> JsonDict:
        """Runs a task in the trial and waits for its answer; see ``LocalTrial.call``."""
        name = name_of(task)
        if self.closed:
            raise TrialFailed("crashed", "the trial has ended already", where=name.rpartition(":")[2])
        found: JsonDict = self._host.ask("call", self._number, name, timeout, arguments)
        _raised(found)
        answer: JsonDict = found["answer"]
        return answer

    def freeze(self) -> None:
        """Stops the whole process tree where it stands."""
        if not self.closed:
            self._host.ask("freeze", self._number)

    def thaw(self) -> None:
        """Lets a frozen tree go on."""
        if not self.closed:
            self._host.ask("thaw", self._number)

    def close(self) -> None:
        """Ends the trial and brings its log here; never raises, may be called twice."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(AutooptError, OSError):
            printed = self._host.ask("close", self._number)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8") as file:
                file.write(printed)


def _raised(document: JsonDict) -> None:
    """Raises the error that a host reports; nothing where it reports none."""
    if "failure" in document:
        raise error_of(Failure.model_validate(document))


AnyTrial = LocalTrial | RemoteTrial
"""A live trial, wherever it is and however many processes train in it."""


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

        cuda, driver = torch.cuda.is_available(), None
        with contextlib.suppress(OSError, IndexError):  # as the kernel reports it
            first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
            driver = next((word for word in first.split() if word[:1].isdigit() and "." in word), None)
        return {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name() if cuda else None,
            "cuda": torch.version.cuda,
            "driver": driver if cuda else None,
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
