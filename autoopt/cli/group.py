"""The group of commands: each is one file, imported when it is asked for."""

from __future__ import annotations

import importlib
from itertools import chain

import click

from autoopt import __version__
from autoopt.errors import nearest
from autoopt.options.options import GROUPS

COMMAND_GROUPS = {
    "Search": ("optimize", "profile", "resume"),
    "Use a result": ("report", "export", "apply", "revert", "run", "train", "verify"),
    "Compare": ("compare", "judge", "bisect"),
    "More": ("latency", "mcp", "strategies", "doctor"),
}
"""The commands as the help lists them; ``autoopt.cli.NAME`` holds the command ``NAME_command``, but for ``revert``."""
COMMANDS = tuple(chain(*COMMAND_GROUPS.values()))


class Command(click.Command):
    """A command whose help groups the options, and names a flag without its ``--no-`` form."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {p.opts[0]: p.get_help_record(ctx) for p in self.get_params(ctx) if isinstance(p, click.Option)}
        shared = {title: [f"--{key}" for key in group] for title, group in GROUPS.items()}
        shared["Output"].append("-h")
        groups = {title: [name for name in names if name in options] for title, names in shared.items()}
        groups = {title: names for title, names in groups.items() if len(names) > 1}  # one option needs no title
        own = [name for name in options if name not in chain(*groups.values())]
        for title, names in {"Options": own, **groups}.items():
            records = [options[name] or (name, "") for name in names]
            if records:
                with formatter.section(title):
                    formatter.write_dl([(words.split(" / ")[0], text) for words, text in records])


class LazyGroup(click.Group):
    """Finds commands by name in this package, so that one command does not pay for another's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = "apply" if cmd_name == "revert" else cmd_name
        command = getattr(importlib.import_module(f"autoopt.cli.{module}"), f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                formatter.write_dl(
                    [(name.ljust(width), each.get_short_help_str(90)) for name, each in commands if each]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"there is no command {name!r}; {nearest(name, COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="autoopt %(version)s")
def cli() -> None:
    """Make a PyTorch training run reach its target faster, and show how sure that is.

    \b
    Example:
      autoopt optimize train.py --budget 1h -- --epochs 10

    The result goes to standard output, progress to standard error.
    """
