"""A run as a sequence of durable steps: each is measured once, and read back from the journal ever after."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, TypeVar

import autoopt
from autoopt.errors import DocumentError, EnvironmentLacks, NodeLost, TrialFailed, UsageError
from autoopt.events import Event, RunEnded, Stopped, TrialProgress
from autoopt.records import JsonDict, Record, ValidationError
from autoopt.storage.fingerprint import differences
from autoopt.storage.journal import Journal
from autoopt.storage.journal import now as present
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.tree import oom_kills

R = TypeVar("R", bound=Record)
State = Literal["orphan", "ended", "failed", "abandoned"]
_ENDED: dict[str, State] = {"end": "ended", "failed": "failed", "abandoned": "abandoned"}


@dataclass(frozen=True)
class Took:
    """A step that came to its end: its kind, its purpose where it has one, and its seconds on the run's clock."""

    kind: str
    purpose: str
    seconds: float


@dataclass(frozen=True)
class Recorded:
    """One step. Times on the run's clock.

    ``machine``: its state as the step began; ``down``: how often it went down, or ran out of memory, during the step.
    """

    number: int
    kind: str
    state: State
    started: float
    at: float
    document: JsonDict | None = None
    failure: dict[str, str] | None = None
    machine: JsonDict = field(default_factory=dict)
    down: int = 0

    def down_by(self, now: JsonDict) -> int:
        """How often the step may have been what brought the run down, rather than a user who killed it.

        Args:
            now: the machine's state at present.
        """
        if self.state != "orphan" or None in (self.machine.get("boot"), now.get("boot")):
            return self.down
        before, after = self.machine.get("oom_kills"), now.get("oom_kills")
        killed = before is not None and after is not None and after > before
        return self.down + int(killed or self.machine["boot"] != now["boot"])


KILLED = "the run was killed while it was running"
MOST_DOWN = 2
"""A step during which the machine went down, or ran out of memory, so often may be why: it is not tried again. As many
machines of a cluster may go away while it is measured; a third one ends the run, to be resumed."""


