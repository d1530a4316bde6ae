"""One command of autoopt in a process of its own: its lines are progress, and it ends when nobody waits any more."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from autoopt.errors import AutooptError
from autoopt.options.pyproject import CEILING
from autoopt.toolserver.workspace import Workspace

Report = Callable[[str], Awaitable[None]]

_PATIENCE = 15.0
_ANSWERED = (0, 5, 6, 7)
"""Exit codes of commands that have printed their document; 5: what was required does not hold; 6, 7: of ``judge``."""


class CommandFailedError(AutooptError):
    """A command ended with an error; the message is its own."""


class Commands:
    """Runs commands in a workspace, one at a time: two measurements would disturb each other.

    Args:
        workspace: where they run.
        words: of autoopt itself; tests put in their own.
    """

    def __init__(self, workspace: Workspace, words: Sequence[str] = (sys.executable, "-P", "-m", "autoopt")) -> None:
        self.workspace, self._words = workspace, tuple(words)
        self._turn = anyio.Lock()

    async def json(self, words: Sequence[str], report: Report) -> Any:
        """The document that a command prints.

        Raises:
            CommandFailedError: it failed.
        """
        text = await self.text(words, report)
        return json.loads(text)

    async def text(self, words: Sequence[str], report: Report) -> str:
        """The standard output of a command; its progress goes to ``report``, line by line."""
        async with self._turn:
            process = await anyio.open_process(
                [*self._words, *words],
                cwd=self.workspace.root,
                stdin=DEVNULL,
                env=environment(self.workspace.root),
                start_new_session=True,
            )
            try:
                return await self._followed(process, report)
            finally:
                with anyio.CancelScope(shield=True):
                    await _ended(process)

    async def _followed(self, process: Process, report: Report) -> str:
        printed: list[str] = []
        reported: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None

        async def tell(stream: Any) -> None:
            begun = ""
            async for chunk in TextReceiveStream(stream, errors="replace"):
                *lines, begun = (begun + chunk).split("\n")
                for line in filter(None, map(str.strip, lines)):
                    reported.append(line)
                    await report(line)
            if begun.strip():
                reported.append(begun.strip())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell, process.stderr)
            async for chunk in TextReceiveStream(process.stdout):
                printed.append(chunk)
        code = await process.wait()
        if code not in _ANSWERED:
            first = next((i for i, line in enumerate(reported) if "error:" in line), max(len(reported) - 5, 0))
            raise CommandFailedError("\n".join(reported[first:])[:2000] or f"it ended with exit code {code}")
        return "".join(printed)


async def _ended(process: Process) -> None:
    """Ends a command that nobody waits for: asked once, asked twice, then with all that it started."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            break
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with anyio.move_on_after(_PATIENCE):
            await process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def environment(root: Path) -> dict[str, str]:
    """Of a command: it looks for no configuration or repository outside of the workspace."""
    own = {
        CEILING: str(root),
        "GIT_CEILING_DIRECTORIES": str(root.parent),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }
    return {**os.environ, **own}
