"""``autoopt export``: the winning plan as code or configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoopt.cli.group import Command
from autoopt.cli.output import say, write_file, write_line
from autoopt.errors import UsageError

if TYPE_CHECKING:
    from autoopt.records import Result

FORMATS = ("pytorch", "lightning", "transformers", "accelerate")


@click.command("export", cls=Command)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="Format of the output.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Output file.  [default: standard output]")
@click.option(
    "--code",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write what arguments cannot express: a Callback (lightning) or a function (transformers).",
)
def export_command(run: Path, target: str, out: Path | None, code: Path | None) -> int:
    """Write the plan of a run as code or configuration.

    \b
    Example:
      autoopt export autoopt-runs/RUN --to lightning

    RUN is a run directory or its result.json. Changes that the format cannot express are listed on standard error.
    """
    if code is not None and not (code.suffix == ".py" and code.stem.isidentifier()):
        raise UsageError(f"--code {code} cannot be imported", hint="such as --code optimized_trainer.py")
    from autoopt.records.reading import read_result

    result = read_result(run)
    text, notes = _exported(result, run, target, code)
    for note in notes:
        say(note)
    if out is None:
        write_line(text.rstrip("\n"))
        return 0
    write_file(out, text)
    write_line(str(out))
    return 0


def _exported(result: Result, run: Path, target: str, path: Path | None) -> tuple[str, tuple[str, ...]]:
    from autoopt.export import export

    if path is None:
        return export(result, target, directory=run if run.is_dir() else run.parent)
    from autoopt.export.targets import trainer_code
    from autoopt.registry import load_strategies

    code = trainer_code(result, target, load_strategies(result.reproduce.strategies))
    write_file(path, code.text)
    say(f"{path}: {', '.join(sorted(code.covered)) or 'nothing that arguments could not say'}")
    return export(result, target, code=code, module=path.stem)
