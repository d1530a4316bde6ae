"""The options of ``optimize``: one table for the command line, ``[tool.autoopt]`` and the Python API.

A value is read, refused and explained alike wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoopt.errors import UsageError, nearest
from autoopt.options import parsers

TRACKERS = ("mlflow", "tensorboard", "wandb")
TARGETS = ("pytorch", "lightning", "transformers", "accelerate")
"""Ways of training that a plan is exported for, each a field of a change's snippets."""


@dataclass(frozen=True)
class Options:
    """Options of ``autoopt optimize``; :data:`GROUPS` says what each means.

    ``tolerance`` and ``min_gain`` are fractions (0.01 is 1 %), ``memory_limit`` is bytes, on the CPU those of tensors
    that are alive. ``only``, ``skip``: names of strategies; an empty ``only`` means all. ``nproc``: ``4``, the baseline
    too, or ``1..4``, up to which ``ddp`` may go. ``tune``: such as ``lr=log:0.0001..0.01``. None: it was not given.
    """

    budget_seconds: float = 7200.0
    target: float | None = None
    metric: str | None = None
    tolerance: float = 0.005
    accept_undecided: bool = False
    min_gain: float = 0.01
    price: float | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    allow: tuple[str, ...] = parsers.DEFAULT_RISKS
    tune: tuple[str, ...] = ()
    seed: int = 0
    device: str = "auto"
    memory_limit: int | None = None
    nproc: str | None = None
    parallel: int = 1
    executor: str = "local"
    out: Path | None = None
    log: tuple[str, ...] = ()
    json: bool = False
    quiet: bool = False
    open: bool = False

    @property
    def processes(self) -> tuple[int, int]:
        """Processes that the baseline trains in, and the most that a plan may."""
        least, _, most = (self.nproc or "1").partition("..")
        return int(least), int(most or least)


def _whole(least: int, most: int, wanted: str, example: str) -> Callable[[object], int]:
    return lambda value: parsers.parse_whole(value, least, most, wanted, f"such as {example}")


Option = tuple[Callable[[object], Any], str | None, str]
"""The parser of its value, the word for it in the help (None: a flag), and the help."""
GROUPS: dict[str, dict[str, Option]] = {
    "Budget and goal": {
        "budget": (parsers.parse_duration, "TIME",
                   "Wall-clock time of the command: 10m, 1h30m, 90s.  [default: 2h]"),
        "target": (partial(parsers.parse_number, example="0.93"), "NUMBER",
                   "Metric value to reach.  [default: the workload's]"),
        "metric": (parsers.parse_pattern, "PATTERN",
                   "How to find a script's metric: 'val loss ([0-9.]+)', or a tracker's key."),
        "tolerance": (partial(parsers.parse_percent, most=1.0), "PERCENT",
                      "Accepted loss of the target metric.  [default: 0.5%]"),
        "accept-undecided": (parsers.parse_flag, None, "Also keep changes whose quality is undecided."),
        "min-gain": (partial(parsers.parse_percent, most=10.0), "PERCENT",
                     "Smallest gain that is kept.  [default: 1%]"),
        "price": (partial(parsers.parse_number, least=0.0, example="3.50"), "NUMBER",
                  "Price of a device hour, to report costs."),
    },
    "Search": {
        "only": (parsers.parse_list, "NAMES", "Strategies to try, comma-separated.  [default: all]"),
        "skip": (parsers.parse_list, "NAMES", "Strategies to leave out, comma-separated."),
        "strategies": (parsers.parse_specs, "MODULE:CLASS", "Your own strategies, comma-separated."),
        "allow": (parsers.parse_allow, "CLASSES", "Risk classes to add: model.  [default: exact,numeric,training]"),
        "tune": (parsers.parse_tune, "RANGES",
                 "Hyper-parameters to search: lr=1e-4..1e-2,weight_decay=log:1e-6..1e-2."),
        "seed": (_whole(0, 2**32 - 1, "a seed is a whole number from 0 to 4294967295", "0"), "INTEGER",  # NumPy's range
                 "Seed of Python, NumPy and torch.  [default: 0]"),
    },
    "Machine": {
        "device": (parsers.parse_device, "DEVICE", "auto, cpu, cuda, cuda:1 or mps.  [default: auto]"),
        "memory-limit": (parsers.parse_size, "SIZE", "Device memory for a training: 8GiB.  [default: all]"),
        "nproc": (parsers.parse_nproc, "N|1..N", "Processes per training; 1..N: try up to N.  [default: 1]"),
        "parallel": (_whole(1, 9999, "pairs of trials at the same time are a whole number from 1", "4"), "N",
                     "Candidates screened at once, one device each.  [default: 1]"),
        "executor": (parsers.parse_executor, "NAME",
                     "Where trials run: local, ray or ray://HOST:PORT.  [default: local]"),
    },
    "Output": {
        "out": (parsers.parse_path, "DIR", "Run directory.  [default: autoopt-runs/<module>-<date>-<time>]"),
        "log": (partial(parsers.parse_choices, choices=TRACKERS), "NAMES",
                "Trackers to log to: mlflow, tensorboard, wandb."),
        "json": (parsers.parse_flag, None, "Print the result as one JSON document."),
        "quiet": (parsers.parse_flag, None, "Show no progress."),
        "open": (parsers.parse_flag, None, "Open the report in the browser."),
    },
}  # fmt: skip
"""All options by key, as the help groups them."""
OPTIONS = {key: option for group in GROUPS.values() for key, option in group.items()}


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
        if key not in OPTIONS:
            raise UsageError(f"{label(given, value)}: there is no such option", hint=nearest(key, OPTIONS))
        if value is None:
            continue
        name = "budget_seconds" if key == "budget" else key.replace("-", "_")
        try:
            parsed[name] = OPTIONS[key][0](value)
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
                raise UsageError(f"--{key}: there is no strategy {name!r}", hint=nearest(name, risks))
    for risk in options.allow:
        if risk not in parsers.DEFAULT_RISKS and risk not in risks.values():
            raise UsageError(
                f"--allow {risk}: there is no strategy of that risk class",
                hint="name your own with --strategies MODULE:CLASS, or leave --allow out",
            )
