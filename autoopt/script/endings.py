"""How scripts end that cannot be measured further; torch is not imported here, so that the script's own import is."""

from __future__ import annotations

from autoopt.errors import TrialFailed, WorkloadError

ENDED = "script ended"
"""Where a trial failed whose script has come to its end."""


class ScriptEnded(TrialFailed):
    """The script came to its end before it had trained as far as it was asked to."""

    def __init__(self, steps: int) -> None:
        super().__init__(
            "error",
            f"the script ended after {steps} training steps, before they could be measured: give it more to train, "
            "such as more epochs behind --",
            where=ENDED,
        )


def of_training(error: BaseException | None, steps: int) -> BaseException:
    """What those are told who wait for a script that has ended after so many training steps.

    One that leaves by itself has come to its end, whatever it leaves with.
    """
    if error is None or (isinstance(error, SystemExit) and steps):
        return ScriptEnded(steps)
    return of_reading(error) or error


def of_reading(error: BaseException) -> WorkloadError | None:
    """The message on a script that asks its user; None of any other error."""
    if isinstance(error, EOFError) and "reading a line" in str(error):
        return WorkloadError(
            "the script asks for something on standard input, which is empty while it is measured",
            hint="give the answer as one of its words behind --",
        )
    return None


def of_leaving(error: BaseException) -> WorkloadError | None:
    """The message on a script that leaves before it has trained, as it does over unknown words; None of others."""
    if not isinstance(error, SystemExit):
        return None
    how = error.code if isinstance(error.code, str) else f"exit code {error.code}"
    return WorkloadError(
        f"the script left by itself before its first training step: {how}",
        hint="what it printed last stands below; its own words stand behind --",
    )
