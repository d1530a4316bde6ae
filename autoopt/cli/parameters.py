"""Options that commands share, and how the words of a command line become :class:`Options`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autoopt.cli.output import stdout_kept
from autoopt.errors import EnvironmentLacks
from autoopt.options import Options, make_options
from autoopt.options.pyproject import read_config

if TYPE_CHECKING:
    from autoopt.script.command import Build, Script

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, dict[str, Any]] = {
    "budget": {"metavar": "TIME", "help": "Wall-clock time of the command: 2h, 1h30m, 45s.  [default: 2h]"},
    "target": {"metavar": "NUMBER", "help": "Metric value to reach.  [default: the workload's]"},
    "tolerance": {"metavar": "PERCENT", "help": "Accepted loss of the target metric.  [default: 0.5%]"},
    "min-gain": {"metavar": "PERCENT", "help": "Smallest gain that is kept.  [default: 1%]"},
    "device": {"metavar": "DEVICE", "help": "auto, cpu, cuda, cuda:1 or mps.  [default: auto]"},
    "memory-limit": {"metavar": "SIZE", "help": "Device memory for a training: 8GiB.  [default: all]"},
    "seed": {"metavar": "INTEGER", "help": "Seed of Python, NumPy and torch.  [default: 0]"},
    "only": {"multiple": True, "metavar": "NAMES", "help": "Strategies to try, comma-separated.  [default: all]"},
    "skip": {"multiple": True, "metavar": "NAMES", "help": "Strategies to leave out, comma-separated."},
    "strategies": {
        "multiple": True,
        "metavar": "MODULE:CLASS",
        "help": "Your own strategies, comma-separated.",
    },
    "allow": {
        "multiple": True,
        "metavar": "CLASSES",
        "help": "Risk classes to add: model.  [default: exact,numeric,training]",
    },
    "executor": {"metavar": "NAME", "help": "Where trials run: local, ray or ray://HOST:PORT.  [default: local]"},
    "nproc": {"metavar": "N|1..N", "help": "Processes per training; 1..N: try up to N.  [default: 1]"},
    "parallel": {
        "metavar": "N",
        "help": "Candidates screened at once, one device each.  [default: 1]",
    },
    "tune": {
        "multiple": True,
        "metavar": "RANGES",
        "help": "Hyper-parameters to search: lr=1e-4..1e-2,weight_decay=log:1e-6..1e-2.",
    },
    "price": {"metavar": "NUMBER", "help": "Price of a device hour, to report costs."},
    "log": {"multiple": True, "metavar": "NAMES", "help": "Trackers to log to: mlflow, tensorboard, wandb."},
    "metric": {
        "metavar": "PATTERN",
        "help": "How to find a script's metric: 'val loss ([0-9.]+)', or a tracker's key.",
    },
    "out": {"metavar": "DIR", "help": "Run directory.  [default: autoopt-runs/<module>-<date>-<time>]"},
}
_FLAGS = {
    "accept-undecided": "Also keep changes whose quality is undecided.",
    "json": "Print the result as one JSON document.",
    "quiet": "Show no progress.",
    "open": "Open the report in the browser.",
}


def optimize_options(*keys: str, **helps: str) -> Callable[[F], F]:
    """Adds options of ``optimize`` to a command, with the same spelling everywhere.

    Values stay text: they are read by :func:`read_options`, as those of ``[tool.autoopt]`` are.

    Args:
        keys: which of them.
        helps: of a key that means another thing here, or has another default.
    """

    def decorate(function: F) -> F:
        for key in reversed(keys):
            if key in _FLAGS:
                option = click.option(f"--{key}/--no-{key}", default=None, help=_FLAGS[key])
            else:
                option = click.option(f"--{key}", **{**_OPTIONS[key], "help": helps.get(key, _OPTIONS[key]["help"])})
            function = option(function)
        return function

    return decorate


def read_options(given: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Options:
    """Options from the words of a command over a configuration.

    Args:
        config: None: the nearest ``[tool.autoopt]``.

    Raises:
        UsageError: a bad value, or an unknown or bad key of ``[tool.autoopt]``.
        EnvironmentLacks: the present directory has been deleted.
    """
    words = {key.replace("_", "-"): None if value == () else value for key, value in given.items()}
    if config is None:
        try:
            config = read_config(Path.cwd())
        except OSError as error:
            why = f"there is no present directory: {error.strerror}"
            raise EnvironmentLacks(why, hint="cd somewhere else") from None
    return make_options(words, config, label=_label)


def chosen(workload: str | None, words: tuple[str, ...], options: Options) -> Build | Script:
    """The workload to train, checked before torch is imported, which begins then.

    Raises:
        UsageError, WorkloadError, EnvironmentLacks: as of ``autoopt.running.baseline_spec``.
    """
    from autoopt.running.baseline_spec import check_command
    from autoopt.script.command import read
    from autoopt.trial.start import begin_server

    found = read(workload, words)
    with stdout_kept():
        check_command(found, options)
    begin_server()
    return found


def _label(key: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{key}"
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(f"--{key} {shlex.quote(str(item))}" for item in values)
