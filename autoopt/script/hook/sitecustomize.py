"""Starts autoopt's listening in the one process whose path it was put on, and makes way for the one that was there.

Processes that the script starts find the environment as the user left it: they are not listened to.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _make_way() -> None:
    """Path and environment as they were, and the ``sitecustomize`` that they name."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [folder for folder in folders if os.path.abspath(folder or ".") != _HERE]
    if os.environ.pop("AUTOOPT_SCRIPT_PATH_WAS_UNSET", None) is not None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_words = os.environ.pop("AUTOOPT_SCRIPT", None)
_make_way()
if _words is not None:
    from autoopt.script.boot import begin

    begin(_words)
