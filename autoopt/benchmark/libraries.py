"""Which files are a user's own; torch is not imported here."""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sysconfig
from pathlib import Path

OWN = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH = tuple(
    str(Path(place).resolve()) + os.sep
    for place in getattr(importlib.util.find_spec("torch"), "submodule_search_locations", None) or ()
)
_NAMED = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_LIBRARIES = tuple(
    os.path.abspath(folder) + os.sep
    for named in {*_NAMED, *site.getsitepackages(), site.getusersitepackages()}
    for folder in {named, os.path.realpath(named)}
)


@functools.cache
def is_users(file: str) -> bool:
    """Whether a file is neither a library's nor autoopt's, and is a file at all."""
    if file.startswith("<"):
        return False
    path = os.path.abspath(file)
    installed = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
    return not installed and not path.startswith((OWN, *TORCH, *_LIBRARIES))
