"""Options that commands share, and how the words of a command line become :class:`Options`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autoopt.cli.output import stdout_kept
from autoopt.errors import EnvironmentLacks
from autoopt.options import OPTIONS, Options, make_options
from autoopt.options.pyproject import read_config

if TYPE_CHECKING:
    from autoopt.script.command import Build, Script

F = TypeVar("F", bound=Callable[..., Any])

_MULTIPLE = {"NAMES", "MODULE:CLASS", "CLASSES", "RANGES"}


def optimize_options(*keys: str, budget: str | None = None) -> Callable[[F], F]:
    """Adds options of ``optimize`` to a command, with the same spelling everywhere.

    Values stay text: they are read by :func:`read_options`, as those of ``[tool.autoopt]`` are.

    Args:
        keys: which of them.
        budget: the default of ``--budget``, where it is another one; it wins over ``[tool.autoopt]``.
    """

    def decorate(function: F) -> F:
        for key in reversed(keys):
            _, metavar, text = OPTIONS[key]
            if metavar is None:
                option = click.option(f"--{key}/--no-{key}", default=None, help=text)
            else:
                given = budget if key == "budget" else None
                text = text.replace("[default: 2h]", f"[default: {budget or '2h'}]")
                multiple = metavar in _MULTIPLE
                option = click.option(f"--{key}", metavar=metavar, multiple=multiple, default=given, help=text)
            function = option(function)
        return function

    return decorate


def path_option(*names: str, metavar: str = "FILE", **more: Any) -> Callable[[F], F]:
    """An option that names a file or a folder."""
    return click.option(*names, type=click.Path(path_type=Path), metavar=metavar, **more)


plan_option = path_option("--plan", required=True, help="plan.json of a run.")
"""Of commands that train with a plan."""
run_argument = click.argument("run", type=click.Path(path_type=Path))
"""A run directory or its result.json."""


def workload_arguments(
    metavar: str = "SCRIPT|MODULE:ATTR", words: str = "[-- ARGUMENTS]", *, required: bool = False
) -> Callable[[F], F]:
    """The arguments that name what is trained: a function, or a script with its own words."""

    def decorate(function: F) -> F:
        function = click.argument("words", metavar=words, nargs=-1, type=click.UNPROCESSED)(function)
        return click.argument("workload", metavar=metavar, required=required)(function)

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
