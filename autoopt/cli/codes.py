"""The exit codes of the contract that no exception carries."""

from __future__ import annotations

OWN_ERROR = 1
USAGE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell shows for a process whose reader went away: 128 + SIGPIPE."""
