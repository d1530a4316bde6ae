"""The thread of a script's process that answers the parent, while the main thread trains or stands still."""

from __future__ import annotations

import queue
import threading
from typing import Any

from autoopt.errors import ScriptEnded, WorkloadError
from autoopt.script.refusals import explained
from autoopt.trial.channel import Channel, ChannelClosed
from autoopt.trial.child import TaskServer, resolve, seal
from autoopt.trial.preloading import EnvironmentLog
from autoopt.trial.protocol import Call, TrialSpec


class ScriptServer(TaskServer):
    """Answers the parent from a thread of its own."""

    def __init__(self, channel: Channel, spec: TrialSpec) -> None:
        seal(channel)
        super().__init__(channel, spec, "")
        self._script: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session: Any = None

    def start(self, log: EnvironmentLog | None = None) -> None:
        threading.Thread(target=self._serve, args=(log,), name="autoopt", daemon=True).start()

    def found(self, script: Any, error: BaseException | None = None) -> None:
        """torch has been imported, and the script's session begins; or why it never will."""
        self._script.put((script, error))
        if error is not None:
            threading.Event().wait()  # until the parent, which is notified, ends this process

    def _serve(self, log: EnvironmentLog | None) -> None:
        try:
            self.serve(log)
        except ChannelClosed:
            return

    def make_live(self) -> Any:
        self._where = "start"
        script, error = self._script.get()
        if error is not None:
            raise explained(error)
        self._session = script.session
        try:
            script.session.first_step()
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
