"""The options of ``optimize``: one table for the command line, ``[tool.autoopt]`` and the Python API.

Each option has one parser, so that a value is read, refused and explained alike wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoopt.errors import UsageError
from autoopt.options import parsers

TRACKERS = ("mlflow", "tensorboard", "wandb")
TARGETS = ("pytorch", "lightning", "transformers", "accelerate")
"""Ways of training that a plan is exported for, each a field of a change's snippets."""


@dataclass(frozen=True)
class Options:
    """Options of ``autoopt optimize``.

    Args:
        budget_seconds: wall-clock seconds of the whole run.
        target: replaces the value of the workload's target.
        tolerance: how much of the target metric may be lost, as a fraction of it.
        accept_undecided: keeps changes whose quality is not verified, and says so.
        min_gain: the gain below which a change is not kept, as a fraction (0.01 is 1 %).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        memory_limit: bytes of the device that a training may take; None: all there are. On the CPU the tensors
            that are alive are counted against it.
        seed: seeds Python, NumPy and torch in every trial.
        only, skip: names of strategies; an empty ``only`` means all.
        strategies: import strings of further strategies, ``package.module:Class``.
        allow: the risk classes that are on.
        executor: where trials run: ``local``, ``ray`` (of this machine), or ``ray://host:port``.
        nproc: processes that train together: ``4``, the baseline too, or ``1..4``, up to which ``ddp`` may go; one
            where None.
        parallel: pairs of trials that may be measured at the same time, each on devices or a machine of its own.
        tune: hyper-parameters of the optimizer to search, ``lr=log:0.0001..0.01``; empty: none.
        price: what an hour of the device costs; None where it was not given.
        log: trackers that follow the run.
        metric: where a script reports its metric: a pattern with one group for the number, or a tracker's key.
        out: the run directory; None lets autoopt name one under ``autoopt-runs``.
        json, quiet, open: what the command prints and whether it shows the report.
    """

    budget_seconds: float = 7200.0
    target: float | None = None
    tolerance: float = 0.005
    accept_undecided: bool = False
    min_gain: float = 0.01
    device: str = "auto"
    memory_limit: int | None = None
    seed: int = 0
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    allow: tuple[str, ...] = parsers.DEFAULT_RISKS
    executor: str = "local"
    nproc: str | None = None
    parallel: int = 1
    tune: tuple[str, ...] = ()
    price: float | None = None
    log: tuple[str, ...] = ()
    metric: str | None = None
    out: Path | None = None
    json: bool = False
    quiet: bool = False
    open: bool = False

    @property
    def processes(self) -> tuple[int, int]:
        """Processes that the baseline trains in, and the most that a plan may."""
        least, _, most = (self.nproc or "1").partition("..")
        return int(least), int(most or least)


_PARSERS: dict[str, Callable[[object], Any]] = {
    "budget": parsers.parse_duration,
    "target": lambda value: parsers.parse_number(value, example="0.93"),
    "tolerance": lambda value: parsers.parse_percent(value, most=1.0),
    "accept-undecided": parsers.parse_flag,
    "min-gain": lambda value: parsers.parse_percent(value, most=10.0),
    "device": parsers.parse_device,
    "memory-limit": parsers.parse_size,
    "seed": lambda value: parsers.parse_whole(
        value, 0, 2**32 - 1, "a seed is a whole number from 0 to 4294967295", "such as 0"
    ),
    "only": parsers.parse_list,
    "skip": parsers.parse_list,
    "strategies": parsers.parse_specs,
    "allow": parsers.parse_allow,
    "executor": parsers.parse_executor,
    "nproc": parsers.parse_nproc,
    "parallel": lambda value: parsers.parse_whole(
        value, 1, 9999, "pairs of trials at the same time are a whole number from 1", "such as 4"
    ),
    "tune": parsers.parse_tune,
    "price": lambda value: parsers.parse_number(value, least=0.0, example="3.50"),
    "log": lambda value: parsers.parse_choices(value, TRACKERS),
    "metric": parsers.parse_pattern,
    "out": parsers.parse_path,
    "json": parsers.parse_flag,
    "quiet": parsers.parse_flag,
    "open": parsers.parse_flag,
}
"""Of each key, the parser of its value. A seed is one that NumPy takes."""
KEYS = tuple(_PARSERS)


def parse(raw: Mapping[str, object], label: Callable[[str, object], str]) -> dict[str, Any]:
    """Fields of :class:`Options` from raw values by key (``min-gain`` or ``min_gain``).

    Args:
        raw: values as they were given; None means not given.
        label: names a key and its value where it was given, for messages: ``--budget 2``.

    Raises:
        UsageError: an unknown key, with the nearest name; a bad value.
    """
    parsed: dict[str, Any] = {}
    for given, value in raw.items():
        key = given.replace("_", "-")
        if key not in _PARSERS:
            raise UsageError(f"{label(given, value)}: there is no such option", hint=parsers.nearest(key, KEYS))
        if value is None:
            continue
        name = "budget_seconds" if key == "budget" else key.replace("-", "_")
        try:
            parsed[name] = _PARSERS[key](value)
        except UsageError as error:
            raise UsageError(f"{label(given, value)}: {error.message}", hint=error.hint) from None
        except (ValueError, OverflowError):  # such as an integer of more digits than Python prints
            raise UsageError(f"{given}: not a value that can be used") from None
    return parsed


def make_options(
    given: Mapping[str, object],
    config: Mapping[str, Any] | None = None,
    *,
    label: Callable[[str, object], str] = lambda key, value: f"optimize({key.replace('-', '_')}={value!r})",
) -> Options:
    """Options from what was given, over what the configuration holds, over the defaults.

    Args:
        given: raw values by key; None means not given.
        config: fields that :func:`autoopt.options.pyproject.read_config` returned.
        label: see :func:`parse`; by default as a keyword of ``autoopt.optimize``.

    Raises:
        UsageError: an unknown key, a bad value, or a strategy both in ``only`` and in ``skip``.
    """
    merged = {**(config or {}), **parse(given, label)}
    options = Options(**merged)
    both = [name for name in options.only if name in options.skip]
    if both:
        raise UsageError(f"strategy {both[0]!r} stands in both only and skip", hint="keep it in one of them")
    return options


def check_names(options: Options, risks: Mapping[str, str]) -> None:
    """Checks the strategies that ``only`` and ``skip`` name, and ``allow``, against those that there are.

    Args:
        options: what was asked for.
        risks: the risk class of every strategy, by its name.

    Raises:
        UsageError: a strategy that does not exist, with the nearest name; ``allow`` of a class that no strategy has.
    """
    for key in ("only", "skip"):
        for name in getattr(options, key):
            if name not in risks:
                raise UsageError(f"--{key}: there is no strategy {name!r}", hint=parsers.nearest(name, tuple(risks)))
    for risk in options.allow:
        if risk not in parsers.DEFAULT_RISKS and risk not in risks.values():
            raise UsageError(
                f"--allow {risk}: there is no strategy of that risk class",
                hint="name your own with --strategies MODULE:CLASS, or leave --allow out",
            )
