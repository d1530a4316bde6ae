"""``autoopt export``: the winning plan as code or configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoopt.cli.output import say, write_line
from autoopt.errors import EnvironmentLacks, UsageError

if TYPE_CHECKING:
    from autoopt.records import Result

FORMATS = ("pytorch", "lightning", "transformers", "accelerate")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="What to write it for.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to; else to standard output.")
@click.option("--patch", type=click.Path(path_type=Path), metavar="FILE", help="A diff of your own FILE instead.")
@click.option("--write", is_flag=True, help="With --patch: change the file itself, too.")
def export_command(run: Path, target: str, out: Path | None, patch: Path | None, write: bool) -> int:
    """Writes the winning plan of a run as code or configuration.

    RUN is a run directory or its result.json. What the target cannot express is said on standard error. --patch
    shows a diff of a file of your own where its DataLoader or Trainer stands in plain sight.
    """
    if write and patch is None:
        raise UsageError("--write changes the file that --patch names", hint="such as --patch train.py --write")
    from autoopt.documents import read_result

    result = read_result(run)
    text, notes = _patched(result, patch, write) if patch is not None else _exported(result, target)
    for note in notes:
        say(note)
    if out is None:
        write_line(text.rstrip("\n"))
        return 0
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentLacks(f"cannot write {out}: {error.strerror or error}") from None
    write_line(str(out))
    return 0


def _exported(result: Result, target: str) -> tuple[str, tuple[str, ...]]:
    from autoopt.export import export

    return export(result, target)


def _patched(result: Result, path: Path, write: bool) -> tuple[str, tuple[str, ...]]:
    from autoopt.export.patch import patch
    from autoopt.registry import load_strategies

    return patch(path, result.best.plan, load_strategies(result.reproduce.strategies), write=write)
