"""Launches: steps recorded and replayed, models compiled, and what launches less is predicted to pay."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from autoopt.benchmark.compiling import compilations, is_torchs
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.records import Change, Operator, Peaks, Plan, Resource, Round, Simulation, Stage
from autoopt.search.planner import Choice, build_queue
from autoopt.setup import Setup
from autoopt.simplify.batches import restored
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case, Strategy
from autoopt.testing.strategies import sample_case, tiny_workload, train_few_steps
from autoopt.workload import Workload
from autoopt_strategies.compute import whole_step
from scripted import PLAIN, REGISTRY, changed_lines, patched, sites_in
from tests.strategies.stand_ins import promised, small_workload, with_stages

COMPILE = REGISTRY["compile"]
WHOLE = REGISTRY["cuda_graphs"].apply(Setup(), {"whole": True})


class Again:
    """Takes everything; replays by running again."""

    recorded = replayed = warmed = 0

    def takes(self, tensor: torch.Tensor) -> bool:
        return True

    def warm(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        type(self).warmed += 1
        return run()

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        type(self).recorded += 1

        def replay() -> torch.Tensor:
            type(self).replayed += 1
            return run().clone()

        return replay


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Again]:
    Again.recorded = Again.replayed = Again.warmed = 0
    monkeypatch.setattr(whole_step, "CudaRecorder", Again)
    return Again


def workload(**changed: Any) -> Workload:
    seed_everything(0)
    x = torch.randn(72, 6)  # the last batch of an epoch is short
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    usual = {"loss": F.cross_entropy, "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}
    return small_workload(model, TensorDataset(x, (x[:, 0] > 0).long()), **{**usual, **changed})


def training(setup: Setup, **changed: Any) -> Training:
    return Training(workload(**changed), setup, device="cpu", seed=0)


def losses(run: Training, steps: int = 14) -> list[float]:
    return [float(run.step(run.next())) for _ in range(steps)]


def falling(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scheduler": falling},
        {"clip_grad_norm": 0.5},
        {"accumulation": 2},
        {"optimizer": partial(torch.optim.Adam, lr=0.01, fused=True)},
    ],
    ids=["plain", "schedule", "clip", "accumulation", "adam"],
)
def test_a_recorded_step_trains_as_the_plain_one(changed: dict[str, Any], recorder: type[Again]) -> None:
    setup = WHOLE
    if "optimizer" in changed:  # keeping its count on the device is for devices
        setup = replace(WHOLE, optimizer=())
    expected = losses(training(Setup(), **changed))
    assert losses(training(setup, **changed)) == pytest.approx(expected, rel=1e-5)
    assert recorder.recorded == 1
    assert recorder.replayed >= 6


def test_the_learning_rate_of_a_replay_is_that_of_the_schedule(recorder: type[Again]) -> None:
    """A rate that was recorded as a number would stay what it was."""
    run = training(WHOLE, scheduler=falling)
    losses(run, 10)
    before = [p.detach().clone() for p in run.model.parameters()]
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    for _ in range(2):
        run.one_step(run.next())  # the schedule stands beside it
    assert recorder.replayed > 0
    for was, now in zip(before, run.model.parameters(), strict=True):
        assert torch.equal(was, now)


def test_a_short_batch_runs_as_it_is_and_the_next_one_is_replayed_again(recorder: type[Again]) -> None:
    run = training(WHOLE)
    losses(run, 10)  # 3 of warm-up; the 5th and the 10th are short
    assert (recorder.warmed, recorder.replayed) == (3, 5)


def test_a_number_of_the_optimizer_that_moves_is_not_replayed(recorder: type[Again]) -> None:
    """One-cycle also moves the momentum, which the graph holds as it was."""

    def one_cycle(optimizer: Any, steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)

    expected = losses(training(Setup(), scheduler=one_cycle))
    assert losses(training(WHOLE, scheduler=one_cycle)) == pytest.approx(expected, rel=1e-5)
    assert recorder.replayed <= 1


def test_a_loaded_checkpoint_is_recorded_anew(recorder: type[Again]) -> None:
    """The optimizer's tensors are others then: a graph would go on with those of before."""
    whole = training(WHOLE)
    losses(whole, 7)
    state = copy.deepcopy(whole.state_dict())
    expected = losses(whole, 5)
    other = training(WHOLE)
    losses(other, 6)
    other.load_state_dict(state)
    assert losses(other, 5) == pytest.approx(expected, rel=1e-6)
    assert recorder.recorded == 3


