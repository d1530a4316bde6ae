"""The options of a run: what they are called, how their values are read, and where they are given."""

from __future__ import annotations

from autoopt.options.options import KEYS, Options, check_names, make_options, parse
from autoopt.options.parsers import DEFAULT_RISKS, parse_choices, parse_percent

__all__ = [
    "DEFAULT_RISKS",
    "KEYS",
    "Options",
    "check_names",
    "make_options",
    "parse",
    "parse_choices",
    "parse_percent",
]
