"""Small pieces of Python text, laid out as a formatter would lay them out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 88
"""Fits the formatters' narrowest usual line; longer calls are written one argument a line."""


def literal(value: Any) -> str:
    """A plain value as Python.

    Raises:
        ValueError: it is not plain.
    """
    if isinstance(value, str):
        if '"' in value and "'" not in value:
            return repr(value)  # the quotes that need no escape
        quoted = json.dumps(value, ensure_ascii=False)
        return quoted if quoted.isprintable() and "\\u" not in quoted else repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or type(value) in (bool, int, float, complex, bytes):
        return repr(value)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(literal, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    raise ValueError(f"{type(value).__name__} is not plain")


def call(name: str, arguments: Sequence[str], keywords: Mapping[str, str] | None = None, *, indent: int = 0) -> str:
    """A call on one line where it fits into ``WIDTH``, else one argument a line.

    Args:
        name: what is called.
        arguments, keywords: as Python text.
        indent: spaces before the line that it will stand on, whatever precedes it there included.
    """
    parts = [*arguments, *(f"{key}={value}" for key, value in (keywords or {}).items())]
    line = f"{name}({', '.join(parts)})"
    if "\n" not in line and indent + len(line) <= WIDTH:
        return line
    return name + "(\n" + "".join(f"    {part},\n".replace("\n    ", "\n        ") for part in parts) + ")"


def commented(text: str) -> list[str]:
    """The text as comment lines."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"# {word}")
    return lines
