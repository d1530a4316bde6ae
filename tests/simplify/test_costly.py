"""The most expensive lines of a whole run, each with its seconds, its place and the edit; the user's own Python."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from autoopt.benchmark.target import whole_run_seconds
from autoopt.records import (
    Advice,
    Change,
    Deeper,
    Evaluated,
    Operator,
    Plan,
    Resource,
    Round,
    RunParts,
    Site,
    Sites,
    Stage,
    WholeRun,
)
from autoopt.simplify.costly import LEAST, MOST, costly_lines, mistakes
from autoopt.simplify.source import Samples
from autoopt.testing.strategies import sample_facts

PARTS = RunParts(
    imports_seconds=4.0,
    build_seconds=6.0,
    step_seconds=0.1,
    steps=1000,
    steps_per_epoch=100,
    epoch_seconds=5.0,
    evaluation_seconds=10.0,
    evaluate_every=100,
    checkpoint_seconds=0.1,
    checkpoint_every=100,
    evaluations=(
        Evaluated(step=100, seconds=10.0, samples=300, batches=300, gradients=True, file="train.py", line=31,
                  training_data=True, training_data_seconds=4.0),
        Evaluated(step=100, seconds=6.0, samples=300, batches=300, gradients=True, file="train.py", line=33),
    ),
)  # fmt: skip
SITES = Sites(
    command=("python", "train.py"),
    cwd="/",
    sites=(
        Site(kind="loader_training", file="train.py", line=7, end_line=7),
        Site(kind="model", file="train.py", line=9, end_line=9),
        Site(kind="checkpoint", file="train.py", line=40, end_line=40),
    ),
    run=PARTS,
)


def round_of(parts: RunParts = PARTS, plan: Plan | None = None) -> Round:
    stages = (
        ("preparation", Resource.HOST, 0.02),
        ("forward", Resource.DEVICE, 0.03),
        ("backward", Resource.DEVICE, 0.04),
    )
    return Round(
        index=0,
        plan=plan or Plan(),
        step_seconds=0.1,
        stages=tuple(Stage(name=n, resource=r, seconds=s, exposed_seconds=s) for n, r, s in stages),
        whole_run=whole_run_seconds(parts) if parts.steps else None,
    )


@pytest.mark.parametrize(
    ("names", "plan", "attention", "fused"),
    [
        (("aten::bmm", "aten::_softmax"), (), True, True),
        (("aten::bmm", "aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu"), (), False, True),
        (("aten::mm",), ("fused_optimizer",), False, False),
        (("aten::mm", "aten::_fused_adamw_"), (), False, False),
        ((), (), False, True),
    ],
)
def test_an_edit_is_not_named_where_it_is_made_already(
    names: tuple[str, ...], plan: tuple[str, ...], attention: bool, fused: bool
) -> None:
    update = Stage(name="optimizer", resource=Resource.DEVICE, seconds=0.02, exposed_seconds=0.02)
    round_ = round_of(plan=Plan(changes=tuple(Change(strategy=name) for name in plan)))
    operators = tuple(Operator(name=name, seconds=0.01) for name in names)
    round_ = round_.model_copy(update={"operators": operators, "stages": (*round_.stages, update)})
    edits = " ".join(item.suggestion for item in costly_lines(round_, sample_facts(), SITES))
    assert ("scaled_dot_product_attention" in edits) is attention
    assert ("fused=True" in edits) is fused


@pytest.mark.parametrize(("seconds", "words"), [(0.09, "products and convolutions"), (0.01, "larger operators")])
def test_what_products_take_is_no_matter_of_how_lines_are_written(seconds: float, words: str) -> None:
    operators = (
        Operator(name="aten::convolution", seconds=seconds, kind="matmul"),
        Operator(name="aten::add", seconds=0.01, kind="elementwise"),
    )
    (model,) = (
        one
        for one in costly_lines(round_of().model_copy(update={"operators": operators}), sample_facts(), SITES)
        if one.title.startswith("The model")
    )
    assert words in model.suggestion
    assert f"{max(operators, key=lambda one: one.seconds).name} takes most" in model.suggestion


@pytest.mark.parametrize(
    ("batches", "calls", "named"), [(None, 400, True), (300, 300, False), (4, 400, True), (None, None, False)]
)
def test_evaluations_that_call_the_model_for_single_samples_are_told_so(
    batches: int | None, calls: int | None, named: bool
) -> None:
    seen = Evaluated(step=100, seconds=6.0, batches=batches, samples=batches, calls=calls, file="train.py", line=33)
    parts = PARTS.model_copy(update={"evaluations": (seen,)})
    suggestions = " ".join(item.suggestion for item in advice(parts))
    assert (f"in place of {calls} calls" in suggestions) is named


@pytest.mark.parametrize(("busiest", "share", "line"), [(81, 0.9, 81), (81, 0.4, 33), (33, 0.9, 33)])
def test_an_evaluation_names_the_line_that_takes_most_of_it(busiest: int, share: float, line: int) -> None:
    """Half of a run was the search for nearest neighbours, and the line that calls the model was named."""
    seen = Evaluated(
        step=100, seconds=6.0, file="train.py", line=33, busiest=("train.py", busiest), busiest_share=share
    )
    (item,) = (
        one for one in advice(PARTS.model_copy(update={"evaluations": (seen,)})) if one.title.startswith("Evaluation")
    )
    assert item.line == line
    assert ("90% of it at this line" in item.evidence) is (line == 81)
    assert ("whole arrays" in item.suggestion) is (line == 81)


def advice(parts: RunParts = PARTS, **more: Any) -> list[Any]:
    facts = sample_facts().model_copy(update={"run": parts})
    return list(costly_lines(round_of(parts, **more), facts, SITES))


def test_a_loop_of_cells_is_named() -> None:
    deeper = (
        Deeper(name="backward", kind="stage", seconds=0.04),
        Deeper(name="cell (GRUCell)", kind="module", seconds=0.03),
    )
    operators = (Operator(name="aten::mm", kind="matmul", seconds=0.01),)
    (model,) = (
        line
        for line in costly_lines(
            round_of().model_copy(update={"deeper": deeper, "operators": operators}), sample_facts(), SITES
        )
        if line.title.startswith("The model")
    )
    assert "nn.GRU for whole sequences in place of a loop of nn.GRUCell" in model.suggestion


def test_the_dearest_come_first_with_seconds_place_and_edit() -> None:
    found = advice()
    assert len(found) <= MOST
    assert [item.seconds for item in found] == sorted((item.seconds for item in found), reverse=True)
    assert [round(item.seconds) for item in found] == [70, 60, 45, 40, 20]
    model, evaluation, epochs, passes, batches = found
    assert (evaluation.file, evaluation.line) == ("train.py", 33)
    assert "no_grad" in evaluation.suggestion
    assert "larger batch_size of its loader (the mean is 1)" in evaluation.suggestion
    assert (passes.file, passes.line) == ("train.py", 31)
    assert (epochs.file, epochs.line) == ("train.py", 7)
    assert "persistent_workers" in epochs.suggestion
    assert all(item.suggestion and "of the run" in item.title for item in found)
    assert model.title.startswith("The model")
    assert batches.title.startswith("Making batches")


def test_what_the_plan_does_already_is_not_advised() -> None:
    plan = Plan(changes=(Change(strategy="validation_loader", setting={"batch_size": 256}),))
    evaluation = next(item for item in advice(plan=plan) if item.title.startswith("Evaluation"))
    assert "batch_size" not in evaluation.suggestion


def test_little_parts_and_runs_of_unknown_length_give_no_advice() -> None:
    assert not any("Checkpoints" in item.title for item in advice()), f"less than {LEAST:.0%} of the run"
    assert advice(PARTS.model_copy(update={"steps": None})) == []


@pytest.mark.parametrize("wrong", [True, False])
def test_an_evaluation_in_training_mode_is_told(wrong: bool) -> None:
    seen = PARTS.evaluations[0].model_copy(update={"training_mode": wrong})
    found = mistakes(SITES.model_copy(update={"run": PARTS.model_copy(update={"evaluations": (seen,)})}))
    assert [item.line for item in found] == ([31] if wrong else [])


@pytest.mark.parametrize(("imports", "build", "named"), [(400.0, 1.0, False), (1.0, 400.0, True)])
def test_a_start_is_advised_on_where_the_script_and_not_its_imports_take_it(
    imports: float, build: float, named: bool
) -> None:
    found = advice(PARTS.model_copy(update={"imports_seconds": imports, "build_seconds": build}))
    assert any(item.title.startswith("The start") for item in found) is named


STEP = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        see()
        return x.sum()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        see()
        return torch.ones(2)


def targets(x):
    for _ in range(2):
        see()
    return x


def train(net):
    for x in torch.utils.data.DataLoader(Data()):
        y = targets(x).requires_grad_()
        loss = net(y)
        see()
        for _ in range(3):
            see()
        backward()
"""


