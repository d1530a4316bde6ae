"""``autoopt bisect``: which commit, or which package, made a training slower."""

from __future__ import annotations

from contextlib import nullcontext
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import answer, progress, stdout_kept
from autoopt.cli.parameters import optimize_options, path_option, read_options, workload_arguments
from autoopt.errors import UsageError

if TYPE_CHECKING:
    from autoopt.records import JsonDict


@click.command("bisect", cls=Command)
@workload_arguments(required=True)
@click.option("--good", metavar="REF", help="Revision that was fast.")
@click.option("--bad", metavar="REF", help="Later revision that is slower.  [default: HEAD]")
@path_option(
    "--lock", nargs=2, metavar="GOOD.txt BAD.txt", help="Two files of name==version lines, instead of revisions."
)
@click.option("--quality", is_flag=True, help="Find what made the loss worse, not the speed.")
@optimize_options("budget", "metric", "device", "strategies", "json", "quiet", budget="30m")
def bisect_command(
    workload: str,
    words: tuple[str, ...],
    good: str | None,
    bad: str | None,
    lock: tuple[Path, Path] | None,
    quality: bool,
    **given: Any,
) -> int:
    """Find the commit or package that made a training slower.

    \b
    Examples:
      autoopt bisect --good v1.2 --bad main -- python train.py --epochs 10
      autoopt bisect --lock before.txt after.txt -- python train.py --epochs 10

    Each step is compared with the good end, and noisy steps are measured again. The answer has a probability.
    """
    options = read_options(given)
    if (good is None) == (lock is None) or (lock is not None and bad is not None):
        raise UsageError("name --good REF (and --bad REF), or --lock GOOD.txt BAD.txt")
    from autoopt.script.command import read
    from autoopt.trial.start import begin_server

    chosen = read(workload, words)
    begin_server()
    from autoopt.comparing.bisection import Bisecting, commits, packages

    history = packages(*lock) if lock is not None else nullcontext(commits(str(good), bad or "HEAD"))
    with stdout_kept(), history as places:
        found = Bisecting(places, chosen, options, quality=quality, say=progress(options)).run()
    word = "worse" if quality else "slower"
    ratio = f"{exp(-found.loss):.4f} times the loss" if quality else f"{exp(found.loss):.3f}x the speed"
    steps = list(zip((place.name for place in places[1:]), found.probabilities, strict=False))
    likely = sorted((step for step in steps if step[1] >= 0.01), key=lambda step: -step[1])
    document: JsonDict = {
        "schema_version": 1, "step": likely[0][0] if found.place else None, "sure": found.sure,
        "comparisons": len(found.asked),
        "steps": [{"step": name, "probability": round(each, 4)} for name, each in steps],
        "loss" if quality else "speed": exp(-found.loss if quality else found.loss),
    }  # fmt: skip
    lines = [f"nothing made it {word}: the bad end has {ratio} of the good end"]
    if found.place is not None:
        sure = f"made it {word}" if found.sure else f"is the likeliest to have made it {word}"
        lines = [f"{likely[0][0]} {sure}: {ratio}, {len(found.asked)} comparisons"]
        lines += [f"  {each:6.1%}  {name}" for name, each in likely]
    answer(document, lines, as_json=options.json)
    return 0
