"""The group of commands: each is one file, imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib

import click

from autoopt import __version__

COMMANDS = (
    "optimize",
    "profile",
    "resume",
    "report",
    "export",
    "apply",
    "revert",
    "run",
    "train",
    "verify",
    "compare",
    "judge",
    "bisect",
    "latency",
    "mcp",
    "strategies",
    "doctor",
)
"""In the order of the contract's table; ``autoopt.cli.NAME`` holds the command ``NAME_command``."""


class LazyGroup(click.Group):
    """Finds commands by name in this package, so that one command does not pay for another's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"autoopt.cli.{cmd_name}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name.lower(), COMMANDS, n=1)
            tail = f"did you mean {near[0]}?" if near else f"there are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {name!r}; {tail}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="autoopt %(version)s")
def cli() -> None:
    """Makes a PyTorch training run reach its target faster, and proves it.

    Standard output carries the result alone, progress goes to standard error.
    """
