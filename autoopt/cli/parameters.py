"""Options that commands share, and how the words of a command line become :class:`Options`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from autoopt.errors import EnvironmentLacks
from autoopt.options import Options, make_options
from autoopt.options.pyproject import read_config

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, dict[str, Any]] = {
    "budget": {"metavar": "TIME", "help": "Wall-clock time of the whole run: 2h, 90m, 1h30m, 45s.  [default: 2h]"},
    "target": {"metavar": "NUMBER", "help": "The metric to reach; replaces the value of the workload's Target."},
    "tolerance": {"metavar": "PERCENT", "help": "How much of the target metric may be lost.  [default: 0.5%]"},
    "min-gain": {"metavar": "PERCENT", "help": "A gain below this is not worth keeping.  [default: 1%]"},
    "device": {"metavar": "DEVICE", "help": "auto, cpu, cuda, cuda:1 or mps.  [default: auto]"},
    "memory-limit": {"metavar": "SIZE", "help": "Of the device, for a training: 8GiB.  [default: all there is]"},
    "seed": {"metavar": "INTEGER", "help": "Seeds Python, NumPy and torch in every trial.  [default: 0]"},
    "only": {"multiple": True, "metavar": "NAMES", "help": "Try these strategies alone (comma-separated)."},
    "skip": {"multiple": True, "metavar": "NAMES", "help": "Leave these strategies out (comma-separated)."},
    "strategies": {
        "multiple": True,
        "metavar": "MODULE:CLASS",
        "help": "Further strategies of your own (comma-separated).",
    },
    "allow": {
        "multiple": True,
        "metavar": "CLASSES",
        "help": "Further risk classes: model. exact, numeric and training are on.",
    },
    "executor": {"metavar": "NAME", "help": "Where trials run: local, ray or ray://HOST:PORT.  [default: local]"},
    "nproc": {"metavar": "N|1..N", "help": "Processes that train together; 1..N tries up to N.  [default: 1]"},
    "parallel": {
        "metavar": "N",
        "help": "Candidates looked at at once, each on a device of its own.  [default: 1]",
    },
    "tune": {
        "multiple": True,
        "metavar": "RANGES",
        "help": "Search hyper-parameters of the optimizer: lr=1e-4..1e-2,weight_decay=log:1e-6..1e-2.",
    },
    "price": {"metavar": "NUMBER", "help": "What an hour of the device costs, for cost-to-target."},
    "log": {"multiple": True, "metavar": "NAMES", "help": "Trackers that follow: mlflow, tensorboard, wandb."},
    "metric": {"metavar": "PATTERN", "help": "Where a script tells its metric: 'val loss ([0-9.]+)', or a key."},
    "out": {"metavar": "DIR", "help": "The run directory.  [default: autoopt-runs/<module>-<date>-<time>]"},
}
_FLAGS = {
    "accept-undecided": "Keep changes whose quality is not proven to be as good.",
    "json": "Print the result as one JSON document.",
    "quiet": "No progress on standard error.",
    "open": "Show the report in the browser.",
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


def read_options(given: Mapping[str, Any]) -> Options:
    """Options from the words of a command over the nearest ``[tool.autoopt]``.

    Raises:
        UsageError: a bad value, or an unknown or bad key of ``[tool.autoopt]``.
    """
    words = {key.replace("_", "-"): None if value == () else value for key, value in given.items()}
    return make_options(words, read_config(here()), label=_label)


def here() -> Path:
    """The present directory.

    Raises:
        EnvironmentLacks: it has been deleted.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise EnvironmentLacks(f"there is no present directory: {error.strerror}", hint="cd somewhere else") from None


def _label(key: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{key}"
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(f"--{key} {shlex.quote(str(item))}" for item in values)
