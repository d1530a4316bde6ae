"""``autoopt export``: the winning plan as code or configuration."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.output import say, write_line
from autoopt.errors import EnvironmentLacks

FORMATS = ("pytorch", "lightning", "transformers", "accelerate")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="What to write it for.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to; else to standard output.")
def export_command(run: Path, target: str, out: Path | None) -> int:
    """Writes the winning plan of a run as code or configuration.

    RUN is a run directory or its result.json. What the target cannot express is said on standard error.
    """
    from autoopt.documents import read_result

    result = read_result(run)
    from autoopt.export import export

    text, notes = export(result, target)
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
