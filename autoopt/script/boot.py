"""The first moments of a script's process: waits for torch, puts the joints in place, and lets the script run."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import socket
import sys
import time
from typing import Any

from autoopt.benchmark.affinity import cores
from autoopt.errors import WorkloadError
from autoopt.script.frames import begin_here
from autoopt.script.guard import guard
from autoopt.script.imported import when_imported
from autoopt.script.orders import Orders
from autoopt.trial.channel import Channel


def begin(words: str, since: float) -> None:
    """Called once, by ``sitecustomize``, before the script's first line.

    Args:
        words: :class:`~autoopt.script.orders.Orders` as JSON.
        since: when autoopt's first line in this process ran, by ``time.monotonic``.
    """
    orders = Orders.model_validate_json(words)
    process = listen(orders, None if orders.channel is None else Channel(socket.socket(fileno=orders.channel)))
    process.listening_seconds = time.monotonic() - since


def listen(orders: Orders, channel: Channel | None) -> ScriptProcess:
    """Listens from now on, before the script's first line.

    Args:
        orders: what is done with the script.
        channel: to the parent; None where the script trains for real.
    """
    begin_here()
    process = ScriptProcess(orders)
    if orders.writable is not None:
        guard(orders.writable)
    if channel is not None:
        process.answer(channel)
    if "torch" in sys.modules:
        process.listen()
    else:
        when_imported("torch", process.listen, before=process.torch_comes)
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
        self._server: Any = None
        self._code: Any = None  # of sys.exit
        self.listening_seconds = 0.0  # before the script's first line

    def answer(self, channel: Channel) -> None:
        """Starts the thread that answers the parent."""
        from autoopt.script.serving import ScriptServer
        from autoopt.trial.preloading import EnvironmentLog

        self._server = ScriptServer(channel, self.orders.spec)
        self._server.start(EnvironmentLog() if self.orders.tell_imports else None)
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
        from autoopt.script.process import Script

        stops = self._server is not None
        self._script = Script(
            self.orders.spec, stops=stops, path=self._path, early=self._early, imports_seconds=imports
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


_READ_BY_TORCH = re.compile(
    r"(?!PYTORCH_NVML_BASED_CUDA_CHECK)"  # Lightning sets it; it is set wherever torch is imported for others
    r"((OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|DNNL|ONEDNN|GLOO|LD)_|cores$"
    r"|CUDA|CUDNN|CUBLAS|NCCL|NVIDIA|HIP|ROC|MIOPEN|PYTORCH|TORCH|TRITON|ATEN|C10|MALLOC|JEMALLOC|PYTHON)"
)
"""Names that torch and the libraries below it may read as they are imported: a script that sets another (of tokenizers,
of trackers, of its own) before torch comes may be run where torch is imported already."""


def _settings() -> dict[str, Any]:
    """Sets what a library may read as it is imported: environment variables, and the cores of the process."""
    return {**os.environ, "cores": cores()}
