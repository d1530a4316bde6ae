"""The options of ``optimize``: one table for the command line, ``[tool.autoopt]`` and the Python API.

Each option has one parser, so that a value is read, refused and explained alike wherever it stands.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoopt.budget import parse_duration
from autoopt.errors import UsageError

RISK_CLASSES = ("exact", "numeric", "training", "model")
DEFAULT_RISKS = ("exact", "numeric", "training")
EXECUTORS = ("local", "ray")
TRACKERS = ("mlflow", "tensorboard", "wandb")

_PERCENT = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*%", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(iB|B)", re.ASCII)
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,4})?", re.ASCII)
_SPEC = re.compile(r"[^:\s]+:[^:\s]+")


@dataclass(frozen=True)
class Options:
    """What ``autoopt optimize`` was asked for.

    Args:
        budget_seconds: wall-clock seconds of the whole run.
        target: replaces the value of the workload's target.
        tolerance: how much of the target metric may be lost, as a fraction of it.
        min_gain: the gain below which a change is not kept, as a fraction (0.01 is 1 %).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        memory_limit: bytes of the device that a training may take; None: all there are. On the CPU the tensors
            that are alive are counted against it.
        seed: seeds Python, NumPy and torch in every trial.
        only, skip: names of strategies; an empty ``only`` means all.
        strategies: import strings of further strategies, ``package.module:Class``.
        allow: the risk classes that are on.
        executor: where trials run.
        price: what an hour of the device costs; None where it was not given.
        log: trackers that follow the run.
        out: the run directory; None lets autoopt name one under ``autoopt-runs``.
        json, quiet, open: what the command prints and whether it shows the report.
    """

    budget_seconds: float = 7200.0
    target: float | None = None
    tolerance: float = 0.005
    min_gain: float = 0.01
    device: str = "auto"
    memory_limit: int | None = None
    seed: int = 0
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    allow: tuple[str, ...] = DEFAULT_RISKS
    executor: str = "local"
    price: float | None = None
    log: tuple[str, ...] = ()
    out: Path | None = None
    json: bool = False
    quiet: bool = False
    open: bool = False


def parse_percent(value: object, *, most: float) -> float:
    """The fraction of a percentage from 0 % to ``most`` (a fraction): ``"0.5%"`` is 0.005.

    Raises:
        UsageError: no percent sign, not a number, or outside the range.
    """
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        number = _finite(value)
        if number is not None:
            text = str(value).strip()
            raise UsageError(f"a percentage needs its sign: {text}%?", hint="such as 0.5%, which is 0.005 of the whole")
        raise UsageError("not a percentage", hint="such as 0.5%")
    fraction = float(match[1]) / 100
    if not 0 <= fraction <= most:
        raise UsageError(f"must be from 0% to {most * 100:g}%", hint="such as 0.5%")
    return fraction


def parse_number(value: object, *, least: float = -math.inf, example: str) -> float:
    """A finite number above ``least``.

    Raises:
        UsageError: anything else.
    """
    number = _finite(value)
    if number is None:
        raise UsageError("not a finite number", hint=f"such as {example}")
    if number <= least:
        raise UsageError(f"must be above {least:g}", hint=f"such as {example}")
    return number


def parse_seed(value: object) -> int:
    """A whole number from 0 to 2**32 - 1, the seeds that NumPy takes.

    Raises:
        UsageError: anything else.
    """
    text = str(value).strip()
    if isinstance(value, bool | float) or not re.fullmatch(r"\d{1,10}", text, re.ASCII) or int(text) >= 2**32:
        raise UsageError("a seed is a whole number from 0 to 4294967295", hint="such as 0")
    return int(text)


def parse_device(value: object) -> str:
    """A device by name; whether this machine has it is found out when it is used.

    Raises:
        UsageError: no such kind of device.
    """
    if isinstance(value, str) and _DEVICE.fullmatch(value.strip()):
        return value.strip()
    raise UsageError("no such device", hint=_near(value, ("auto", "cpu", "cuda", "cuda:1", "mps")))


def parse_size(value: object) -> int:
    """Bytes of a size such as ``8GiB``, ``500MB`` or ``4096B``.

    Raises:
        UsageError: no unit, no number, or nothing at all.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match[3] == "iB" and not match[2]):
        raise UsageError("not a size with its unit", hint="such as 8GiB")
    size = int(float(match[1]) * (1024 if match[3] == "iB" else 1000) ** " KMGT".index(match[2] or " "))
    if size <= 0:
        raise UsageError("must be above 0", hint="such as 8GiB")
    return size


def parse_choice(value: object, choices: tuple[str, ...]) -> str:
    """One of some names.

    Raises:
        UsageError: with the nearest name.
    """
    if value in choices:
        return str(value)
    raise UsageError(f"{value!r} is none of {', '.join(choices)}", hint=_near(value, choices))


def parse_list(value: object) -> tuple[str, ...]:
    """Names from a comma-separated text, or from several such; each once, in their order.

    Raises:
        UsageError: no text in it, or nothing named.
    """
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise UsageError("a comma-separated list of names is wanted", hint='such as "workers,amp"')
    names = [name.strip() for part in parts for name in part.split(",")]
    named = tuple(dict.fromkeys(name for name in names if name))
    if not named:
        raise UsageError("names nothing", hint='such as "workers,amp"')
    return named


def parse_choices(value: object, choices: tuple[str, ...]) -> tuple[str, ...]:
    """A list of which every item is one of some names.

    Raises:
        UsageError: with the nearest name.
    """
    return tuple(parse_choice(item, choices) for item in parse_list(value))


