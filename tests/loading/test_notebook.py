"""Functions of notebooks and of plain scripts: what trials import of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import WorkloadError
from autoopt.loading.importing import ReachedOptimize, load, reached_optimize
from autoopt.loading.notebook import cells_of, module_source

CELLS = (
    "import math, json as j\nfrom math import tau",
    "SIZE = 3\nrate, other = 0.1, 0.2",
    "def scale(x):\n    return SIZE * x * table['a']",
    "table = {'a': 1}",
    "table['a'] = 5",
    "raise RuntimeError('a cell that must not run again')",
    "for step in range(3):\n    trained = step",
    "get_ipython().run_line_magic('matplotlib', 'inline')",
    "this is no Python",
    "get_ipython().run_cell_magic('time', '', 'def build():\\n    return Model(rate)\\n')",
    "class Model:\n    size = 1\n    def __init__(self, rate):\n        self.value = scale(rate) + tau",
    "SIZE = 4",
    "SIZE += 6",
    "result = autoopt.optimize(build)",
)


def test_a_module_holds_what_the_function_needs_and_nothing_that_ran(tmp_path: Path) -> None:
    namespace = dict.fromkeys(("build", "Model", "scale", "SIZE", "table", "rate", "tau", "trained"), 1)
    source = module_source("build", CELLS, namespace)
    for left_out in ("raise", "get_ipython", "trained", "optimize", "json"):
        assert left_out not in source.partition('"""\n\n')[2]
    space: dict[str, Any] = {"__name__": "cells"}
    exec(compile(source, "cells.py", "exec"), space)
    model = space["build"]()
    assert model.value == pytest.approx(10 * 0.1 * 5 + space["tau"])


def test_the_last_definition_counts() -> None:
    cells = ("def build():\n    return 1", "def build():\n    return 2")
    space: dict[str, Any] = {}
    exec(module_source("build", cells, {"build": 1}), space)
    assert space["build"]() == 2


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("for name in 'ab':\n    data = name", "needs 'data', which no cell of the notebook defines by itself"),
        ("data = get_ipython().getoutput('ls')", "which works in a notebook alone"),
    ],
)
def test_what_cannot_be_taken_is_said_with_the_way_out(cell: str, said: str) -> None:
    cells = (cell, "def build():\n    return data")
    with pytest.raises(WorkloadError, match=said) as error:
        module_source("build", cells, {"build": 1, "data": 1})
    assert error.value.hint.startswith("define it inside build()")


def test_only_ipython_has_cells() -> None:
    assert cells_of({"In": ["", "x = 1"]}) is None
    assert cells_of({"get_ipython": print}) is None
    assert cells_of({"In": ["", "x = 1"], "get_ipython": print}) == ("", "x = 1")


@pytest.mark.parametrize("spec", ["plain_{n}.py:build", "plain_{n}:build"])
def test_a_script_is_imported_up_to_its_own_call(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = f"{len(spec)}"
    (tmp_path / f"plain_{number}.py").write_text(
        "from autoopt.loading.importing import reached_optimize\n"
        "def build():\n    return 'built'\n"
        "try:\n    reached_optimize()\nexcept Exception:\n    raise AssertionError('swallowed')\n"
        "raise AssertionError('what follows the call is not run')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert load(spec.format(n=number))() == "built"
    assert load(spec.format(n=number))() == "built"
    reached_optimize()  # outside an import it does nothing
    assert not issubclass(ReachedOptimize, Exception)


NOTEBOOK = """
import sys, torch
sys.path.append({folder!r})
---
import shapes
import autoopt
samples = shapes.scheduled()
---
class Holder:
    made = staticmethod(shapes.scheduled)
---
def build():
    return Holder.made()
---
result = autoopt.optimize(build, budget="25s", only="threads", out="run")
print("verdicts", len(result.trials))
"""


@pytest.mark.slow
def test_a_function_of_a_real_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    shapes = Path(__file__).parents[1] / "workloads"
    monkeypatch.setenv("PYTHONPATH", str(shapes))
    book = nbformat.v4.new_notebook()
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.cells = [nbformat.v4.new_code_cell(cell) for cell in NOTEBOOK.format(folder=str(shapes)).split("---\n")]
    client.NotebookClient(book, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = book.cells[-1].outputs
    told = "".join(output.get("text", "") for output in outputs)
    assert "trials import that" in told
    assert "verdicts" in told
    assert "Warning: " not in told
    assert any("<iframe srcdoc=" in output.get("data", {}).get("text/html", "") for output in outputs)
    assert "class Holder" in (tmp_path / "run" / "notebook_cells.py").read_text()