def sampled(folder: Path) -> Samples:
    """Samples of one run of ``train``: wherever its functions ask for one, and once within the backward pass."""
    samples, module, file = Samples(), ModuleType("step"), folder / "step.py"
    file.write_text(STEP)

    def see() -> None:
        samples.see(sys._getframe(1))

    vars(module)["see"] = see
    exec(compile(STEP, str(file), "exec"), vars(module))
    # a sample of the backward pass begins in a file of torch's
    inner = str(Path(torch.__file__).parent / "autograd" / "graph.py")
    exec(compile("def backward(): see()", inner, "exec"), vars(module))
    module.train(module.Net())
    return samples


def test_functions_outside_of_the_model_are_told_from_the_rest(tmp_path: Path) -> None:
    samples = sampled(tmp_path)
    found = {name: (line, round(share * samples.total)) for name, _, line, share in samples.functions()}
    lines = STEP.splitlines()
    assert found == {
        "targets": (lines.index("    for _ in range(2):") + 2, 2),
        "a loop in train": (lines.index("        for _ in range(3):") + 2, 3),
    }, "neither the model's forward, nor the dataset's samples, nor single lines of the training loop"


@pytest.mark.parametrize("own", [0.0, 0.03])
def test_what_functions_take_is_not_the_models(own: float) -> None:
    functions = (Deeper(name="targets", kind="line", seconds=own, file="train.py", line=7),) if own else ()
    whole = WholeRun(seconds=20.0, steps=100.0, parts=())
    half = {"resource": "device", "seconds": 0.05, "exposed_seconds": 0.05}
    stages = [{"name": name, **half} for name in ("forward", "backward")]
    round_ = Round.model_validate(
        {"index": 0, "plan": Plan(), "step_seconds": 0.1, "stages": stages, "own": functions, "whole_run": whole}
    )
    found: dict[str, Advice] = {one.title.split(":")[0]: one for one in costly_lines(round_, sample_facts())}
    assert found["The model"].seconds == pytest.approx(10.0 - 100 * own)
    assert ("targets" in found) is bool(own)
    if own:
        assert (found["targets"].file, found["targets"].line) == ("train.py", 7)
