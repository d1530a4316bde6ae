"""The exit codes of the contract that no exception carries."""

from __future__ import annotations

OWN_ERROR = 1
USAGE = 2
DOES_NOT_HOLD = 5
"""Measured, and what was required does not hold; undecided included."""
UNDECIDED, REFUSED = 6, 7
"""``judge``: more time may decide it; the candidate's speed is not believed."""
INTERRUPTED = 130
PIPE_CLOSED = 141
"""A shell's exit code of a process whose reader went away: 128 + SIGPIPE."""
