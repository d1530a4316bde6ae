"""The facade's functions: ``optimize`` and ``apply``; what the commands call is in ``autoopt.running``."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape as html_escape
from pathlib import Path
from typing import Any

from autoopt.errors import UsageError
from autoopt.events import Listener
from autoopt.loading.importing import reached_optimize
from autoopt.loading.notebook import cells_of, module_source
from autoopt.options import Options, make_options
from autoopt.records import Plan, Result
from autoopt.registry import instance_spec, load_strategies
from autoopt.running.baseline_spec import check_command
from autoopt.running.optimize import optimize_run as optimize_run
from autoopt.running.optimize import resume_run as resume_run
from autoopt.running.profile import profile_run as profile_run
from autoopt.script.command import parse
from autoopt.storage.run_directory import RunDirectory
from autoopt.strategy import Strategy
from autoopt.trackers import following

logger = logging.getLogger(__name__)


def optimize(
    workload: str | Callable[[], Any],
    budget: str | float = "2h",
    *,
    strategies: Iterable[Strategy | str] = (),
    listeners: Sequence[Listener] = (),
    report: bool = True,
    **options: Any,
) -> Result:
    """Makes a training run reach its target faster; ``autoopt optimize`` as a function.

    Args:
        workload: an import string such as ``"my_module:build"``, or the function itself (at the top level of
            a module or script, since every trial calls it in a process of its own). One of a notebook is written to
            ``notebook_cells.py`` in the run directory, with what it needs of the cells. Of a script without a
            ``__main__`` guard, trials import what stands above this call.
        budget: wall-clock time of the whole run, ``"2h"``.
        strategies: further strategies: instances of classes at the top level of a module, or import strings.
        listeners: called with every event (``autoopt.events``).
        report: also write report.html into the run directory.
        options: as on the command line, with underscores: ``target=0.93``, ``tolerance="1%"``, ``out="runs/a"`` ...

    Raises:
        AutooptError: as the commands; ``exit_code`` says of which kind.
    """
    reached_optimize()
    given = [item if isinstance(item, str) else instance_spec(item) for item in strategies]
    chosen = make_options({"budget": budget, **options, **({"strategies": given} if given else {})})
    written = _from_notebook(workload, chosen)
    spec = workload if isinstance(workload, str) else written[0] if written else _import_string(workload)
    chosen = written[1] if written else chosen
    checked = parse(spec)
    check_command(checked, chosen)
    inline = cells_of(vars(sys.modules["__main__"])) is not None
    from autoopt_reports import html, live  # rendering is not part of the loop

    with following(chosen.log) as trackers:
        with live.make_view(sys.stderr, quiet=not inline) as view:  # a program decides for itself with ``listeners``
            result = optimize_run(checked, chosen, listeners=[*listeners, *trackers, view])
        page = trackers.report = html.write_page(result, logger.warning) if report else None
    if inline and page is not None:  # below the cell, in a frame of its own: no style or script meets the notebook's
        shown: Any = importlib.import_module("IPython.display")  # there is one: the cells came from it
        text = html_escape(page.read_text(encoding="utf-8"), quote=True)
        frame = f'<iframe srcdoc="{text}" style="width: 100%; height: 800px; border: 0"></iframe>'
        shown.display({"text/html": frame, "text/plain": str(page)}, raw=True)
    return result


def apply(workload: Any, plan: Plan | str | Path, *, device: str = "auto", seed: int = 0) -> Any:
    """The workload set up as the plan says, for people who keep their own loop.

    Args:
        workload: a ``Workload``, or the function that builds it.
        plan: a ``Plan``, or the path of a plan.json.

    Returns:
        ``autoopt.benchmark.training.Training``: the model on its device, the loader, the optimizer, and ``step``.
    """
    from autoopt.benchmark.device import resolve_device
    from autoopt.benchmark.training import Training
    from autoopt.loading import validation
    from autoopt.records.reading import read_plan

    chosen = plan if isinstance(plan, Plan) else read_plan(plan)
    built = validation.build(workload) if callable(workload) else validation.check(workload)
    registry = load_strategies()
    return Training(built, registry.fold(registry.order(chosen), built.setup), device=resolve_device(device), seed=seed)


def _import_string(build: Callable[[], Any]) -> str:
    """The import string of a function at the top level of a module or of a script.

    Raises:
        UsageError: a trial's process could not import it.
    """
    name = getattr(build, "__qualname__", "")
    module = getattr(build, "__module__", None)
    if not callable(build) or not name or "<" in name or module is None:
        raise UsageError(
            f"optimize() takes an import string or a function at the top level of a module, got {build!r}",
            hint='such as optimize("my_module:build")',
        )
    if module != "__main__":
        return f"{module}:{name}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not os.path.isfile(file):
        raise UsageError(
            f"{name} is defined in an interactive session, which trials cannot import",
            hint=f'write it to a file and name it: optimize("my_module.py:{name}")',
        )
    return f"{os.path.abspath(file)}:{name}"


def _from_notebook(build: Any, options: Options) -> tuple[str, Options] | None:
    """Writes a function of a notebook, with what it needs of the cells, into the run directory; None elsewhere.

    Raises:
        WorkloadError: it needs what no cell defines by itself.
    """
    if not callable(build) or getattr(build, "__module__", None) != "__main__":
        return None
    namespace = vars(sys.modules["__main__"])
    cells, name = cells_of(namespace), getattr(build, "__name__", "")
    if cells is None or not name.isidentifier():
        return None
    source = module_source(name, cells, namespace)
    directory = RunDirectory.create("notebook", options.out)
    path = directory.path / "notebook_cells.py"
    directory.write(path, source)
    sys.stderr.write(f"{name} and what it needs of the notebook's cells is in {path}; trials import that\n")
    return f"{path}:{name}", replace(options, out=directory.path)
