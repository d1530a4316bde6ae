"""A file of Python as a module, and scripts that are run without autoopt."""

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
    words = [sys.executable, "-W", "error", "-c", ONE_AFTER_ANOTHER, *map(str, places)]
    # products of fewer rows round as those of all rows do, whatever the CPU
    environment = {**os.environ, "MKL_CBWR": "COMPATIBLE"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [found[str(place)] for place in places]
