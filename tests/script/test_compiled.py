"""Scripts that compile their models themselves: profiled and predicted as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.export.script_patch import placed
from autoopt.records import Change, Plan, Sites
from autoopt.registry import load_strategies
from autoopt.script.applicable import marks_steps, own_setup
from tests.script.conftest import StartScript, sites_of

REPLAYED = Change(strategy="compile", setting={"mode": "reduce-overhead"})


@pytest.mark.parametrize("way", ["", "in_place"])
def test_it_is_measured_compiled(start_script: StartScript, way: str) -> None:
    process = start_script("compiles.py", *way.split())
    sites = sites_of(process)
    compiled = own_setup(sites).compile
    assert compiled is not None
    assert (compiled.mode, compiled.dynamic) == (None, None if way else False)
    assert process.call("tests.script.in_process:compiled_runs", timeout=60.0) == {"runs": 2, "tried": None}
    known = start_script("compiles.py", *way.split(), sites=sites)
    assert known.call("tests.script.in_process:compiled_runs", timeout=60.0)["runs"] == 2


def test_another_script_is_not(start_script: StartScript) -> None:
    assert own_setup(start_script.watch("plain.py")).compile is None


def test_steps_are_marked_where_graphs_hold_the_gradients_of_micro_batches(
    start_script: StartScript, folder: Path
) -> None:
    (folder / "added_up.py").write_text(
        (folder / "compiles.py")
        .read_text()
        .replace("if sys.argv[1:]", "model = net\nif False")
        .replace("else:\n    model = torch.compile(net, backend=counted, mode=None, dynamic=False)\n", "")
    )
    sites = start_script.watch("added_up.py")
    registry = load_strategies(())
    assert marks_steps(registry.fold(Plan(changes=(REPLAYED,))), sites)
    text = placed(sites, Plan(changes=(REPLAYED,)), registry, "cuda").texts["added_up.py"]
    assert 'net.compile(mode="reduce-overhead")\ntorch.compiler.cudagraph_mark_step_begin()\n' in text
    assert "    optimizer.step()\n    torch.compiler.cudagraph_mark_step_begin()\n" in text
    alone: Sites = sites.model_copy(update={"accumulation": 1})
    assert "mark_step" not in placed(alone, Plan(changes=(REPLAYED,)), registry, "cuda").texts["added_up.py"]