def test_a_survey_that_puts_everything_back_leaves_no_stale_recording(recorder: type[Again]) -> None:
    expected = losses(training(Setup()), 12)
    run = training(WHOLE)
    found = losses(run, 6)
    batches = run.next()
    with restored(run):
        for _ in range(3):
            run.one_step(batches)
    found.append(float(run.step(batches)))
    assert [*found, *losses(run, 5)] == pytest.approx(expected, rel=1e-5)
    assert recorder.recorded, "steps are replayed"


def test_a_batch_that_is_not_on_the_device_runs_as_it_is(
    recorder: type[Again], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Again, "takes", lambda self, tensor: False)
    assert losses(training(WHOLE), 6) == pytest.approx(losses(training(Setup()), 6), rel=1e-5)
    assert (recorder.warmed, recorder.recorded) == (0, 0)


def test_what_a_batch_holds_beside_tensors_is_part_of_the_recording(recorder: type[Again]) -> None:
    step = whole_step.RecordedStep(lambda batches: batches[0]["x"].sum() * batches[0]["times"], 1, Again())
    given = [{"x": torch.ones(2), "times": 3}]
    assert [float(step(given)) for _ in range(3)] == [6.0, 6.0, 6.0]
    assert recorder.replayed == 2
    assert float(step([{"x": torch.ones(2), "times": 5}])) == 10.0
    assert recorder.replayed == 2


def test_the_time_of_a_wrapped_step_counts_once(recorder: type[Again]) -> None:
    block = run_block(training(WHOLE), lambda done, _: done >= 4)
    assert sum(block.stage_seconds.values()) == pytest.approx(block.seconds, rel=1e-6)
    assert "whole" in block.stage_seconds


# A device that waits for launches: what launches less is predicted to pay, what computes faster is not.

DEVICE = Resource.DEVICE


def operators(products: float, elementwise: float) -> tuple[Operator, ...]:
    return (
        Operator(name="aten::mm", seconds=products, flops=1e9, bytes=1e6, calls=100, kind="matmul"),
        Operator(name="aten::add", seconds=elementwise, bytes=1e6, calls=900, kind="elementwise", ceiling_seconds=1e-4),
    )


def case_of(kernels: tuple[Operator, ...], issue: float, device: str = "cuda:0", **inspected: Any) -> Case:
    """Kernels of so many seconds, which the training process issues in ``issue`` of 20 ms with the optimizer's 4 ms.

    Alone, forward and backward take as long as issuing them where that is more than their kernels.
    """
    busy = sum(operator.seconds for operator in kernels)
    both = max(busy, issue * 0.8)
    seconds = {"forward": both / 3, "backward": 2 * both / 3, "optimizer": max(0.001, issue * 0.2), "host": issue}
    where = {"host": Resource.HOST}
    stages = tuple(
        Stage(name=name, resource=where.get(name, DEVICE), seconds=value, ceiling_seconds=1e-4 if value else 0.0)
        for name, value in seconds.items()
    )
    known = Simulation(device="cuda" if device != "cpu" else "cpu", cores=8, threads=8, launches=1000,
                       update_issue_seconds=issue * 0.2)  # fmt: skip
    round_ = Round(index=0, plan=Plan(), step_seconds=max(issue, both), stages=stages, simulation=known,
                   operators=kernels, simulation_error=0.0)  # fmt: skip
    case = sample_case(device, inspected=inspected)
    environment = case.environment.model_copy(update={"peaks": Peaks(launch_seconds=5e-6)})
    return replace(
        case, pipeline=Pipeline(round_), environment=environment, planned_steps=None, trials=(), seconds_left=600.0
    )


