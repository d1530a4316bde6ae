"""Start of a script's process: the file guard, waiting for torch, answers to the parent, and why it ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from autoopt.benchmark.affinity import cores
from autoopt.errors import ScriptEnded, WorkloadError
from autoopt.records import Record
from autoopt.records.protocol import Call, TrialSpec
from autoopt.script.frames import ImportClock, begin_here
from autoopt.script.hook.seeds import in_place_of, when_imported
from autoopt.trial.channel import Channel, ChannelClosed
from autoopt.trial.child import TaskServer, resolve, seal
from autoopt.trial.preloading import EnvironmentLog

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset({"open", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link"})
_FIRST = {"os.rename": slice(2), "os.link": slice(1, 2), "os.symlink": slice(1, 2)}
"""Which arguments of an event name what is changed; the first one of all others."""
_READ_BY_TORCH = re.compile(
    r"(?!PYTORCH_NVML_BASED_CUDA_CHECK)"  # Lightning sets it; it is set wherever torch is imported for others
    r"((OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|DNNL|ONEDNN|GLOO|LD)_|cores$"
    r"|CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|HIP|ROC|MIOPEN|PYTORCH|TORCH|TRITON|ATEN|C10|MALLOC|JEMALLOC|PYTHON)"
)
"""Names that torch and the libraries below it may read as they are imported: a script that sets another (of tokenizers,
of trackers, of its own) before torch comes may be run where torch is imported already."""

_ONE_PROCESS = (
    "let torchrun start them, as in: autoopt optimize -- torchrun --standalone --nproc-per-node 2 train.py; "
    "else name a command that trains in one process, or describe the run with build()"
)


class Orders(Record):
    """``channel``: descriptor of the private pipe; None where the script trains for real, with a plan.

    ``writable``: folders that the script may write to; it is stopped where it would write elsewhere. None: anywhere.
    ``tell_imports``: the first answer shows what the script has imported up to its first step. ``began``: when its
    interpreter was started, by ``time.monotonic``; None where one that runs already took it over.
    """

    spec: TrialSpec
    channel: int | None = None
    writable: tuple[str, ...] | None = None
    tell_imports: bool = False
    began: float | None = None


def guard(writable: Iterable[str]) -> None:
    """From now on this process and those that it forks change files in these folders only.

    Caches and settings in folders of the home whose names begin with a dot are nobody's data and stay writable.

    Args:
        writable: absolute paths of folders.

    Raises:
        OSError: later, in the call that would write elsewhere.
    """
    # what is written is looked up behind its links, so that a folder reached over one is taken the same way
    folders = tuple(os.path.realpath(folder).rstrip("/") for folder in writable)
    hidden = os.path.realpath(os.path.expanduser("~")).rstrip("/") + "/."

    def allowed(path: str) -> bool:
        return path.startswith(hidden) or any(path == f or path.startswith(f + "/") for f in folders)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _CHANGES:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
            return
        for name in arguments[_FIRST.get(event, slice(1))]:
            if isinstance(name, str | bytes | os.PathLike):
                path = os.path.realpath(os.fsdecode(name))
                if not allowed(path):
                    raise PermissionError(
                        f"autoopt does not let a measured script change {path}, which lies outside of its folder: "
                        "give it a path below the folder it runs in"
                    )

    sys.addaudithook(look)


def begin(words: str, since: float) -> None:
    """Called once, by ``sitecustomize``, before the script's first line.

    Args:
        words: :class:`~autoopt.script.boot.Orders` as JSON.
        since: when autoopt's first line in this process ran, by ``time.monotonic``.
    """
    orders = Orders.model_validate_json(words)
    process = listen(orders, None if orders.channel is None else Channel(socket.socket(fileno=orders.channel)))
    process.listening_seconds = time.monotonic() - since


def listen(orders: Orders, channel: Channel | None) -> ScriptProcess:
    """Listens from now on, before the script's first line.

    Args:
        channel: to the parent; None where the script trains for real.
    """
    begin_here()
    process = ScriptProcess(orders)
    if orders.writable is not None:
        guard(orders.writable)
    if channel is not None:
        process.answer(channel)
    try:
        when_imported("torch", process.listen, before=process.torch_comes)
    except Exception as error:  # it is, and the plan cannot be applied: notify the parent, as if the script imports it
        process.end(error)
        raise
    return process


class ScriptProcess:
    """The part of a script's process that is autoopt's."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._path = tuple(sys.path)
        self._before = _settings()
        self._early: tuple[str, ...] = ()
        self._pid = os.getpid()
        self._script: Any = None
        self._server: ScriptServer | None = None
        self._code: Any = None  # of sys.exit
        self.listening_seconds = 0.0  # before the script's first line
        self._imports = ImportClock()
        if orders.spec.script is not None and orders.spec.script.sites is None:
            self._imports.start()

    def answer(self, channel: Channel) -> None:
        """Starts the thread that answers the parent."""
        self._server = server = ScriptServer(channel, self.orders.spec)
        log = EnvironmentLog() if self.orders.tell_imports else None
        threading.Thread(target=server.answers, args=(log,), name="autoopt", daemon=True).start()
        plain = sys.excepthook

        def failed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            plain(kind, error, trace)
            self.end(error)

        sys.excepthook = failed
        leave = sys.exit

        def left(code: Any = None) -> None:
            self._code = code
            leave(code)

        sys.exit = left  # type: ignore[assignment]
        atexit.register(self.end, None)

    def torch_comes(self) -> None:
        """torch is about to be imported, and reads what the script has set by now."""
        now = _settings()
        changed = (name for name in {*self._before, *now} if self._before.get(name) != now.get(name))
        self._early = tuple(sorted(filter(_READ_BY_TORCH.match, changed)))

    def listen(self) -> None:
        """torch has been imported."""
        began, now = self.orders.began, time.monotonic()
        imports = None if began is None else max(now - began - self.listening_seconds, 0.0)
        self._imports.stop()
        from autoopt.script.process import Script

        stops = self._server is not None
        start = {"path": self._path, "early": self._early}
        self._script = Script(
            self.orders.spec, stops=stops, start=start, imports_seconds=imports, imports=self._imports
        )
        if self._server is not None:
            self._server.found(self._script)

    def end(self, error: BaseException | None) -> None:
        """The script is over; where it never trained, why."""
        if os.getpid() != self._pid or self._server is None:
            return
        if error is None and self._code not in (None, 0):
            error = SystemExit(self._code)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        if self._script is None:
            error = error or WorkloadError(
                "the script ended without having imported torch", hint="name the script that trains"
            )
            self._server.found(None, error)
        else:
            self._script.session.end(error)


