"""Starts trials on hosts: all that live at the same time on one, so that a pair never spans machines."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoopt.errors import AutooptError, EnvironmentLacks, NodeLost, TrialFailed
from autoopt.records import JsonDict
from autoopt.records.protocol import Failure, TrialSpec
from autoopt.trial.failures import error_of
from autoopt.trial.process import Answering, Closing, LocalTrial, Task, name_of
from autoopt.trial.remote.ray_cluster import RayCluster, RayHost

MOST_OF_OTHER_KINDS = 8
"""Hosts that are given back because they are of another kind than the first, one after the other."""


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


class RemoteTrial(Answering):
    """A live trial on a host, as ``LocalTrial`` is one here; every method may raise ``NodeLost``."""

    can_freeze = True

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
