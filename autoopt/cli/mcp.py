"""``autoopt mcp``: the same for coding agents, on stdio."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.output import write_line


@click.command("mcp")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="The folder that clients may name files of.  [default: .]",
)
@click.option("--install", is_flag=True, help="Write a skill for the coding agents that are found, and end.")
def mcp_command(workspace: Path, install: bool) -> int:
    """Serves coding agents on stdio (Model Context Protocol).

    It speaks on standard input and output: a client starts it, not a person. Tools: profile, opportunities, compare,
    apply, report. Nothing outside of the workspace is read or run on a client's behalf; a script that lies in it is
    the user's own, and reads what it reads.
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
