"""``autoopt mcp``: the same for coding agents, on stdio."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.group import Command
from autoopt.cli.output import write_line
from autoopt.cli.parameters import path_option


@click.command("mcp", cls=Command)
@path_option("--workspace", default=Path(), metavar="DIR", help="Folder that clients may use.  [default: .]")
@click.option("--install", is_flag=True, help="Write a skill for each coding agent found here, and exit.")
def mcp_command(workspace: Path, install: bool) -> int:
    """Serve coding agents over the Model Context Protocol.

    \b
    Example:
      autoopt mcp --workspace path/to/project

    The client starts this command and talks to it over standard input and output. Tools: profile, opportunities,
    compare, apply, report. autoopt reads and runs nothing outside of the workspace; your scripts may read any file.
    """
    if install:
        from autoopt.toolserver import skill

        for name, path in skill.install(workspace, Path.home()):
            write_line(f"{name}: wrote {path}")
        return 0
    from autoopt.toolserver.server import make_server
    from autoopt.toolserver.workspace import Workspace

    make_server(Workspace(workspace)).run()
    return 0
