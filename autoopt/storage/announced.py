"""The events that a journal holds, so that a resumed run knows what was announced before it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from autoopt.events import Event, RunEnded, Stopped, TrialProgress
from autoopt.records import JsonDict

NOT_JOURNALED = (TrialProgress,)
_ENDS = (Stopped, RunEnded)
"""An interrupted run has said that it ended; the end of the resumed one is another."""


def content(event: Event) -> JsonDict:
    """The content of an event that the journal keeps; the result of a run has a file of its own."""
    return event.model_dump(exclude={"at", "replayed", "result"})


class Announced:
    """Events that earlier processes of a run announced; each is recognized as often as it was.

    Measured numbers are left out of the comparison: seconds are told apart by when the clock was looked at.

    Args:
        records: of the journal.
    """

    def __init__(self, records: Iterable[JsonDict]) -> None:
        self._left = Counter(
            _identity(str(record["event"]), record.get("data")) for record in records if record.get("type") == "event"
        )

    def __call__(self, event: Event) -> bool:
        """Whether an earlier process announced this."""
        if isinstance(event, (*_ENDS, *NOT_JOURNALED)):
            return False
        identity = _identity(type(event).__name__, content(event))
        if not self._left[identity]:
            return False
        self._left[identity] -= 1
        return True


def _identity(name: str, data: object) -> str:
    return json.dumps([name, _without_floats(data)], sort_keys=True)


def _without_floats(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_floats(item) for item in value]
    return "number" if isinstance(value, float) else value
