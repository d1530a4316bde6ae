"""A trial's own process: builds the workload and runs tasks on it, whatever the user's code does to it."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import multiprocessing.util
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from autoopt.records import JsonDict, Record
from autoopt.records.protocol import Answer, Call, Failure, TrialSpec
from autoopt.trial import tree
from autoopt.trial.channel import FIRST_DESCRIPTOR, Channel, ChannelClosed
from autoopt.trial.failures import failure_of
from autoopt.trial.preloading import EnvironmentLog, Imports, import_libraries, imports

LIVE = "autoopt.benchmark.trial_context:TrialContext"
DUMP_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGTERM
"""Makes a trial write the call stack of every thread into its log; sent before one that hangs is killed."""


def main(channel: Channel) -> None:
    """Answers the parent until it closes its end."""
    try:
        first = channel.receive()
        if first is not None and first["spec"].get("script"):
            importlib.import_module(first["spec"]["script"]["entry"]).run_here(channel, first)
        elif first is not None:
            seal(channel)
            server = TaskServer(channel, TrialSpec.model_validate(first["spec"]), first.get("live", LIVE))
            if first.get("libraries"):
                import_libraries(Imports.model_validate(first["libraries"]))
            server.serve(EnvironmentLog() if first.get("tell_imports") else None)
    except ChannelClosed:
        pass


class TaskServer:
    """Runs the tasks that the parent asks for, one after another.

    Args:
        live: what it makes of the spec, ``module:class``.
    """

    def __init__(self, channel: Channel, spec: TrialSpec, live: str) -> None:
        self._channel = channel
        self._spec = spec
        self._kills = tree.oom_kills()
        self._pid = os.getpid()
        self._where = "import"
        self._live_name = live

    def serve(self, log: EnvironmentLog | None = None) -> None:
        """Until the parent closes its end.

        Args:
            log: the first answer shows what building the workload has imported, and what it set in the meantime.
        """
        live: Any = None

        def start() -> JsonDict:
            nonlocal live
            live = self.make_live()
            specs = (self._spec.workload, *self._spec.strategies)
            return imports(specs, log).model_dump() if log is not None else {}

        if not self._answer(start):
            return
        while (document := self._channel.receive()) is not None:
            call = Call.model_validate(document)
            self._where = call.task.rpartition(":")[2]
            self._answer(lambda call=call: self.run(live, call))  # type: ignore[misc]

    def run(self, live: Any, call: Call) -> Any:
        """Runs one task; its answer."""
        return resolve(call.task)(live, **call.arguments)

    def make_live(self) -> Any:
        """The context that tasks get as their first argument."""
        spec = self._spec
        os.chdir(spec.directory)
        sys.path[:0] = [folder for folder in spec.search_path if folder not in sys.path]
        sys.argv = [spec.workload.partition(":")[0]]
        from autoopt.benchmark.seeding import seed_everything
        from autoopt.registry import load_strategies

        seed_everything(spec.seed)  # a strategy's module may draw when it is imported

        registry = load_strategies(spec.strategies)
        return resolve(self._live_name)(spec, registry)

    def _answer(self, work: Callable[[], Any]) -> bool:
        """Runs one piece of work and sends what became of it; True when it went well."""
        try:
            answer = work()
            data = answer.model_dump() if isinstance(answer, Record) else answer
            if not isinstance(data, dict):
                raise TypeError(f"a task must return a dict or a record, got {type(answer).__name__}")
            if os.getpid() != self._pid:
                os._exit(0)
            try:
                self._channel.send(Answer(data=data).model_dump())
            except ValueError as error:
                if "JSON compliant" not in str(error):
                    raise
                message = f"{self._where} gave a number that is not finite"
                failure = Failure(failure="not_finite", message=message, where=self._where)
                self._channel.send(failure.model_dump())
        except ChannelClosed:
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the user's code's, too
            if os.getpid() != self._pid:
                os._exit(1)  # a fork of the user's that came back here
            now = tree.oom_kills()
            kills = None if now is None or self._kills is None else now - self._kills
            failure = failure_of(error, self._where, kills)
            with contextlib.suppress(BaseException):
                sys.stderr.write(f"{failure.detail or failure.message}\n")
                sys.stderr.flush()
            self._channel.send(failure.model_dump())
            return False
        return True


def resolve(task: str) -> Callable[..., Any]:
    module, _, name = task.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def seal(channel: Channel) -> None:
    """Keeps what is autoopt's apart from what the user's code may do in the same process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    log = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    faulthandler.enable(file=log)
    with contextlib.suppress(AttributeError, ValueError, RuntimeError):
        faulthandler.register(DUMP_SIGNAL, file=log, all_threads=True)
    by_main_thread = [True]  # it forked last: a process made by a short-lived thread must not die with that thread

    def note_thread() -> None:
        by_main_thread[0] = threading.get_native_id() == os.getpid()

    def die_with_trial(_: Channel) -> None:  # a frozen worker cannot watch its parent: the kernel ends it with that
        if by_main_thread[0]:
            tree.die_with_parent()

    os.register_at_fork(before=note_thread, after_in_child=channel.close)
    multiprocessing.util.register_after_fork(channel, die_with_trial)
