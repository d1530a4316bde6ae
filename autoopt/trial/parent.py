"""The parent's side of trials: starts them, and sees to it that all end with it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from autoopt.records import JsonDict
from autoopt.records.protocol import Launch, Rank, TrialSpec
from autoopt.trial.child import LIVE
from autoopt.trial.preloading import Imports
from autoopt.trial.process import Closing, LocalTrial, TrialProcess
from autoopt.trial.start import SUPERVISOR, ForkServer, Started, fresh, new_server

logger = logging.getLogger(__name__)

LONGEST_FOLDER = 107 - len("/autoopt-group-12345678/tmp/pymp-12345678/listener-12345678")
"""Bytes of a folder below which the path of a socket still fits."""

_OF_GROUPS = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Ranks of one machine meet on it, and one that was frozen for long is no reason for NCCL to end the process."""


class Launcher(Closing):
    """Starts trials; leaving it ends every trial that it started, and the fork server.

    Args:
        fork_server: whether to start trials from a process that has torch imported (Linux only);
            without, each trial is a fresh interpreter.
        live: what a trial makes of its spec, ``module:class``; tests of the protocol put in their own.
        compiler_cache: the folder in which ``torch.compile`` keeps what it has compiled, so that the next trial
            of the same graph finds it; a folder of the user's for all runs where None.
    """

    def __init__(self, *, fork_server: bool = True, live: str = LIVE, compiler_cache: Path | None = None) -> None:
        self._server = new_server() if fork_server else None
        self._live = live
        self._compiler_cache = compiler_cache
        self._trials: list[TrialProcess] = []
        self._starting = threading.Lock()  # several places may start trials at the same time
        self._for_launched: dict[tuple[tuple[str, str], ...], ForkServer] = {}

    def __enter__(self) -> Self:
        if self._server:
            self._server.start()  # its imports go on while the run prepares
        return self

    def start(self, spec: TrialSpec, *, log: Path, timeout: float) -> LocalTrial:
        """Starts a trial and waits until its workload is built.

        A spec with environment variables among its flags (``flags["env"]``) gets a fresh interpreter,
        since they must be set before torch is imported.

        Args:
            spec: what to build and how.
            log: the file to which everything that the trial prints is appended.
            timeout: seconds until building counts as hung.

        Raises:
            WorkloadError, UsageError, EnvironmentLacks: an untouched workload (an empty plan) cannot be
                imported or built.
            TrialFailed: anything else, with the tail of the log.
        """
        trial: LocalTrial | None = None
        try:
            with self._starting:
                server, forked = self._server_of(spec)
                if server is not None and forked:
                    self._preload(server)
                deadline = time.monotonic() + timeout
                self._trials = [trial for trial in self._trials if not trial.closed]
                trial = self._trial(spec, log)
            how: JsonDict = {"live": self._live}
            if server is not None and (forked or spec.script is not None) and server.seen is None:
                how["tell_imports"] = True
            elif server is not None and server.preloaded and spec.script is None and not forked:
                # a fresh interpreter imports libraries before it builds as well: what building takes is compared
                how["libraries"] = server.seen.model_dump() if server.seen else None
            answer = trial.introduce(how, deadline, timeout)
            if server is not None and "tell_imports" in how:
                server.seen = Imports.model_validate(answer)
        except BaseException:
            if trial:
                trial.close()
            raise
        return trial

    def held(self) -> contextlib.AbstractContextManager[None]:
        """All that is started within runs on one machine, as everything does here."""
        return contextlib.nullcontext()

    def _trial(self, spec: TrialSpec, log: Path) -> LocalTrial:
        """A process for each rank; the first one's log is the trial's, the others' stand next to it."""
        started, folder, several = list[TrialProcess](), "", spec.processes > 1
        if several:
            folder, port = tempfile.mkdtemp(prefix="autoopt-group-", dir=scratch_folder()), free_port()
        try:
            for number in range(spec.processes):
                rank_log = log if not number else log.with_suffix(f".rank{number}{log.suffix}")
                if several:
                    rank = Rank(rank=number, size=spec.processes, folder=folder, port=port)
                    spec = spec.model_copy(update={"rank": rank})
                log_start = rank_log.stat().st_size if rank_log.exists() else 0
                begun = self._begin(spec, rank_log)
                started.append(TrialProcess(spec, begun, log=rank_log, log_start=log_start))
                self._trials.append(started[-1])
        except BaseException:
            LocalTrial(started, folder).close()
            raise
        return LocalTrial(started, folder)

    def _server_of(self, spec: TrialSpec) -> tuple[ForkServer | None, bool]:
        """The server for a trial, and whether it forks it: torch is imported there before anything of the trial's runs.

        It is one of its own where a launcher sets what torch reads first.
        """
        script, server = spec.script, self._server
        first = before_torch(script.launch) if script is not None and script.launch is not None else {}
        if server is not None and first:
            server = self._for_launched.setdefault(tuple(sorted(first.items())), ForkServer(first))
        here = script is None or script.path is not None
        return server, server is not None and here and not spec.flags.get("env")

    def _preload(self, server: ForkServer) -> None:
        """Once, after the first trial and while no other lives: two sides of a pair start from the same server."""
        if server.seen is None or server.preloaded is not None:
            return
        if any(trial.alive for trial in self._trials):
            return
        trouble = server.preload(server.seen)
        server.preloaded = not trouble
        if trouble:
            logger.info("each trial imports its libraries itself: %s", trouble)

    def _begin(self, spec: TrialSpec, log: Path) -> Started:
        launched, place = dict[str, str](), spec.rank
        if spec.script is not None and spec.script.launch is not None:  # where they meet is this trial's own
            launched = {**spec.script.launch.ranks[0 if place is None else place.rank]}
            launched["MASTER_PORT"] = str(free_port() if place is None else place.port)
            if place is not None:
                launched["MASTER_ADDR"] = "127.0.0.1"
        environment = trial_environment(spec.flags.get("env") or {}, self._compiler_cache, launched)
        if spec.rank is not None:
            environment = {**_OF_GROUPS, **environment}
        if spec.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = spec.devices
        scratch = scratch_folder()
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            server, forked = self._server_of(spec)
            if server is not None and forked:
                return server.fork(descriptor, environment, scratch)
            return fresh(descriptor, environment, scratch, spec.script.entry if spec.script else SUPERVISOR)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Ends everything that was started. May be called twice."""
        for trial in self._trials:
            trial.close()
        self._trials.clear()
        for server in (self._server, *self._for_launched.values()):
            if server is not None:
                server.close()


def free_port() -> int:
    """A port of this machine that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def scratch_folder() -> str:
    """Where a trial's supervisor makes the private folder for its temporary files.

    Loader workers put sockets below it, whose paths the system limits to 107 bytes: where the usual
    folder is too deep, another is taken, since they would wait for ever.
    """
    usual = tempfile.gettempdir()
    places = [usual, "/tmp", "/var/tmp"]
    fitting = [place for place in places if len(place) <= LONGEST_FOLDER and os.access(place, os.W_OK | os.X_OK)]
    return next(iter(fitting), usual)


_OF_THE_PLACE = re.compile(
    r"TORCHELASTIC_|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)$|ROLE_NAME$|MASTER_|PYTHONUNBUFFERED$"
)


def before_torch(launch: Launch) -> dict[str, str]:
    """Variables that a launcher sets alike for all processes, and that libraries may read as they are imported."""
    first, *others = launch.ranks
    return {
        name: value
        for name, value in first.items()
        if not _OF_THE_PLACE.match(name) and all(other.get(name) == value for other in others)
    }


def trial_environment(
    flags: JsonDict, compiler_cache: Path | None = None, launched: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a trial: this process's, what a launcher sets, and what the setup asks for.

    The hash seed is fixed, so that every trial walks a set in the same order; the compiler's cache
    stays where it is for every trial (torch would put it into the trial's own temporary folder).
    """
    shared = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.environ.get('USER') or os.getuid()}")
    return {
        "PYTHONHASHSEED": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(compiler_cache or shared),
        **os.environ,
        **(launched or {}),
        **{name: str(value) for name, value in flags.items()},
    }