class Run:
    """A run that is going on. Made by :meth:`create` or :meth:`resume`.

    Attributes:
        directory: its files.
        clock: its clock, without downtime.
        options: the document of options that the run was started with.
        fingerprint: the code, environment and device that it was started with.
        announced: whether an earlier process announced an event.
        took: the steps so far.
    """

    def __init__(self, directory: RunDirectory, journal: Journal, clock: RunClock) -> None:
        self.directory = directory
        self.clock = clock
        self._journal = journal
        head = journal.records[0] if journal.records else {}
        if head.get("type") != "run" or not all(name in head for name in ("options", "fingerprint", "created")):
            raise DocumentError(
                f"{journal.path} holds no run: it was killed before it began, or is no journal of autoopt's",
                hint="start the run again",
            )
        self.options: JsonDict = head["options"]
        self.fingerprint: JsonDict = head["fingerprint"]
        self.created: str = head["created"]
        self._recorded = read_steps(journal.records, str(journal.path))
        self.announced = Announced(journal.records)
        self._requests: Counter[str] = Counter()
        self.took: list[Took] = []
        self._number = 1 + max((step.number for steps in self._recorded.values() for step in steps), default=-1)
        self._last_at = max((float(record.get("at", 0.0)) for record in journal.records), default=0.0)
        if not self._unread:
            self._go_live()

    # made by

    @classmethod
    def create(
        cls,
        directory: RunDirectory,
        fingerprint: JsonDict,
        options_document: JsonDict,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Run:
        """Starts the journal of a new run.

        Raises:
            UsageError: the directory holds a run already, or is in use.
            EnvironmentLacks: the journal cannot be written.
        """
        journal = Journal(directory.journal, create=True)
        try:
            journal.append(
                {
                    "type": "run",
                    "at": 0.0,
                    "autoopt_version": autoopt.__version__,
                    "created": present(),
                    "fingerprint": fingerprint,
                    "options": options_document,
                }
            )
        except BaseException:
            journal.close()
            raise
        return cls(directory, journal, RunClock(monotonic=monotonic))

    @classmethod
    def resume(cls, directory: RunDirectory, *, monotonic: Callable[[], float] = time.monotonic) -> Run:
        """Opens the journal of an interrupted run; :meth:`check_fingerprint` is the caller's to call.

        Raises:
            UsageError: in use by another run.
            DocumentError: the journal is damaged, or of a newer schema.
        """
        journal = Journal(directory.journal, create=False)
        try:
            return cls(directory, journal, RunClock(monotonic=monotonic, held=True))
        except BaseException:
            journal.close()
            raise

    def check_fingerprint(self, fingerprint: JsonDict, accept_changed: bool = False) -> list[str]:
        """Refuses to mix measurements of different code, environment or device.

        Returns:
            what has changed and was accepted, one line each.

        Raises:
            UsageError: something has changed.
        """
        changed = differences(self.fingerprint, fingerprint)
        if changed and not accept_changed:
            raise UsageError(
                f"{self.directory.path} was measured with something else: {'; '.join(changed)}",
                hint="measurements of the two must not be mixed; start again, or add --accept-changed to do so",
            )
        self._append({"type": "resumed", "wall": present(), "changed": changed, "fingerprint": fingerprint})
        if changed:
            self.fingerprint = fingerprint
        return changed

    # steps

    def step(
        self,
        kind: str,
        key: JsonDict,
        measure: Callable[[], R],
        model: type[R],
    ) -> R:
        """A durable step: measured and written down, or read back where the journal holds it.

        Asking again for the same ``kind`` and ``key`` is another step: the second one is answered with the
        second that was recorded. A step that was under way when the run was killed is measured again; one during
        which the machine went down :data:`MOST_DOWN` times counts as crashed.

        Args:
            kind: such as ``inspect`` or ``comparison``.
            key: what distinguishes the step; JSON.
            measure: measures it.
            model: what ``measure`` returns.

        Raises:
            TrialFailed: the step failed so, now or then.
            EnvironmentLacks: the disk is full, or the run directory is gone.
            Exception: whatever else ``measure`` raises; the step then counts as not begun.
        """
        identity = json.dumps([kind, key], sort_keys=True, allow_nan=False, separators=(",", ":"))
        index = self._requests[identity]  # of requests of this kind and key
        self._requests[identity] += 1
        steps = self._recorded.get(identity, ())
        done = steps[index] if index < len(steps) else None
        if done is not None and done.state in ("ended", "failed"):
            self.took.append(Took(kind, str(key.get("purpose", "")), done.at - done.started))
            self.clock.set_forward(done.started)
            self.clock.set_forward(done.at)
            if not self._unread:
                self._go_live()
            if done.failure is not None:
                raise TrialFailed(**done.failure)
            try:
                return model.model_validate(done.document)
            except ValidationError as error:
                raise DocumentError(
                    f"{self._journal.path} holds a {done.kind} that is no {model.__name__}: {error}",
                    hint="it was written by another version of autoopt; start the run again",
                ) from None
        self._go_live()
        if done is not None and done.down_by(machine()) >= MOST_DOWN:
            failure = TrialFailed("crashed", KILLED, where=kind)
            self._append_failure(self._begin(kind, key), failure)
            raise failure
        began = self.clock.elapsed()
        try:
            for _ in range(MOST_DOWN):
                with contextlib.suppress(NodeLost):
                    return self._measure(self._begin(kind, key), measure)
            return self._measure(self._begin(kind, key), measure)
        finally:
            self.took.append(Took(kind, str(key.get("purpose", "")), self.clock.elapsed() - began))

    def _begin(self, kind: str, key: JsonDict) -> int:
        self.directory.check_space()
        number = self._number
        self._number += 1
        self._append({"type": "start", "step": number, "kind": kind, "key": key, "machine": machine()})
        return number

    def _measure(self, number: int, measure: Callable[[], R]) -> R:
        try:
            try:
                document = measure()
            except TrialFailed as failure:
                self._append_failure(number, failure)
                raise
            self._append({"type": "end", "step": number, "document": document.model_dump()})
        except TrialFailed:
            raise
        except BaseException as error:  # also a signal that came while the end was being written
            with contextlib.suppress(EnvironmentLacks):
                self._append({"type": "abandoned", "step": number, "why": type(error).__name__})
            raise
        return document

    def _append_failure(self, number: int, failure: TrialFailed) -> None:
        reported = {"kind": failure.kind, "message": failure.message, "detail": failure.detail, "where": failure.where}
        self._append({"type": "failed", "step": number, "failure": reported})

    # everything else

    @property
    def finished(self) -> bool:
        """Whether the run came to its own end, so that there is nothing to resume."""
        return any(record.get("type") == "finished" and record.get("complete") for record in self._journal.records)

    def note(self, event: Event) -> None:
        """A listener: writes down what was announced, for a user to read; resume does not need it."""
        if event.replayed or isinstance(event, NOT_JOURNALED):
            return
        with contextlib.suppress(EnvironmentLacks):  # the next step says so
            self._append({"type": "event", "event": type(event).__name__, "data": content(event)})

    def finish(self, reason: str, *, complete: bool = True) -> None:
        """Writes down that the run has ended.

        Args:
            reason: why.
            complete: it came to its own end; False where it was interrupted and may be resumed.
        """
        self._go_live()
        self._append({"type": "finished", "reason": reason, "complete": complete})
        self.directory.clean()

    def close(self) -> None:
        """Lets go of the journal, so that another process may resume."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _unread(self) -> int:
        """Recorded steps that have not been asked for."""
        return sum(
            1
            for identity, steps in self._recorded.items()
            for step in steps[self._requests[identity] :]
            if step.state in ("ended", "failed")
        )

    _live = False

    def _go_live(self) -> None:
        """From here on things are measured. Time goes on from the last that is known of it."""
        if not self._live:
            self._live = True
            self.clock.set_forward(self._last_at)
            self.clock.release()

    def _append(self, record: JsonDict) -> None:
        record["at"] = self.clock.elapsed() if self._live else self._last_at
        self._journal.append(record)


def read_steps(records: Iterable[JsonDict], name: str) -> dict[str, list[Recorded]]:
    """Steps by identity (kind and key), in the order in which they were begun.

    A step that did not come to its end and was begun again later is one step.

    Raises:
        DocumentError: a record is not what it must be.
    """
    begun: dict[int, str] = {}
    steps: dict[str, list[Recorded]] = defaultdict(list)
    try:
        for record in records:
            if record["type"] == "start":
                identity = json.dumps([record["kind"], record["key"]], sort_keys=True, separators=(",", ":"))
                begun[record["step"]] = identity
                of, at, now = steps[identity], float(record["at"]), record.get("machine", {})
                again = bool(of) and of[-1].state in ("orphan", "abandoned")
                down = of.pop().down_by(now) if again else 0
                step = Recorded(int(record["step"]), str(record["kind"]), "orphan", at, at, machine=now, down=down)
                of.append(step)
            elif record["type"] in ("end", "failed", "abandoned"):
                of = steps[begun[record["step"]]]
                if of[-1].state == "orphan":
                    ended: JsonDict = {"state": _ENDED[record["type"]], "at": float(record["at"])}
                    if record["type"] == "failed":
                        ended["failure"] = {str(name): str(value) for name, value in record["failure"].items()}
                    elif record["type"] == "end":
                        ended["document"] = dict(record["document"])
                    of[-1] = replace(of[-1], **ended)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DocumentError(f"{name} is damaged: {type(error).__name__}: {error}") from None
    return dict(steps)


def machine() -> JsonDict:
    """Shows later whether the machine was started again, or the kernel killed for lack of memory; nulls: unknown."""
    try:
        boot: str | None = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = None
    return {"boot": boot, "oom_kills": oom_kills()}


class RunClock:
    """Goes forward only, whatever becomes of the wall clock.

    While a resumed run reads back what its journal holds, the clock stands at the recorded time, so that
    what the loop decides by the clock it decides as before.

    Args:
        monotonic: seconds; injected in tests.
        held: start standing still.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic, held: bool = False) -> None:
        self._monotonic = monotonic
        self._value = 0.0
        self._since: float | None = None if held else monotonic()

    def elapsed(self) -> float:
        """Seconds of the run so far."""
        if self._since is None:
            return self._value
        return self._value + max(0.0, self._monotonic() - self._since)

    def set_forward(self, at: float) -> None:
        """Sets a standing clock to a recorded time; an earlier one changes nothing."""
        if self._since is None:
            self._value = max(self._value, at)

    def release(self) -> None:
        """Lets the clock go, from where it stands."""
        if self._since is None:
            self._since = self._monotonic()


NOT_JOURNALED = (TrialProgress,)
_ENDS = (Stopped, RunEnded)
"""An interrupted run has said that it ended; the end of the resumed one is another."""


def content(event: Event) -> JsonDict:
    """The content of an event that the journal keeps; the result of a run has a file of its own."""
    return event.model_dump(exclude={"at", "replayed", "result"})


class Announced:
    """Events that earlier processes of a run announced; each is recognized as often as it was.

    Measured numbers are left out of the comparison: seconds are distinguished by when the clock was examined.

    Args:
        records: of the journal.
    """

    def __init__(self, records: Iterable[JsonDict]) -> None:
        self._left = Counter(
            _shape(str(record["event"]), record.get("data")) for record in records if record.get("type") == "event"
        )

    def __call__(self, event: Event) -> bool:
        """Whether an earlier process announced this."""
        if isinstance(event, (*_ENDS, *NOT_JOURNALED)):
            return False
        identity = _shape(type(event).__name__, content(event))
        if not self._left[identity]:
            return False
        self._left[identity] -= 1
        return True


def _shape(name: str, data: object) -> str:
    return json.dumps([name, _without_floats(data)], sort_keys=True)


def _without_floats(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_floats(item) for item in value]
    return "number" if isinstance(value, float) else value
