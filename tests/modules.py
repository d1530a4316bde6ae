"""A file of Python as a module, and what an interpreter of its own prints, with autoopt or without."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def module_of(path: Path) -> ModuleType:
    """The file, imported anew under its own name; ``sys.path`` stays as it is."""
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[path.stem] = module  # dataclasses and named tuples look there
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def run_python(
    *words: object, codes: tuple[int, ...] = (0,), timeout: float = 280.0, **how: Any
) -> subprocess.CompletedProcess[str]:
    """An interpreter with these words, run to its end, which must be one of these exit codes."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **how)
    assert done.returncode in codes, done.stderr
    return done


def autoopt(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it; ``how``: as of ``run_python``."""
    return run_python("-m", "autoopt", *words, **how)


ONE_AFTER_ANOTHER = """
import contextlib, io, json, os, runpy, sys
printed = {}
for place in sys.argv[1:]:
    folder, _, module = place.partition(":")
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.modules.pop("prepared", None)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        if module:
            runpy.run_module(module, run_name="__main__")
        else:
            runpy.run_path(f"{folder}/train.py", run_name="__main__")
    sys.path.remove(folder)
    printed[place] = text.getvalue()
print(json.dumps(printed))
"""


def printed_by(*places: str | Path) -> list[str]:
    """What scripts print, in one process, since most of it is imports.

    Args:
        places: folders that hold a ``train.py``, or a folder with the module in it that is run (``folder:module``).
    """
    # products of fewer rows round as those of all rows do, whatever the CPU
    environment = {**os.environ, "MKL_CBWR": "COMPATIBLE"}
    found = json.loads(run_python("-W", "error", "-c", ONE_AFTER_ANOTHER, *places, env=environment).stdout)
    return [found[str(place)] for place in places]
