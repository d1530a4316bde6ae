"""From a survey to the round, each stage in turn made the bottleneck; FLOPs, bytes, peaks and ceilings. Pure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records import Deeper, Operator, Peaks, Plan, Round, Stage
from autoopt.records.distributed import Communication, Spread
from autoopt.records.messages import Block
from autoopt.simplify import peaks as peaks_module
from autoopt.simplify.analyse import analyse, communication
from autoopt.simplify.bottleneck import bottleneck, classify, fused_ceiling, operator_ceiling, stage_ceilings
from autoopt.simplify.microbenchmarks import count_operators, operators
from autoopt.simplify.peaks import measured_peaks
from autoopt.simplify.pipeline import Pipeline
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing

PEAKS = Peaks(
    matmul_fp32_flops_per_second=1e11, matmul_bf16_flops_per_second=4e11, memory_bytes_per_second=1e10,
    copy_pinned_to_device_bytes_per_second=1e10, launch_seconds=5e-6,
)  # fmt: skip
OPERATORS = (
    Operator(name="aten::mm", seconds=0.003, flops=1e8, bytes=1e6, calls=10, kind="matmul"),
    Operator(name="aten::relu", seconds=0.0005, bytes=1e6, calls=5, kind="elementwise"),
)


def timing(seconds: float, **more: float) -> Timing:
    return Timing(seconds=seconds, **more)


def survey_of(device: str = "cpu", **changes: Any) -> StageTimings:
    inputs = {
        "sample": timing(0.0001, cpu_seconds=0.0001, wait_seconds=0.0),
        "collate": timing(0.0002),
        "handover": timing(0.0002),
        "receive": timing(0.0001),
    }
    inputs |= changes.pop("inputs", {})
    fields: dict[str, Any] = {
        "device": device, "cores": 4, "threads": 1, "workers": 0, "batch_size": 10, "batch_bytes": 10_000,
        "allowed_precisions": ("fp32", "bf16"), "transfer": timing(0.0002 if device == "cuda" else 0.0),
        "forward": timing(0.002), "backward": timing(0.003), "optimizer": timing(0.001), "host": timing(0.0001),
        "compute": timing(0.0061), "evaluate": timing(0.1), "evaluate_every": 1000,
        "evaluation_samples": 320, "checkpoint": timing(0.1), "checkpoint_every": 1000, "operators": OPERATORS,
        "launches": 15, "optimizer_bytes": 1_000_000, "operators_forward_share": 1 / 3,
        "issue": timing(0.001) if device == "cuda" else None,
    }  # fmt: skip
    return StageTimings(**{**fields, **changes, "inputs": InputTimings(**inputs)})


def round_of(survey: StageTimings, step: float = 0.0073) -> Round:
    return analyse(0, Plan(), survey, Block(steps=10, samples=100, seconds=step * 10), PEAKS)


def test_the_step_is_the_sum_of_its_stages_on_a_cpu_without_workers() -> None:
    found = round_of(survey_of())
    assert found.predicted_step_seconds == pytest.approx(0.0073)
    assert found.simulation_error == pytest.approx(0.0, abs=1e-6)


def test_a_bottleneck_of_the_host_is_opened_by_the_users_dearest_function() -> None:
    own = tuple(
        Deeper(name=name, kind="line", seconds=seconds, file="train.py", line=9)
        for name, seconds in (("log", 0.002), ("targets", 0.015))
    )
    block = Block(steps=10, samples=100, seconds=0.27)
    for changes, last in (({"host": timing(0.02)}, "targets"), ({"forward": timing(0.02)}, "aten::mm")):
        found = analyse(0, Plan(), survey_of(**changes), block, PEAKS, own=own)
        assert (found.own, found.deeper[-1].name) == (own, last)


PLANTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "storage": ({"inputs": {"sample": timing(0.0021, cpu_seconds=0.0001, wait_seconds=0.002)}}, "storage", "cpu"),
    "preparation": ({"inputs": {"sample": timing(0.002, cpu_seconds=0.002, wait_seconds=0.0)}}, "preparation", "cpu"),
    "collate": ({"inputs": {"collate": timing(0.02)}}, "preparation", "cpu"),
    "forward": ({"forward": timing(0.02)}, "compute", "cpu"),
    "backward": ({"backward": timing(0.02)}, "compute", "cpu"),
    "optimizer": ({"optimizer": timing(0.02)}, "optimizer", "cpu"),
    "host": ({"host": timing(0.02)}, "host", "cpu"),
    "evaluate": ({"evaluate_every": 5}, "interruption", "cpu"),
    "checkpoint": ({"checkpoint_every": 5}, "interruption", "cpu"),
    "pin": ({"pin": timing(0.02), "pin_memory": True}, "transfer", "cuda"),
    "copy": ({"transfer": timing(0.02)}, "transfer", "cuda"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_bottleneck_is_named(name: str) -> None:
    changes, kind, device = PLANTS[name]
    found = round_of(survey_of(device, **changes))
    assert (found.bottleneck, found.bottleneck_class) == (name, kind)
    assert found.deeper[0].name == name


ISSUED_LATE = {"issue": timing(0.02)}
TRAFFIC = (OPERATORS[0], OPERATORS[1].model_copy(update={"seconds": 0.01}))


@pytest.mark.parametrize(
    ("device", "changes", "kind"),
    [
        ("cuda", ISSUED_LATE, "host"),
        ("cuda", {**ISSUED_LATE, "launches": 3000}, "launch overhead"),
        # forward and backward of 5 ms, and 5 us for a dispatch: at 167 operators each takes six of them
        *(("cpu", {"launches": launches}, "compute") for launches in (0, 150)),
        *(("cpu", {"launches": launches}, "launch overhead") for launches in (180, 1000)),
        pytest.param("cuda", {"issue": None, "host": timing(0.0), "launches": 10_000}, "launch overhead",
                     id="nobody knows how long issuing takes: the operators tell"),
        pytest.param("cpu", {"operators": TRAFFIC}, "memory bandwidth", id="traffic between operators"),
        pytest.param("cuda", {"memory_used": 0.99}, "memory capacity", id="a full device"),
    ],
)  # fmt: skip
def test_the_class_of_a_bottleneck_is_what_would_have_to_be_more(
    device: str, changes: dict[str, Any], kind: str
) -> None:
    found = round_of(survey_of(device, **changes))
    assert found.bottleneck_class == kind
    assert (found.bottleneck == "host") == (changes.get("issue") is not None)


@pytest.mark.parametrize(("issue", "kind"), [(0.0049, "compute"), (0.0051, "launch overhead")])
def test_on_a_device_launches_hold_a_step_that_takes_longer_to_issue_than_to_run(issue: float, kind: str) -> None:
    both = {"forward": timing(0.002), "backward": timing(0.003), "optimizer": timing(0.0), "host": timing(0.0)}
    found = Pipeline(round_of(survey_of("cuda", issue=timing(issue), launches=1, **both)))
    assert classify(found, "forward", PEAKS) == kind


def below(seconds: float = 0.001) -> tuple[Deeper, ...]:
    return (Deeper(name="x", kind="line", seconds=seconds, file="f.py", line=1),)


WORK, WAIT = (timing(0.002, cpu_seconds=0.002 - wait, wait_seconds=wait) for wait in (0.0, 0.0018))


@pytest.mark.parametrize(
    ("changes", "seconds", "gap"),
    [
        # a line of 1 ms a sample is 10 ms of a step of ten; all of it on one of four cores, and half on each of two
        pytest.param({"inputs": {"sample": WORK, "deeper": below()}}, 0.010, 4.0, id="the working lines"),
        pytest.param({"inputs": {"sample": WORK, "deeper": below()}, "workers": 2}, 0.005, 2.0, id="by two workers"),
        pytest.param({"inputs": {"sample": WAIT, "waiting": below()}}, 0.010, 32.0, id="the waiting lines"),
        pytest.param({"inputs": {"collate": timing(0.02), "collating": below()}}, 0.001, None, id="of the collate"),
        pytest.param({"evaluate_every": 5, "deeper": {"evaluate": below(0.1)}}, 0.1 / 5, None, id="of an evaluation"),
    ],
)  # fmt: skip
def test_lines_below_a_stage_are_in_seconds_of_a_step_and_as_far_from_their_best_as_it_is(
    changes: dict[str, Any], seconds: float, gap: float | None
) -> None:
    line = round_of(survey_of(**changes)).deeper[-1]
    assert (line.name, line.seconds) == ("x", pytest.approx(seconds))
    assert gap is None or line.gap == pytest.approx(gap)
    assert line.gap is None or line.ceiling_seconds == pytest.approx(line.seconds / line.gap)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        pytest.param({"inputs": {"loader": timing(0.005)}}, {"host": 0.0001 + 0.005 - 10 * 0.0001 - 0.0002},
                     id="the Python of a loader is the host's beyond samples and collate"),
        pytest.param({"inputs": {"sample": timing(0.0003, wait_seconds=0.0001)}},
                     {"storage": 0.001, "preparation": 0.002}, id="cores that were not read: all but the waiting"),
        pytest.param({"inputs": dict.fromkeys(("sample", "collate"))}, {"preparation": None, "forward": 0.002},
                     id="an input side that was not measured leaves the rest"),
    ],
)  # fmt: skip
def test_stages_of_what_was_timed(changes: dict[str, Any], seconds: dict[str, float | None]) -> None:
    found = {stage.name: stage.seconds for stage in round_of(survey_of(**changes)).stages}
    assert {name: found.get(name) for name in seconds} == pytest.approx(seconds)


def test_at_the_ceiling_there_is_no_bottleneck() -> None:
    matmul = OPERATORS[0].model_copy(update={"flops": 4e11 * 0.0048})
    nothing = {"sample": timing(1e-9, cpu_seconds=1e-9, wait_seconds=0.0), "collate": timing(1e-9)}
    found = round_of(
        survey_of(operators=(matmul,), inputs=nothing, optimizer=timing(0.0001), compute=timing(0.0051)), 0.0051
    )
    assert found.bottleneck is None
    assert found.bottleneck_class is None
    assert found.deeper == ()
    assert found.ceiling_step_seconds == pytest.approx(0.0049, rel=0.02)


def test_without_peaks_there_are_stages_but_no_step_ceiling() -> None:
    found = analyse(0, Plan(), survey_of(), Block(steps=1, samples=1, seconds=0.007), Peaks())
    assert found.ceiling_step_seconds is None
    assert [each.ceiling_seconds for each in found.operators] == [None, None]
    assert found.bottleneck == "backward"


def test_a_step_that_is_replayed_as_a_whole_is_split_by_what_its_stages_take_alone() -> None:
    """Launched one by one, forward, backward and optimizer take 6 ms; replayed, the step takes 3."""
    survey = survey_of("cuda", compute=timing(0.003), issue=timing(0.0001))
    told = {"data": 0.004, "copy": 0.002, "whole": 0.03, "other": 0.001}
    block = Block(steps=10, samples=100, seconds=0.037, stage_seconds=told)
    found = analyse(0, Plan(), survey, block, PEAKS)
    stages = {stage.name: stage for stage in found.stages}
    assert stages["forward"].seconds == pytest.approx(0.001)
    assert stages["backward"].seconds == pytest.approx(0.0015)
    assert stages["optimizer"].seconds == pytest.approx(0.0005)
    assert stages["forward"].exposed_seconds is None
    assert "replayed" in stages["forward"].note
    assert stages["copy"].exposed_seconds == pytest.approx(0.0002)
    wrapped = block.model_copy(update={"stage_seconds": {**told, "whole": 0.0001, "forward": 0.01}})
    assert analyse(0, Plan(), survey, wrapped, PEAKS).stages[3].exposed_seconds is not None


@given(
    data=st.floats(0.0, 0.01), copy=st.floats(0.0, 0.01), forward=st.floats(1e-4, 0.01), backward=st.floats(1e-4, 0.01),
    optimizer=st.floats(1e-5, 0.01), other=st.floats(0.0, 0.01), every=st.integers(1, 50), workers=st.integers(0, 3),
)  # fmt: skip
def test_what_is_in_a_step_adds_up_to_it_and_evaluation_is_not_in_it(
    data: float, copy: float, forward: float, backward: float, optimizer: float, other: float, every: int, workers: int
) -> None:
    told = {"data": data, "copy": copy, "forward": forward, "backward": backward, "optimizer": optimizer,
            "other": other}  # fmt: skip
    block = Block(steps=1, samples=10, seconds=sum(told.values()), stage_seconds=told)
    survey = survey_of(evaluate_every=every, checkpoint_every=every, workers=workers)
    found = analyse(0, Plan(), survey, block, PEAKS)
    assert sum(stage.exposed_seconds or 0.0 for stage in found.stages) == pytest.approx(found.step_seconds)
    between = {stage.name: stage for stage in found.stages if stage.name in ("evaluate", "checkpoint")}
    assert [stage.exposed_seconds for stage in between.values()] == [None, None]
    assert between["evaluate"].seconds == pytest.approx(0.1 / every)
    assert f"once in {every}" in between["evaluate"].note


@pytest.mark.parametrize(("seconds", "named"), [(0.0011, False), (0.0025, True)])
def test_an_operator_is_named_where_it_weighs_a_tenth_of_its_stage(seconds: float, named: bool) -> None:
    changes, _, device = PLANTS["forward"]
    lone = (Operator(name="aten::tanh", seconds=seconds, bytes=1e6, calls=5, kind="elementwise"),)
    found = round_of(survey_of(device, **changes, operators=lone))
    assert [item.name for item in found.deeper if item.kind == "operator"] == (["aten::tanh"] if named else [])


def test_an_operator_stands_with_its_own_roofline_and_products_serve_both_directions() -> None:
    changes, _, device = PLANTS["backward"]
    product = Operator(name="aten::mm", seconds=0.019, flops=1e8, bytes=1e6, calls=10, kind="matmul")
    backward = Operator(name="aten::threshold_backward", seconds=0.003, bytes=1e6, calls=5, kind="elementwise")
    found = round_of(survey_of(device, **changes, operators=(product, backward)))
    (named,) = [item for item in found.deeper if item.kind == "operator"]
    assert named.name == "aten::mm", "products of both directions have one name, and it is the costliest"
    assert named.ceiling_seconds == pytest.approx(1e8 / 4e11)
    assert named.gap == pytest.approx(0.019 / (1e8 / 4e11))


def test_messages_are_a_stage_with_what_hides_them_and_who_is_waited_for() -> None:
    even, slow = Spread(median=0.01, low=0.009, high=0.011, n=5), Spread(median=0.015, low=0.014, high=0.016, n=5)
    sent = Communication(
        processes=2,
        gradient_bytes=4_000_000,
        alone=Spread(median=0.008, low=0.007, high=0.009, n=5),
        apart=(even, slow),
        exposed=0.005,
        by_size={1_000_000: 0.001, 4_000_000: 0.002},
        straggler=1,
    )
    stage = communication(sent)
    assert (stage.seconds, stage.exposed_seconds) == (0.008, 0.005)
    assert stage.ceiling_seconds == pytest.approx(4e6 / 2e9)
    assert stage.gap == pytest.approx(4.0)
    assert "0.003 s of it are hidden" in stage.note
    assert "rank 1, which is 1.50 times as slow" in stage.note


def test_each_ceiling_is_what_its_peak_allows() -> None:
    survey = survey_of("cuda", pin=timing(0.02), pin_memory=True, cores=4, accumulation=2,
                       inputs={"sample": timing(0.002, cpu_seconds=0.001, wait_seconds=0.001)})  # fmt: skip
    peaks = PEAKS.model_copy(update={"host_memory_bytes_per_second": 2e9})
    found = stage_ceilings(survey, peaks)
    assert found["preparation"] == pytest.approx(20 * 0.001 / 4)
    assert found["storage"] == pytest.approx(20 * 0.001 / 32)
    assert found["collate"] == pytest.approx(20_000 / 2e9 / 4)
    assert found["pin"] == pytest.approx(20_000 / 2e9)
    assert found["copy"] == pytest.approx(20_000 / 1e10)
    assert found["backward"] == pytest.approx(2 * found["forward"])
    assert found["host"] == 0.0
    assert found["evaluate"] == pytest.approx(found["forward"] / 20 * 320 / 1000), (
        "its samples at the rate of the forward pass"
    )
    assert found["optimizer"] == pytest.approx(1e-4)
    assert found["forward"] == pytest.approx(2 * 1e8 / 4e11 / 3)
    assert "collate" not in stage_ceilings(survey, PEAKS), "the host's rate is not known"
    unknown = PEAKS.model_copy(update={"copy_pinned_to_device_bytes_per_second": None})
    assert "copy" not in stage_ceilings(survey, unknown)
    assert stage_ceilings(survey_of(), PEAKS)["copy"] == 0.0


def test_the_exposed_wait_for_data_is_shared_out_by_weight() -> None:
    survey = survey_of(inputs={"sample": timing(0.0004, cpu_seconds=0.0001, wait_seconds=0.0003)})
    block = Block(steps=10, samples=100, seconds=0.1, stage_seconds={"data": 0.06})
    stages = {stage.name: stage.exposed_seconds for stage in analyse(0, Plan(), survey, block, PEAKS).stages}
    assert stages["storage"] == pytest.approx(0.006 * 3.0 / 4.2)
    assert stages["preparation"] == pytest.approx(0.006 * 1.0 / 4.2)
    assert stages["collate"] == pytest.approx(0.006 * 0.2 / 4.2)


def test_what_a_micro_batch_costs_the_training_process_is_paid_for_each_of_a_step() -> None:
    known = round_of(survey_of(accumulation=2)).simulation
    assert (known.handover_seconds, known.receive_seconds) == (pytest.approx(0.0004), pytest.approx(0.0002))


def test_a_stage_that_is_nothing_of_the_step_is_no_bottleneck() -> None:
    copy = Stage(name="copy", resource="link", seconds=3e-7, exposed_seconds=0.0, ceiling_seconds=0.0)
    round_ = Round(index=0, plan=Plan(), step_seconds=0.09, stages=(copy,))
    assert bottleneck(Pipeline(round_), None) is None, "forward and backward could not be measured alone"
    assert bottleneck(Pipeline(round_.model_copy(update={"step_seconds": 4e-7})), None) == "copy"


RATES = Peaks(
    matmul_fp32_flops_per_second=1e9, matmul_bf16_flops_per_second=4e9, memory_bytes_per_second=1e8,
    memory_bytes_per_second_by_size={1024: 5e8, 1 << 20: 2e8},
)  # fmt: skip


def test_matmul_counts() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    counts = count_operators(lambda: a @ b)
    mm = counts["aten::mm"]
    assert (mm.calls, mm.flops, mm.bytes, mm.kind) == (1, 2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4), "matmul")


def test_views_cost_nothing_and_elementwise_moves_bytes() -> None:
    x = torch.randn(10, 10)
    counts = count_operators(lambda: x.t().reshape(100).relu().view(10, 10))
    assert "aten::t" not in counts
    assert counts["aten::relu"].bytes == 2 * 400


def test_every_operator_has_its_seconds() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    training: Any = SimpleNamespace(
        forward=lambda batch: torch.relu(batch @ batch).sum(),
        backward=torch.Tensor.backward,
        optimizer=torch.optim.SGD([weight]),
        device=SimpleNamespace(kind="cpu"),
    )
    found = operators(training, weight)
    by_name = {item.name: item for item in found["operators"]}
    assert by_name["aten::mm"].calls == 3
    assert by_name["aten::mm"].seconds > 0
    assert found["launches"] == sum(item.calls or 0 for item in found["operators"])
    assert found["operators_forward_share"] == pytest.approx(1 / 3)


def test_the_roofline_is_the_larger_of_both() -> None:
    arithmetic = Operator(name="mm", seconds=1.0, flops=8e9, bytes=100.0, calls=1)
    traffic = Operator(name="relu", seconds=1.0, bytes=1e9, calls=1)
    assert operator_ceiling(arithmetic, RATES, ("fp32",)) == 8.0
    assert operator_ceiling(arithmetic, RATES, ("fp32", "bf16")) == 2.0
    assert operator_ceiling(traffic, RATES, ("fp32",)) == 10.0
    assert fused_ceiling((arithmetic, traffic), RATES, ("fp32", "bf16")) == 2.0


def test_caches_serve_small_pieces_faster() -> None:
    assert RATES.bandwidth(512) == 5e8
    assert RATES.bandwidth(1e6) == 2e8
    assert RATES.bandwidth(1e9) == 1e8
    assert RATES.bandwidth() == 1e8


@pytest.mark.parametrize(
    ("kind", "foreign", "others", "kept"),
    [
        ("cpu", 0.0, [], True),
        pytest.param("cpu", 0.9, [], False, id="other programs had the cores"),
        ("cuda:0", 0.0, [], True),
        pytest.param("cuda:0", 0.0, [4711], False, id="others use the device: half its peak would stand for it"),
    ],
)
def test_undisturbed_peaks_are_kept_in_the_users_cache_and_a_damaged_file_is_measured_again(
    kind: str, foreign: float, others: list[int], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def measure(device: torch.device) -> Peaks:
        measured.append(1)
        return RATES.model_copy(update={"foreign_cores": foreign})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in {
        "measure": measure,
        "_key": lambda device: "device",
        "open_device": lambda name: None,
        "other_users": lambda device: others,
    }.items():
        monkeypatch.setattr(peaks_module, name, value)
    device = torch.device(kind)
    first = measured_peaks(device)
    assert first.foreign_cores == foreign
    assert measured_peaks(device) == first
    assert len(measured) == (1 if kept else 2)
    files = list((tmp_path / "autoopt").glob("peaks-*.json"))
    assert len(files) == kept
    for file in files:
        file.write_text("{")
        assert measured_peaks(device) == first
        assert len(measured) == 2


def test_measured_peaks_are_plausible() -> None:
    cpu = torch.device("cpu")
    assert 1e8 < (peaks_module.matmul_rate(cpu, "fp32", 0.05) or 0) < 1e14
    assert 1e8 < peaks_module.stream_rate(cpu, 1 << 22, 0.02) < 1e13
    assert 1e-8 < peaks_module.launch_cost(cpu, 200) < 1e-3


@pytest.mark.parametrize("seconds", [3e-5, 0.02])
def test_the_wait_for_a_device_is_no_part_of_a_short_calls_seconds(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of 30 µs whose end is waited for in 10 µs would be read as 40."""
    now: list[float] = [0.0]
    monkeypatch.setattr("autoopt.simplify.microbenchmarks.time.perf_counter", lambda: sum(now))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: now.append(1e-5))
    device: Any = SimpleNamespace(type="cuda")
    assert peaks_module.shortest(lambda: now.append(seconds), device, 0.0) == pytest.approx(seconds, rel=0.01)


