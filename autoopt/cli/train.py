"""``autoopt train``: the real training run with a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import INTERRUPTED, answer, stdout_kept
from autoopt.cli.parameters import optimize_options, plan_option, read_options

if TYPE_CHECKING:
    from autoopt.trackers import Tracker
    from autoopt.train import Trained
    from autoopt.train.run import Progress


@click.command("train", cls=Command)
@click.argument("workload", metavar="MODULE:ATTR")
@plan_option
@optimize_options("target", "device", "seed", "strategies", "price", "log", "out", "json", "quiet")
def train_command(workload: str, plan: Path, **given: Any) -> int:
    """Train a build() workload with a plan, with checkpoints.

    \b
    Example:
      autoopt train my_module:build --plan autoopt-runs/RUN/plan.json

    Training ends at the target. Ctrl-C ends it after the current step and saves a checkpoint; the same command
    continues from there.
    """
    options = read_options(given)
    from autoopt.loading.importing import check_spec
    from autoopt.records.reading import read_plan
    from autoopt.registry import load_strategies
    from autoopt.storage.run_directory import compiler_cache_of
    from autoopt.trackers import check_installed

    check_spec(workload)
    check_installed(options.log)
    document = read_plan(plan)
    with stdout_kept():
        setup = load_strategies(options.strategies).fold(document)
    set_environment({**compiler_cache_of(plan), **setup.flags.get("env", {})})
    start_processes(setup.distributed.processes)
    from autoopt.trackers import following
    from autoopt.train import train_run

    with following(options.log) as trackers, stdout_kept():
        outcome = train_run(workload, document, options, listeners=[scalars_of(each) for each in trackers])
    if os.environ.get("RANK", "0") == "0":  # the first process speaks for all
        answer(outcome, lines(outcome), as_json=options.json)
    return INTERRUPTED if outcome.stopped == "interrupted" else 0


def set_environment(wanted: dict[str, object]) -> None:
    """Sets a plan's environment variables before torch is imported, which reads them only then.

    Where a strategy of the user's has imported it already, this process begins anew with them set.
    """
    missing = {name: str(value) for name, value in wanted.items() if os.environ.get(name) != str(value)}
    os.environ.update(missing)
    if missing and "torch" in sys.modules and sys.argv[1:2] == ["train"]:  # as a command, not within another program
        os.execve(sys.executable, sys.orig_argv, os.environ)


def start_processes(processes: int, become: Callable[..., Any] = os.execv) -> None:
    """Becomes torchrun with this same command in every process, where there are to be several and this is not one."""
    if processes == 1 or "RANK" in os.environ or sys.argv[1:2] != ["train"]:
        return
    how = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "autoopt"]
    become(sys.executable, [sys.executable, *how, *sys.argv[1:]])


def scalars_of(tracker: Tracker) -> Callable[[Progress], None]:
    """Sends a tracker the loss, the speed and what was evaluated."""

    def tell(progress: Progress) -> None:
        values = {"train/loss": progress.loss} if progress.loss is not None else {}
        if progress.samples is not None:
            values["train/samples_per_second"] = progress.samples / max(progress.seconds, 1e-9)
        tracker.scalars(progress.step, {**values, **{f"valid/{k}": v for k, v in progress.metrics.items()}})

    return tell


def lines(outcome: Trained) -> Iterator[str]:
    """The text of the command: how it ended, what it reached, what it took."""
    reached = {True: "target reached", False: "target not reached", None: "finished"}[outcome.reached]
    yield f"{reached} after {outcome.steps} steps in {outcome.seconds:.1f} s ({outcome.stopped})"
    for name, value in outcome.metrics.items():
        aim = f" (target {outcome.target:g})" if name == outcome.metric and outcome.target is not None else ""
        yield f"  {name}: {value:g}{aim}"
    if outcome.samples_per_second is not None:
        yield f"  samples per second: {outcome.samples_per_second:.4g}"
    if outcome.energy_joules is not None:
        yield f"  energy: {outcome.energy_joules:.4g} J"
    if outcome.cost is not None:
        yield f"  cost: {outcome.cost:.4g}"
    yield f"  checkpoint: {outcome.checkpoint}"
