"""Starts autoopt's listening in the one process whose path it was put on, and makes way for the one that was there.

In a whole run, to which nothing listens, it has the script's seeds mixed with the run's, where that is asked for.

Processes that the script starts find the environment as the user left it: they are not listened to. A launcher is not
listened to either, but passes all of this on to the processes that it starts.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import time

_SINCE = time.monotonic()
_HERE = os.path.dirname(os.path.abspath(__file__))


class _Packages:
    """Finds autoopt's own packages, and the entry points of its strategies, where the parent has them.

    Nothing else that lies next to them there is found.
    """

    def __init__(self, folders: list[str]) -> None:
        self._folders = {os.path.basename(folder): folder for folder in folders}

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        folder = self._folders.get(name)
        if folder is None:
            return None
        file = os.path.join(folder, "__init__.py")
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[folder])

    def find_distributions(self, context: object) -> list[object]:
        from importlib.metadata import PathDistribution
        from pathlib import Path

        if getattr(context, "name", None) not in (None, "torch-autoopt"):
            return []
        named = [folder for name, folder in self._folders.items() if name.endswith(".dist-info")]
        return [PathDistribution(Path(folder)) for folder in named]


def _make_way(keep: bool) -> None:
    """Path and environment as they were, and the ``sitecustomize`` that they name.

    Args:
        keep: the environment is for the processes that this one starts.
    """
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    if not keep:
        folders = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
        if os.environ.pop("AUTOOPT_SCRIPT_PATH_WAS_UNSET", None) is None:
            kept = [folder for folder in folders if os.path.abspath(folder or ".") != _HERE]
            os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_launcher() -> bool:
    """Whether this is the launcher's own process, or one that it starts for itself: it has no rank.

    Where it starts a single process, that need not have one: its words are the last ones of the launcher's.
    """
    if "LOCAL_RANK" in os.environ:
        return False
    words, own = os.environ.get("AUTOOPT_LAUNCHER"), sys.orig_argv[1:]
    if words is None:
        os.environ["AUTOOPT_LAUNCHER"] = json.dumps(sys.orig_argv)
        return True
    own = own[1:] if own[:1] == ["-u"] else own
    return not own or json.loads(words)[-len(own) :] != own


def _tell(folder: str) -> None:
    """How the launcher has started this process, which ends here."""
    own = sys.orig_argv[1:]
    unbuffered = own[:1] == ["-u"]
    words = [sys.executable, *(own[1:] if unbuffered else own)]
    reported = {"words": words, "unbuffered": unbuffered, "variables": dict(os.environ)}
    name = os.path.join(folder, os.environ.get("RANK", "0"))
    with open(name, "w") as file:
        json.dump(reported, file)
    os.rename(name, name + ".json")
    os._exit(0)


_asked = os.environ.get("AUTOOPT_LAUNCH_ASKED")
_launcher = (_asked or os.environ.get("AUTOOPT_PASSED_ON")) is not None and _is_launcher()
if _asked is not None and not _launcher:
    _tell(_asked)
_words = None
if not _launcher:
    for _name in ("AUTOOPT_PASSED_ON", "AUTOOPT_LAUNCHER"):
        os.environ.pop(_name, None)
    _words = os.environ.pop("AUTOOPT_SCRIPT", None)
    _folders = os.environ.pop("AUTOOPT_PACKAGES", "").split(os.pathsep)
_seed = os.environ.pop("AUTOOPT_SEED", None)
_make_way(keep=_launcher)
if _seed is not None:
    _spec = importlib.util.spec_from_file_location("_autoopt_seeds", os.path.join(_HERE, "seeds.py"))
    if _spec is not None and _spec.loader is not None:
        _module = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(_module)
        _module.mix_seeds(int(_seed))
if _words is not None:
    sys.meta_path.insert(0, _Packages(_folders))
    from autoopt.script.boot import begin

    begin(_words, _SINCE)