SHORT, LONG = operators(0.001, 0.002), operators(0.08, 0.02)


@pytest.mark.parametrize(
    ("name", "setting", "least"),
    [
        ("cuda_graphs", {"whole": True}, 4.0),
        ("compile", {"mode": "default"}, 1.5),
        ("compile", {"mode": "reduce-overhead"}, 1.6),
        ("fused_optimizer", {"implementation": "fused"}, 1.15),
    ],
)
def test_fewer_launches_pay_where_the_device_waits_for_them(name: str, setting: dict[str, Any], least: float) -> None:
    waiting = promised(REGISTRY[name], case_of(SHORT, 0.02, fused_optimizer={"fused": 0.1}), setting)
    assert waiting.high >= least
    computing = promised(REGISTRY[name], case_of(LONG, 0.02, fused_optimizer={"fused": 0.1}), setting)
    assert computing.high < 1.3
    assert computing.value < waiting.value


def test_the_planner_does_not_say_of_graphs_that_they_cannot_pay_where_they_matter_most() -> None:
    queue = build_queue(REGISTRY, case_of(SHORT, 0.02), Choice(only=("cuda_graphs", "compile")), 1.05)
    assert {proposal.strategy.name for proposal in queue.proposals} == {"cuda_graphs", "compile"}


class Fusing(Strategy):
    """A strategy of somebody's own that says no more than its stages."""

    name = "fusing"
    stages = frozenset({"forward", "backward"})

    def apply(self, setup: Any, setting: Any) -> Any:
        return setup


def test_a_strategy_of_ones_own_is_bounded_by_what_it_may_leave_to_issue() -> None:
    bound = promised(Fusing(), case_of(SHORT, 0.02), {})
    assert bound.high >= 4.0, "the update alone is left to issue, a fifth of it"


def test_what_was_tried_on_copies_launches_as_much_less_as_it_was_faster() -> None:
    """Half the seconds of forward and backward on a device that waits for launches: 16 of 20 ms of issuing halve."""
    found = promised(REGISTRY["flash_attention"], case_of(SHORT, 0.02, flash_attention={"ratio": 0.5}), {})
    assert found.value == pytest.approx(20 / (4 + 16 * (0.5 + 0.5 * 3 / 16)), rel=0.05)


def test_a_cpu_has_nothing_to_issue() -> None:
    found = promised(
        REGISTRY["fused_optimizer"],
        case_of(LONG, 0.02, "cpu", fused_optimizer={"fused": 0.5}),
        {"implementation": "fused"},
    )
    assert found.value == pytest.approx((0.1 + 0.004 + 0.02) / (0.1 + 0.002 + 0.02), rel=0.02)


RECURRENT = (
    Operator(name="aten::mkldnn_rnn_layer", seconds=0.05, calls=2, kind="other"),
    Operator(name="aten::add", seconds=0.002, bytes=1e6, calls=20, kind="elementwise", ceiling_seconds=1e-4),
)


def test_a_library_s_own_kernels_are_compiled_to_nothing_else() -> None:
    """A recurrent layer is one kernel of a library: compiling leaves it, and predicts hardly more than 1."""
    found = promised(REGISTRY["compile"], case_of(RECURRENT, 0.001, "cpu"), {"mode": "default"})
    assert found.high < 1.1


def test_operators_of_one_micro_batch_are_held_to_all_of_the_steps() -> None:
    """With four micro-batches the stages are four times what the operators of one add up to."""
    case = case_of(LONG, 0.001, "cpu")
    four: Any = with_stages(case, **{name: 4 * case.pipeline.stage(name).seconds for name in ("forward", "backward")})
    more = four.pipeline.round.simulation.model_copy(update={"accumulation": 4})
    four = replace(four, pipeline=Pipeline(four.pipeline.round.model_copy(update={"simulation": more})))
    one, many = (promised(REGISTRY["compile"], each, {"mode": "default"}) for each in (case, four))
    assert many.value == pytest.approx(one.value, rel=0.03)


# Compiled models: the loss with the model as one graph, blocks that repeat, and what is offered when.


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