class ScriptServer(TaskServer):
    """Answers the parent from a thread of its own, while the main thread trains or stands still."""

    def __init__(self, channel: Channel, spec: TrialSpec) -> None:
        seal(channel)
        super().__init__(channel, spec, "")
        self._script: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session: Any = None

    def found(self, script: Any, error: BaseException | None = None) -> None:
        """torch has been imported, and the script's session begins; or why it never will."""
        self._script.put((script, error))
        if error is not None:
            threading.Event().wait()  # until the parent, which is notified, ends this process

    def answers(self, log: EnvironmentLog | None) -> None:
        """Until the parent closes its end; see :meth:`serve`."""
        with contextlib.suppress(ChannelClosed):
            self.serve(log)

    def make_live(self) -> Any:
        self._where = "start"
        script, error = self._script.get()
        if error is not None:
            raise explained(error)
        self._session = script.session
        try:
            script.session.answer()
        except ScriptEnded:
            raise WorkloadError(script.why_never_trained(), hint="name the script that trains") from None

        def made() -> Any:
            # torch is there: the script has imported it
            from autoopt.benchmark.trial_context import TrialContext
            from autoopt.script.training import ScriptTraining, meet

            script.stop_recording()
            session, spec = script.session, script.spec
            training = ScriptTraining(script, meet(spec.rank, session.device.torch))
            began = session.first_step_at - session.began
            return TrialContext(spec, script.registry, training=(training, began))

        return script.session.in_main(made)

    def run(self, live: Any, call: Call) -> Any:
        """In the thread that trains, unless the task lets the training go on."""
        task = self._session.in_main(lambda: resolve(call.task))
        if getattr(task, "drives", False):
            return task(live, **call.arguments)
        return self._session.in_main(lambda: task(live, **call.arguments))


def _settings() -> dict[str, Any]:
    """Sets what a library may read as it is imported: environment variables, and the cores of the process."""
    return {**os.environ, "cores": cores()}


def refuse_processes(size: int = 1) -> None:
    """From now on a script that starts training processes of its own is stopped there.

    They could not be stopped at the same step from outside.

    Args:
        size: processes that a launcher has started it in.
    """
    import torch  # here: the thread that waits for the script to import torch has these errors, too

    def refuse(*_: Any, **__: Any) -> None:
        raise WorkloadError("the script trains in several processes, which it starts itself", hint=_ONE_PROCESS)

    for name in ("spawn", "start_processes"):
        setattr(torch.multiprocessing, name, refuse)
    if torch.distributed.is_available():
        begin = torch.distributed.init_process_group

        @in_place_of(torch.distributed, "init_process_group")
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            done = begin(*args, **kwargs)
            if torch.distributed.get_world_size() != size and torch.distributed.get_world_size() > 1:
                refuse()
            return done


def explained(error: BaseException | None, steps: int = 0) -> BaseException:
    """What those get who wait for a script that has ended after so many training steps, by an error where not None.

    One that leaves by itself once it trains has come to its end, whatever it leaves with; one that leaves before, as it
    does over unknown words, or asks its user for something, gets a message.
    """
    if error is None or (isinstance(error, SystemExit) and steps):
        return ScriptEnded(steps)
    if isinstance(error, SystemExit):
        how = error.code if isinstance(error.code, str) else f"exit code {error.code}"
        return WorkloadError(
            f"the script left by itself before its first training step: {how}",
            hint="what it printed last stands below; its own words stand behind --",
        )
    if isinstance(error, EOFError) and "reading a line" in str(error):
        return WorkloadError(
            "the script asks for something on standard input, which is empty while it is measured",
            hint="give the answer as one of its words behind --",
        )
    return error
