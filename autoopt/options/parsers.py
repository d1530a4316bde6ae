"""One parser for each kind of option value: it reads the value, or refuses it with an example."""

from __future__ import annotations

import math
import re
from pathlib import Path

from autoopt.errors import UsageError, nearest

RISK_CLASSES = ("exact", "numeric", "training", "model")
DEFAULT_RISKS = ("exact", "numeric", "training")

_PERCENT = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*%", re.ASCII)
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(iB|B)", re.ASCII)
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,4})?", re.ASCII)
_RAY = re.compile(r"ray://[\w.\-\[\]:]+:\d{1,5}", re.ASCII)
_NUMBER = r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?"
_TUNE = re.compile(
    rf"(?P<name>[a-z][a-z0-9_]*)\s*=\s*(?:(?:(?P<scale>log|linear):)?(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})"
    rf"|(?P<choices>{_NUMBER}(?:\|{_NUMBER})+))",
    re.ASCII,
)
_SPEC = re.compile(r"[^:\s]+:[^:\s]+")


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


def parse_pattern(value: object) -> str:
    """Where a script reports its metric: a regular expression with one group for the number, or a tracker's key.

    Raises:
        UsageError: no text, no regular expression, or one with several groups.
    """
    if not isinstance(value, str) or not value.strip():
        raise UsageError("not a pattern", hint="such as 'val loss ([0-9.]+)'")
    try:
        groups = re.compile(value).groups
    except re.error as error:
        raise UsageError(f"not a regular expression: {error}", hint="such as 'val loss ([0-9.]+)'") from None
    if groups > 1:
        raise UsageError(f"it has {groups} groups, and the metric is one number", hint="make the others (?:...)")
    return value


def parse_executor(value: object) -> str:
    """Where trials run: ``local``, ``ray`` or the address of a Ray cluster.

    Raises:
        UsageError: anything else.
    """
    text = str(value).strip()
    if _RAY.fullmatch(text):
        return text
    return parse_choice(text, ("local", "ray"))


def parse_nproc(value: object) -> str:
    """Processes of a distributed run: a number, or ``1..4`` for one in the baseline and up to four in a plan.

    Raises:
        UsageError: anything else.
    """
    text = str(value).strip()
    match = None if isinstance(value, bool | float) else re.fullmatch(r"(\d{1,4})(?:\.\.(\d{1,4}))?", text, re.ASCII)
    if match is None:
        raise UsageError("not a number of processes", hint="such as 4, or 1..4 to start from one")
    least, most = int(match[1]), int(match[2] or match[1])
    if least < 1 or most < least:
        raise UsageError("must be 1 or more, the smaller number first", hint="such as 4, or 1..4 to start from one")
    return str(least) if least == most else f"{least}..{most}"


def parse_whole(value: object, least: int, most: int, wanted: str, hint: str) -> int:
    """A whole number from ``least`` to ``most``; ``wanted`` and ``hint`` say so of anything else.

    Raises:
        UsageError: anything else.
    """
    text = str(value).strip()
    if (
        isinstance(value, bool | float)
        or not re.fullmatch(r"\d{1,10}", text, re.ASCII)
        or not least <= int(text) <= most
    ):
        raise UsageError(wanted, hint=hint)
    return int(text)


def parse_device(value: object) -> str:
    """A device by name; whether this machine has it is found out when it is used.

    Raises:
        UsageError: no such kind of device.
    """
    if isinstance(value, str) and _DEVICE.fullmatch(value.strip()):
        return value.strip()
    raise UsageError("no such device", hint=nearest(str(value), ("auto", "cpu", "cuda", "cuda:1", "mps")))


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
    raise UsageError(f"{value!r} is none of {', '.join(choices)}", hint=nearest(str(value), choices))


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


def parse_tune(value: object) -> tuple[str, ...]:
    """Hyper-parameters to search, each as ``name=scale:low..high`` or ``name=a|b|c``.

    Where no scale is given it is ``log`` for ranges of two decades or more.

    Raises:
        UsageError: anything else, or a name twice.
    """
    example = "such as lr=1e-4..1e-2,weight_decay=log:1e-6..1e-2,momentum=0.8|0.9"
    found: dict[str, str] = {}
    for part in parse_list(value):
        match = _TUNE.fullmatch(part)
        if match is None:
            raise UsageError(f"{part!r} is no name with a range", hint=example)
        name = match["name"]
        if name in found:
            raise UsageError(f"{name} is given twice", hint=example)
        found[name] = f"{name}={_range(match, part, example)}"
    return tuple(found.values())


def _range(match: re.Match[str], part: str, example: str) -> str:
    if match["choices"]:
        numbers = [_finite(text) for text in match["choices"].split("|")]
        if None in numbers or len(set(numbers)) < 2:
            raise UsageError(f"{part!r}: two or more different numbers are wanted", hint=example)
        return "|".join(f"{number:g}" for number in numbers)
    low, high = _finite(match["low"]), _finite(match["high"])
    if low is None or high is None or not low < high:
        raise UsageError(f"{part!r}: a range goes from a number to a larger one", hint=example)
    scale = match["scale"] or ("log" if low > 0 and high >= 100 * low else "linear")
    if scale == "log" and low <= 0:
        raise UsageError(f"{part!r}: a range on a log scale begins above 0", hint=example)
    return f"{scale}:{low:g}..{high:g}"


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


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
EXAMPLE = "such as 2h, 90m, 1h30m or 45s"

_AMOUNT = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>{_AMOUNT}){unit})?" for unit in UNIT_SECONDS), re.ASCII)
_BARE = re.compile(rf"[+]?{_AMOUNT}", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds of a duration: numbers with units, the larger unit first (``"1h30m"``, ``"1.5h"``, ``"45s"``).

    Raises:
        UsageError: no text, no unit, negative, zero, or anything else that is not a duration.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"a duration is text, got {type(value).__name__}", hint=EXAMPLE)
    text = str(value).strip().lower()
    compact = re.sub(r"\s+", "", text)
    if _BARE.fullmatch(compact):
        number = compact[:20].lstrip("+")
        raise UsageError(f"a duration needs a unit: {number}h, {number}m or {number}s?", hint=EXAMPLE)
    if compact.startswith("-") and len(compact) > 1:
        raise UsageError("a duration cannot be negative", hint=EXAMPLE)
    match = _DURATION.fullmatch(compact) if compact else None
    if match is None:
        raise UsageError("not a duration", hint=EXAMPLE)
    seconds = sum(float(number) * UNIT_SECONDS[unit] for unit, number in match.groupdict().items() if number)
    if not 0 < seconds < math.inf:
        raise UsageError("a duration must be more than nothing and finite", hint=EXAMPLE)
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads back to the second: ``5400`` is ``"1h30m"``.

    Below one second the fraction is kept, since rounding would leave nothing.
    """
    if seconds < 1:
        return f"{seconds:.3g}s" if seconds >= 0.001 else "0s"
    left = round(seconds)
    parts = []
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
