"""``autoopt export``: the winning plan as code or configuration."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.group import Command
from autoopt.cli.output import say, write_file, write_line
from autoopt.cli.parameters import path_option, run_argument
from autoopt.errors import UsageError
from autoopt.options.options import TARGETS


@click.command("export", cls=Command)
@run_argument
@click.option("--to", "target", type=click.Choice(TARGETS), required=True, help="Format of the output.")
@path_option("--out", help="Output file.  [default: standard output]")
@path_option(
    "--code",
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
    from autoopt.export import export
    from autoopt.records.reading import read_result

    result = read_result(run)
    if code is None:
        text, notes = export(result, target, directory=run if run.is_dir() else run.parent)
    else:
        from autoopt.export.targets import trainer_code
        from autoopt.registry import load_strategies

        written = trainer_code(result, target, load_strategies(result.reproduce.strategies))
        write_file(code, written.text)
        say(f"{code}: {', '.join(sorted(written.covered)) or 'nothing that arguments could not say'}")
        text, notes = export(result, target, code=written, module=code.stem)
    for note in notes:
        say(note)
    if out is None:
        write_line(text.rstrip("\n"))
        return 0
    write_file(out, text)
    write_line(str(out))
    return 0