def parse_allow(value: object) -> tuple[str, ...]:
    """The risk classes that are on: those by default and those named.

    Raises:
        UsageError: no such class.
    """
    named = parse_choices(value, RISK_CLASSES)
    return tuple(risk for risk in RISK_CLASSES if risk in DEFAULT_RISKS or risk in named)


def parse_specs(value: object) -> tuple[str, ...]:
    """Import strings of strategies.

    Raises:
        UsageError: one that is no ``MODULE:CLASS``.
    """
    specs = parse_list(value)
    wrong = next((spec for spec in specs if not _SPEC.fullmatch(spec)), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r} is no MODULE:CLASS", hint="such as my_pkg.my_mod:MyStrategy")
    return specs


def parse_path(value: object) -> Path:
    """A directory's name; it need not exist.

    Raises:
        UsageError: no text, empty, with a NUL in it, or in the home of nobody.
    """
    text = str(value) if isinstance(value, str | Path) else ""
    if not text.strip() or "\0" in text:
        raise UsageError("a directory is wanted", hint="such as runs/first")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError("there is no such home directory", hint="such as runs/first") from None


def parse_flag(value: object) -> bool:
    """True or false.

    Raises:
        UsageError: anything else.
    """
    if not isinstance(value, bool):
        raise UsageError("true or false is wanted")
    return value


# key: the name of the field in Options, and its parser
_TABLE: dict[str, tuple[str, Callable[[object], Any]]] = {
    "budget": ("budget_seconds", parse_duration),
    "target": ("target", lambda value: parse_number(value, example="0.93")),
    "tolerance": ("tolerance", lambda value: parse_percent(value, most=1.0)),
    "min-gain": ("min_gain", lambda value: parse_percent(value, most=10.0)),
    "device": ("device", parse_device),
    "memory-limit": ("memory_limit", parse_size),
    "seed": ("seed", parse_seed),
    "only": ("only", parse_list),
    "skip": ("skip", parse_list),
    "strategies": ("strategies", parse_specs),
    "allow": ("allow", parse_allow),
    "executor": ("executor", lambda value: parse_choice(value, EXECUTORS)),
    "price": ("price", lambda value: parse_number(value, least=0.0, example="3.50")),
    "log": ("log", lambda value: parse_choices(value, TRACKERS)),
    "out": ("out", parse_path),
    "json": ("json", parse_flag),
    "quiet": ("quiet", parse_flag),
    "open": ("open", parse_flag),
}
KEYS = tuple(_TABLE)


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
        if key not in _TABLE:
            raise UsageError(f"{label(given, value)}: there is no such option", hint=_near(key, KEYS))
        if value is None:
            continue
        name, read = _TABLE[key]
        try:
            parsed[name] = read(value)
        except UsageError as error:
            raise UsageError(f"{label(given, value)}: {error.message}", hint=error.hint) from None
        except (ValueError, OverflowError):  # such as an integer of more digits than Python prints
            raise UsageError(f"{given}: not a value that can be used") from None
    return parsed


def make_options(
    given: Mapping[str, object],
    config: Mapping[str, Any] | None = None,
    *,
    label: Callable[[str, object], str] | None = None,
) -> Options:
    """Options from what was given, over what the configuration holds, over the defaults.

    Args:
        given: raw values by key; None means not given.
        config: fields that :func:`autoopt.config.read_config` returned.
        label: see :func:`parse`; by default as a keyword of ``autoopt.optimize``.

    Raises:
        UsageError: an unknown key, a bad value, or a strategy both in ``only`` and in ``skip``.
    """
    merged = {**(config or {}), **parse(given, label or _keyword)}
    options = Options(**merged)
    both = [name for name in options.only if name in options.skip]
    if both:
        raise UsageError(f"strategy {both[0]!r} stands in both only and skip", hint="keep it in one of them")
    return options


def refuse_unfinished(options: Options) -> None:
    """What the options can say and this version does not do.

    Raises:
        UsageError: one line that says so.
    """
    if options.executor != "local":
        raise UsageError(
            f"--executor {options.executor} is not part of this version of autoopt yet",
            hint="trials run on this machine with --executor local",
        )


def check_names(options: Options, risks: Mapping[str, str]) -> None:
    """Checks the strategies that ``only`` and ``skip`` name, and ``allow``, against those that there are.

    Args:
        options: what was asked for.
        risks: the risk class of every strategy, by its name.

    Raises:
        UsageError: a strategy that does not exist, with the nearest name; ``allow`` of a class that no strategy has;
            what this version does not do.
    """
    refuse_unfinished(options)
    for key in ("only", "skip"):
        for name in getattr(options, key):
            if name not in risks:
                raise UsageError(f"--{key}: there is no strategy {name!r}", hint=_near(name, tuple(risks)))
    for risk in options.allow:
        if risk not in DEFAULT_RISKS and risk not in risks.values():
            raise UsageError(
                f"--allow {risk}: there is no strategy of that risk class",
                hint="name your own with --strategies MODULE:CLASS, or leave --allow out",
            )


def _keyword(key: str, value: object) -> str:
    return f"optimize({key.replace('-', '_')}={value!r})"


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _near(value: object, names: Iterable[str]) -> str:
    """A hint with the nearest of some names, or all of them where none is near."""
    names = list(names)
    near = difflib.get_close_matches(str(value).lower(), names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
