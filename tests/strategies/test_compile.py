"""The loss compiled with the model as one graph, blocks that repeat, and what is offered when."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoopt.benchmark.compiling import compilations, is_torchs
from autoopt.records import Change
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case, tiny_workload, train_few_steps
from scripted import PLAIN, changed_lines, patched, sites_in

COMPILE = load_strategies()["compile"]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are traced and run as they are: no kernels are made, which takes long."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_model_and_loss_are_one_graph_with_the_same_losses() -> None:
    usual = train_few_steps(tiny_workload(), Setup())
    before = compilations()
    found = train_few_steps(tiny_workload(), COMPILE.apply(Setup(), {"mode": "default", "loss": True}))
    assert compilations() == before + 1, "the model is a part of the loss's graph, not a graph of its own"
    assert found == pytest.approx(usual, rel=1e-5)


def test_the_loss_is_compiled_once_the_model_has_paid() -> None:
    trial: Any = SimpleNamespace(verdict="kept", reason="")
    case = sample_case()
    settings: Any = COMPILE.settings(case)
    first = next(settings)
    found = [settings.send(trial)]
    while "loss" not in found[-1]:
        found.append(settings.send(trial))
    assert first.get("regional"), "blocks that repeat come first, and leave the loss as it is"
    assert found[-1] == {"mode": "default", "loss": True}


def test_one_mode_that_lacks_its_tools_speaks_for_all() -> None:
    """Each further mode took a start of the workload to fail in the same way."""
    settings: Any = COMPILE.settings(sample_case("cuda:0"))
    next(settings)
    failed: Any = SimpleNamespace(
        verdict="failed", reason="error: InductorError: RuntimeError: Failed to find C compiler. Please specify via CC"
    )
    with pytest.raises(StopIteration):
        settings.send(failed)


def test_blocks_that_repeat_are_compiled_in_lines_of_the_script(tmp_path: Path) -> None:
    (setting,) = itertools.islice(COMPILE.settings(sample_case()), 1)
    assert setting["blocks"] == ["blocks"]
    _, patch = patched(tmp_path, PLAIN, Change(strategy="compile", setting=setting))
    assert [change.how for change in patch.changes] == ["patched"]
    assert changed_lines(patch.diff) == ["+    for block in model.blocks:", "+        block.compile()"]
    nested = {**setting, "mode": "max-autotune", "blocks": ["encoder.0.layers", ""]}
    _, patch = patched(tmp_path, PLAIN, Change(strategy="compile", setting=nested))
    assert "+    for block in model.encoder[0].layers:" in changed_lines(patch.diff)
    assert "+    for block in model:" in changed_lines(patch.diff)
    assert '+        block.compile(mode="max-autotune")' in changed_lines(patch.diff)


@pytest.mark.parametrize(
    ("regional", "line"),
    [(True, "+        compile_in_place(block)"), (False, "+    compile_in_place(model)")],
)
def test_a_class_of_torch_s_own_is_compiled_by_lines_that_compile_it(regional: bool, line: str, tmp_path: Path) -> None:
    """``nn.Sequential().compile()`` compiles nothing."""
    sites = sites_in(tmp_path, PLAIN)
    seen = tuple(
        site.model_copy(update={"options": {"torchs": True, "torchs_blocks": True}}) if site.kind == "model" else site
        for site in sites.sites
    )
    sites = sites.model_copy(update={"sites": seen})
    case = replace(sample_case(), sites=sites)
    setting = next(each for each in COMPILE.settings(case) if bool(each.get("regional")) is regional)
    _, patch = patched(tmp_path, PLAIN, Change(strategy="compile", setting=setting), sites=sites)
    lines = changed_lines(patch.diff)
    assert line in lines
    assert "+def compile_in_place(module, **options):" in lines


def test_only_torch_s_own_classes_need_that() -> None:
    class Own(torch.nn.Sequential):
        pass

    assert is_torchs(torch.nn.Sequential())
    assert not is_torchs(Own())


@pytest.mark.parametrize(
    ("steps", "left", "offered"), [(1_000_000, 7200.0, True), (1000, 7200.0, False), (1_000_000, 60.0, False)]
)
def test_kernels_are_tried_out_where_the_planned_run_pays_for_it(steps: int, left: float, offered: bool) -> None:
    case = replace(sample_case(), planned_steps=steps, seconds_left=left)
    modes = [setting["mode"] for setting in COMPILE.settings(case)]
    assert ("max-autotune" in modes) is offered
    once = COMPILE.once_seconds
    assert once(case, {"mode": "max-autotune"}) == 4 * once(case, {"mode": "default"})
