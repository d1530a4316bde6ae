"""Orders of a script's process, in the environment variable that starts the listening."""

from __future__ import annotations

from autoopt.records import Record
from autoopt.trial.protocol import TrialSpec

VARIABLE = "AUTOOPT_SCRIPT"
PATH_WAS_UNSET = "AUTOOPT_SCRIPT_PATH_WAS_UNSET"


class Orders(Record):
    """``channel``: descriptor of the private pipe; None where the script trains for real, with a plan.

    ``writable``: folders that the script may write to; it is stopped where it would write elsewhere. None: anywhere.
    ``tell_imports``: the first answer tells what the script has imported up to its first step. ``began``: when its
    interpreter was started, by ``time.monotonic``; None where one that runs already took it over.
    """

    spec: TrialSpec
    channel: int | None = None
    writable: tuple[str, ...] | None = None
    tell_imports: bool = False
    began: float | None = None