def test_a_device_is_read_in_pieces_that_its_caches_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[str, int]] = []

    def rate(device: torch.device, size: int, time_limit: float) -> float:
        sizes.append((device.type, size))
        return 1e12 if device.type == "cuda" else 1e10

    monkeypatch.setattr(peaks_module, "stream_rate", rate)
    for name, value in {"warm": None, "matmul_rate": 1e13, "copy_rates": {}, "launch_cost": 1e-6}.items():
        monkeypatch.setattr(peaks_module, name, lambda *_, found=value: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 80 << 30))
    found = peaks_module.measure(torch.device("cuda"), 0.1)
    assert max(size for kind, size in sizes if kind == "cuda") == 1 << 29, "half of what is free"
    assert found.host_memory_bytes_per_second == 1e10
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 << 30, 80 << 30))
    found = peaks_module.measure(torch.device("cuda"), 0.1)
    assert max(found.memory_bytes_per_second_by_size) >= 1 << 31


def test_batches_are_collated_in_the_hosts_memory_whatever_the_device() -> None:
    peaks = RATES.model_copy(update={"host_memory_bytes_per_second": 3e7})
    assert peaks.host_bandwidth("cpu", 512) == 5e8
    assert peaks.host_bandwidth("cuda", 512) == 3e7
    assert RATES.host_bandwidth("cuda") is None
