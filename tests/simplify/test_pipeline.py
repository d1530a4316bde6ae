"""The pipeline graph: what it predicts for known demands, its own consistency, and what more devices would give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records import Contention, EstimateKind, Fed, Plan, Resource, Round, Simulation, Stage
from autoopt.records.distributed import Communication, ScalingForecast, Spread
from autoopt.simplify.analyse import communication
from autoopt.simplify.pipeline import Demand, Pipeline, forecasts, period, sending, thread_ratio

CROWDED = (
    Contention(threads=1, workers=1, prepare=0.97, step=0.97),
    Contention(threads=2, workers=2, prepare=0.55, step=0.2),
)
"""Speeds on two cores, as spinning processes beside compute threads had them."""
RESOURCES = {"forward": Resource.DEVICE, "backward": Resource.DEVICE, "copy": Resource.LINK}
ALONE = {"preparation": 0.030, "forward": 0.004, "backward": 0.006}


def round_of(seconds: dict[str, float] | None = None, step: float | None = None, **known: Any) -> Round:
    values = seconds or ALONE
    parallel = int(known.get("workers", 0) or 1)
    stages = tuple(
        Stage(
            name=name,
            resource=RESOURCES.get(name, Resource.HOST),
            seconds=value,
            parallel=parallel if name in ("storage", "preparation", "collate") else 1,
        )
        for name, value in values.items()
    )
    simulation = Simulation.model_validate({"cores": 2, "threads": 2, **known})
    total = sum(values.values()) if step is None else step
    return Round(index=0, plan=Plan(), step_seconds=total, stages=stages, simulation=simulation, simulation_error=0.0)


SYNC = {"preparation": 0.004, "copy": 0.003, "forward": 0.01, "host": 0.002}
SLOW_DISK = {"storage": 0.08, "forward": 0.004, "backward": 0.006}
DEVICE = {"device": "cuda", "cores": 16}
INTERLEAVED = {"storage": 0.004, "preparation": 0.002, "forward": 0.001, "backward": 0.001}
ROOM, RESTED = {"cores": 16, "threads": 1}, {"wakeup_ratio": 2.0, "pause_seconds": 0.006}
MANY_CORES = {"cores": 8, "threads": 1}
TWO_WORKERS = {**ALONE, "preparation": 0.015}
"""``seconds`` are those with all workers at work: two workers that take 15 ms a step each did 30 ms of work."""


@pytest.mark.parametrize(
    ("stages", "known", "options", "step", "near"),
    [
        pytest.param(None, {}, {}, 0.040, 1e-6, id="a CPU without workers does one thing after the other"),
        pytest.param(None, {"accumulation": 4}, {}, 0.040, 1e-6, id="several batches a step"),
        pytest.param(None, MANY_CORES, {"workers": 1}, 0.030, 0.01, id="one worker overlaps"),
        pytest.param(None, MANY_CORES, {"workers": 2}, 0.015, 0.02, id="two workers overlap"),
        pytest.param(None, MANY_CORES, {"workers": 6}, 0.010, 0.01, id="with many workers the step decides"),
        pytest.param(TWO_WORKERS, {**MANY_CORES, "workers": 2}, {}, 0.015, 0.02, id="workers that there are"),
        pytest.param(TWO_WORKERS, {**MANY_CORES, "workers": 2}, {"workers": 0}, 0.040, 0.01, id="without them"),
        pytest.param(SLOW_DISK, {"threads": 1}, {"workers": 4}, 0.020, 0.02, id="waiting needs no core"),
        pytest.param(SLOW_DISK, {"threads": 1}, {"workers": 8}, 0.010, 0.05, id="more workers than cores wait"),
        pytest.param({**SYNC, "copy": 0.0}, DEVICE, {}, 0.01, 0.01, id="a device beside its host"),
        pytest.param(SYNC, DEVICE, {}, 0.013, 0.02, id="a copy that the host waits for"),
        pytest.param(SYNC, {**DEVICE, "blocking_copy": False}, {}, 0.01, 0.01, id="a copy that it does not wait for"),
        pytest.param({"forward": 0.001, "host": 0.005}, DEVICE, {}, 0.005, 0.01, id="a slow host"),
        pytest.param(INTERLEAVED, {**ROOM, "cold_ratio": 1.5}, {}, 0.009, 1e-6, id="batches between steps are colder"),
        pytest.param(INTERLEAVED, {**ROOM, **RESTED}, {}, 0.010, 1e-6, id="steps after batches wake threads"),
        pytest.param(INTERLEAVED, {**ROOM, **RESTED, "pause_seconds": 0.012}, {}, 0.009, 1e-6,
                     id="half the pause, half of what it costs"),
        *(pytest.param(INTERLEAVED, {**ROOM, **RESTED, "cold_ratio": 3.0}, options, step, near, id=why)
          for options, step, near, why in (
              ({"workers": 8}, 0.002, 0.02, "workers that keep up leave no pause"),
              ({"workers": 1}, 0.006, 0.05, "the one worker decides"),
              ({"seconds": {"storage": 0.0, "preparation": 0.0}}, 0.002, 1e-6, "batches that cost nothing"))),
    ],
)  # fmt: skip
def test_a_step_of_known_stages(
    stages: dict[str, float] | None, known: dict[str, Any], options: dict[str, Any], step: float, near: float
) -> None:
    assert Pipeline(round_of(stages, **known)).simulate(**options) == pytest.approx(step, rel=near)


def test_two_workers_with_one_compute_thread_beat_either_alone() -> None:
    """The synergy on two cores: neither change alone brings what both bring."""
    pipeline = Pipeline(round_of(compute_by_threads={1: 0.014, 2: 0.010}, contention=CROWDED))
    both = pipeline.gain(workers=2, threads=1).value
    workers, threads = pipeline.gain(workers=2).value, pipeline.gain(threads=1).value
    assert threads < 1.0
    assert both > 1.5
    assert both > 1.2 * workers


def test_handing_over_can_cost_more_than_it_brings() -> None:
    pipeline = Pipeline(round_of({"preparation": 0.0001, "forward": 0.0001}, handover_seconds=0.001))
    assert pipeline.gain(workers=1).value < 0.3


def test_a_saved_round_simulates_the_same() -> None:
    before = round_of(workers=2, compute_by_threads={1: 0.02, 2: 0.01})
    after = Pipeline(Round.model_validate_json(before.model_dump_json()))
    assert after.simulate(workers=3, threads=1) == Pipeline(before).simulate(workers=3, threads=1)


def test_interruptions_count_where_they_are_asked_for() -> None:
    pipeline = Pipeline(round_of({**ALONE, "evaluate": 0.04}))
    assert pipeline.gain({"evaluate": 0.0}).value == pytest.approx(2.0)
    assert pipeline.gain({"preparation": 0.03}).value == pytest.approx(1.0)


@pytest.mark.parametrize("wrong", [{"seconds": {"copying": 1.0}}, {"workers": -1}, {"threads": 0}, {"prefetch": 0}])
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no stage 'copying'|workers >= 0"):
        Pipeline(round_of()).simulate(**wrong)  # type: ignore[arg-type]


seconds = st.floats(1e-5, 0.1)


@given(
    wait=seconds, prepare=seconds, compute=seconds, host=seconds, workers=st.integers(0, 6), cores=st.integers(1, 8),
    threads=st.integers(1, 8), prefetch=st.integers(1, 4), issue=st.none() | seconds,
)  # fmt: skip
def test_a_step_is_no_faster_than_each_resource_and_no_slower_than_all_in_a_row(
    wait: float, prepare: float, compute: float, host: float, workers: int, cores: int, threads: int, prefetch: int,
    issue: float | None,
) -> None:  # fmt: skip
    demand = Demand(wait=wait, prepare=prepare, compute=compute, host=host, workers=workers, cores=cores,
                    threads=threads, prefetch=prefetch, issue=issue)  # fmt: skip
    found = period(demand)
    lanes = max(workers, 1)
    assert found >= max((wait + prepare) / lanes, compute, host) * 0.95
    crowd = max(1.0, (workers + threads) / cores)
    assert found <= (wait + prepare + compute + host + (issue or 0.0)) * crowd * 1.05


@given(prepare=seconds, compute=seconds, workers=st.integers(1, 4))
def test_less_work_is_never_slower(prepare: float, compute: float, workers: int) -> None:
    base = Demand(prepare=prepare, compute=compute, workers=workers, cores=4, threads=1)
    less = Demand(prepare=prepare / 2, compute=compute, workers=workers, cores=4, threads=1)
    assert period(less) <= period(base) * 1.02


@pytest.mark.parametrize(
    ("tried", "step", "asked", "times"),
    [
        (((2, 1.4),), 1.0, {"workers": 2}, 1.4),
        pytest.param(((2, 1.4),), 1.0, {"workers": 3}, 1.4, id="as far off as its neighbour"),
        pytest.param(((2, 1.4),), 1.0, {"workers": 2, "threads": 1}, 1.0, id="other threads, another matter"),
        pytest.param(((2, 1.4),), 1.0, {}, 1.0, id="the present step"),
        pytest.param(((2, 1.4),), 1.0, {"workers": 2, "seconds": {"preparation": 0.0}}, 1.0, id="other batches"),
        *(pytest.param(((2, 1.0), (8, 1.2)), 1.0, {"workers": count}, times, id=f"the nearest of {count}")
          for count, times in ((3, 1.0), (7, 1.2))),
        pytest.param(((2, 1.2),), 1.2, {"workers": 2}, 1.0, id="what the present step is off counts for both"),
        pytest.param(((2, 30.0),), 1.0, {"workers": 2}, 2.0, id="one that was disturbed moves nothing further"),
    ],
)  # fmt: skip
def test_a_step_that_was_tried_with_workers_holds_the_simulation_to_life(
    tried: tuple[tuple[int, float], ...], step: float, asked: dict[str, Any], times: float
) -> None:
    """Workers next to two threads were run, and the step took so many times what the graph makes of its parts."""
    plain = Pipeline(round_of(cores=16, threads=2))
    fed = tuple(Fed(workers=w, threads=2, seconds=off * plain.simulate(workers=w)) for w, off in tried)
    held = Pipeline(round_of(cores=16, threads=2, fed=fed, step=step * plain.simulate()))
    assert held.simulate(**asked) == pytest.approx(times * plain.simulate(**asked))
    assert held.gain(**asked).value == pytest.approx(plain.gain(**asked).value / times)


def test_a_step_that_was_tried_with_other_threads_is_what_is_predicted() -> None:
    """A replayed step said that one thread is slower; the training's own steps were faster with it."""
    table = {2: 0.010, 1: 0.011}
    plain = Pipeline(round_of(workers=0, cores=2, threads=2, compute_by_threads=table))
    assert plain.gain(threads=1).value < 1.0
    assert plain.gain(threads=1).kind is EstimateKind.SIMULATED
    fed = (Fed(workers=0, threads=1, seconds=plain.step_seconds / 1.17, spread=0.02),)
    found = Pipeline(round_of(workers=0, cores=2, threads=2, compute_by_threads=table, fed=fed)).gain(threads=1)
    assert found.value == pytest.approx(1.17)
    assert (found.low, found.high) == pytest.approx((1.17 / 1.02, 1.17 * 1.02))
    assert found.kind is EstimateKind.TRIED


def test_what_other_threads_brought_holds_with_other_workers_and_without() -> None:
    """A replayed step of one thread is as fast; the training's own, with its workers, was a fifth slower."""
    table = {2: 0.010, 1: 0.010}
    plain = Pipeline(round_of(workers=2, cores=2, threads=2, compute_by_threads=table))
    slower = 1.2 * plain.step_seconds * plain.simulate(threads=1) / plain.simulate()
    fed = (Fed(workers=2, threads=1, seconds=slower, spread=0.02),)
    held = Pipeline(round_of(workers=2, cores=2, threads=2, compute_by_threads=table, fed=fed))
    rows = {"preparation": 0.0}
    assert held.simulate(rows, workers=0, threads=1) == pytest.approx(1.2 * plain.simulate(rows, workers=0, threads=1))
    alone, after = plain.after(rows, workers=0), held.after(rows, workers=0)
    assert after.gain(threads=1).value == pytest.approx(alone.gain(threads=1).value / 1.2)
    assert held.simulate(rows, workers=0) == plain.simulate(rows, workers=0)


def test_saving_is_what_a_step_would_be_shorter_without_a_stage() -> None:
    pipeline = Pipeline(round_of({**ALONE, "evaluate": 0.04}))
    assert pipeline.saving("preparation") == pytest.approx(0.030)
    assert pipeline.saving("evaluate") == 0.04
    assert pipeline.saving("no such stage") == 0.0
    hidden = Pipeline(round_of({"preparation": 0.002, "forward": 0.01}, workers=1, cores=8, threads=1))
    assert hidden.saving("preparation") == pytest.approx(0.0, abs=1e-4), "workers hide it"


def test_the_width_of_an_interval_goes_with_error_and_change() -> None:
    pipeline = Pipeline(round_of().model_copy(update={"simulation_error": 0.1}))
    found = pipeline.gain({"preparation": 0.0})
    off = 0.1 * ((4.0 - 1.0) / 4.0) ** 0.5
    assert (found.low, found.high) == (pytest.approx(4.0 / (1 + off)), pytest.approx(4.0 * (1 + off)))
    assert (found.kind, found.n) == (EstimateKind.SIMULATED, 1)
    small = pipeline.gain({"preparation": 0.020})
    off = 0.1 * ((4.0 / 3.0 - 1.0) / (4.0 / 3.0)) ** 0.5
    assert (small.value, small.high) == (pytest.approx(4.0 / 3.0), pytest.approx(4.0 / 3.0 * (1 + off)))
    exact = Pipeline(round_of()).gain({"preparation": 0.0})
    assert exact.high == pytest.approx(4.0 * (1 + 0.01 * 0.75**0.5)), "never surer than a hundredth"
    assert pipeline.gain({}).low == pipeline.gain({}).high == 1.0


def test_threads_in_between_lie_on_a_line_in_their_inverse() -> None:
    unknown = Simulation(threads=8)
    assert (thread_ratio(unknown, 4), thread_ratio(unknown, 16)) == (2.0, 1.0), "what was not measured promises nothing"
    known = Simulation(threads=8, compute_by_threads={1: 8.0, 4: 2.0, 8: 1.0})
    assert (thread_ratio(known, 4), thread_ratio(known, 16)) == (2.0, 1.0)
    assert thread_ratio(known, 2) == pytest.approx(2.0 + (1 / 2 - 1 / 4) / (1 - 1 / 4) * 6.0)
    assert thread_ratio(known, 6) == pytest.approx(1.0 + (1 / 6 - 1 / 8) / (1 / 4 - 1 / 8) * 1.0)
    assert thread_ratio(known.model_copy(update={"compute_by_threads": {8: 1.0}}), 4) == 2.0


COPIED = {"copy": 0.02, "forward": 0.001, "host": 0.005}


@pytest.mark.parametrize(
    ("stages", "known", "path"),
    [
        ({**ALONE, "host": 0.001}, {}, ("preparation", "forward", "backward", "host")),
        ({**ALONE, "host": 0.001}, {"workers": 1}, ("preparation",)),
        ({**ALONE, "host": 0.001}, {"device": "cuda"}, ("preparation", "host")),
        pytest.param(COPIED, {"device": "cuda", "workers": 1, "blocking_copy": True}, ("copy", "host"),
                     id="a copy that the training process waits for is its own"),
        pytest.param(COPIED, {"device": "cuda", "workers": 1, "blocking_copy": False}, ("copy",),
                     id="one that it does not wait for"),
    ],
)  # fmt: skip
def test_stages_of_one_resource_stand_on_one_path(
    stages: dict[str, float], known: dict[str, Any], path: tuple[str, ...]
) -> None:
    assert Pipeline(round_of(stages, **known)).critical_path() == path


def test_a_worker_that_prepares_ahead_waits_for_nobody_and_its_queue_is_bounded() -> None:
    """Ten times as fast as the step: the step decides, whatever the queue holds."""
    for prefetch in (1, 4):
        demand = Demand(prepare=0.001, receive=0.002, compute=0.010, workers=2, prefetch=prefetch, cores=8, threads=1)
        assert period(demand) == pytest.approx(0.012, rel=0.01)


def test_messages_cost_what_the_backward_pass_does_not_hide() -> None:
    sent = Stage(name="communication", resource=Resource.LINK, seconds=0.010, exposed_seconds=0.004)

    def step(stage: Stage, **changed: float) -> float:
        one = round_of(threads=1)
        return Pipeline(one.model_copy(update={"stages": (*one.stages, stage)})).simulate(changed)

    alone = Pipeline(round_of(threads=1)).simulate()
    assert step(sent) == pytest.approx(alone + 0.004)
    assert step(sent, communication=0.008) == pytest.approx(alone + 0.002)
    assert step(sent, communication=0.005) == pytest.approx(alone), "all of it is hidden then"
    assert step(sent.model_copy(update={"exposed_seconds": None})) == pytest.approx(alone), "not known, not charged"


@given(first=st.floats(0.1, 1.0), second=st.floats(0.1, 1.0), workers=st.sampled_from([None, 0, 1]))
def test_changes_one_after_another_are_what_they_are_together(first: float, second: float, workers: int | None) -> None:
    """Gains of the same stages multiply to that of both, and what is made as short once more brings nothing."""
    pipeline = Pipeline(round_of({**ALONE, "evaluate": 0.01}, workers=1, compute_by_threads={1: 0.014, 2: 0.010}))
    one, other = {"forward": 0.004 * first}, {"backward": 0.006 * second}
    after = pipeline.after(one, workers=workers)
    assert after.simulate() == pytest.approx(pipeline.simulate(one, workers=workers))
    assert after.step_seconds == pytest.approx(pipeline.step_seconds * after.simulate() / pipeline.simulate())
    apart = pipeline.gain(one, workers=workers).value * after.gain(other).value
    assert apart == pytest.approx(pipeline.gain({**one, **other}, workers=workers).value)
    assert after.gain(one, workers=workers).value == pytest.approx(1.0)
    assert pipeline.stage("forward") != after.stage("forward") or first == 1.0


FORWARD, BACKWARD, UPDATE = 0.04, 0.08, 0.01
HOP, BANDWIDTH, GRADIENTS = 1e-4, 2e9, 40_000_000


def ring(processes: int, size: int = GRADIENTS) -> float:
    """Seconds of an all-reduce on the known machine."""
    return 2 * (processes - 1) * HOP + 2 * (1 - 1 / processes) * size / BANDWIDTH if processes > 1 else 0.0


def exposed(processes: int, share: float, hides: float) -> float:
    return max(0.0, ring(processes) - hides * BACKWARD * share)


def true_throughput(processes: int, own_batch: bool, hides: float) -> float:
    """Samples a second over those of one process."""
    share = 1.0 if own_batch else 1 / processes
    step = (FORWARD + BACKWARD) * share + UPDATE + exposed(processes, share, hides)
    alone = FORWARD + BACKWARD + UPDATE
    return alone / step * (processes if own_batch else 1)


def spread(seconds: float) -> Spread:
    return Spread(low=seconds, median=seconds, high=seconds, n=9)


def measured(processes: int, own_batch: bool, hides: float, work: float = 0.0) -> tuple[Round, Communication]:
    """The round and the messages of so many processes of the known machine, as they are measured there."""
    share = 1.0 if own_batch else 1 / processes
    sizes = {size: ring(processes, size) for size in (4096, 1 << 20, 1 << 26)}
    sent = Communication(
        processes=processes,
        gradient_bytes=GRADIENTS,
        alone=spread(ring(processes)),
        apart=tuple(spread((FORWARD + BACKWARD) * share) for _ in range(processes)),
        exposed=exposed(processes, share, hides),
        by_size=sizes,
    )
    seconds = {"forward": FORWARD * share, "backward": BACKWARD * share, "optimizer": UPDATE}
    stages = [Stage(name=name, resource=Resource.DEVICE, seconds=each) for name, each in seconds.items()]
    if work:
        stages.insert(0, Stage(name="preparation", resource=Resource.WORKER, seconds=work * share, parallel=4))
    step = sum(seconds.values()) + sent.exposed
    round_ = Round(
        index=0,
        plan=Plan(),
        step_seconds=step,
        stages=(*stages, communication(sent)),
        simulation=Simulation(device="cuda", cores=8, workers=4 if work else 0),
        simulation_error=0.02,
    )
    return round_, sent


def by_count(found: tuple[ScalingForecast, ...]) -> dict[int, ScalingForecast]:
    return {each.processes: each for each in found}


@pytest.mark.parametrize("own_batch", [True, False])
@pytest.mark.parametrize("hides", [0.0, 0.5])
@pytest.mark.parametrize("processes", [2, 4])
def test_other_numbers_of_devices_are_told_from_one_measurement(own_batch: bool, hides: float, processes: int) -> None:
    round_, sent = measured(processes, own_batch, hides)
    found = by_count(forecasts(round_, sent, own_batch=own_batch, cores=None))
    assert sorted(found) == [2, 4, 8]
    for count, told in found.items():
        true = true_throughput(count, own_batch, hides)
        assert told.throughput.low < true < told.throughput.high, count
        assert told.efficiency.value == pytest.approx(told.throughput.value / count)
        if sent.exposed > 0.0 or not hides:  # else nobody knows what more could be hidden
            assert told.throughput.value == pytest.approx(true, rel=0.02), count


def test_messages_grow_with_hops_and_moved_bytes() -> None:
    _, sent = measured(2, own_batch=True, hides=0.0)
    assert [sending(sent, count) for count in (1, 2, 16)] == pytest.approx([0.0, ring(2), ring(16)], rel=0.02)


def test_all_prepare_their_samples_on_the_cores_that_there_are() -> None:
    """Four workers of 20 ms each a step are 80 ms of work: eight processes of them need 640 ms of cores a step."""
    round_, sent = measured(2, own_batch=True, hides=0.0, work=0.02)
    free = by_count(forecasts(round_, sent, own_batch=True, cores=None))
    found = by_count(forecasts(round_, sent, own_batch=True, cores=2))
    assert found[8].step_seconds == pytest.approx(0.32)
    assert found[8].throughput.value < free[8].throughput.value


def test_nothing_is_told_where_messages_were_not_measured() -> None:
    round_, sent = measured(2, own_batch=True, hides=0.0)
    without = round_.model_copy(update={"stages": round_.stages[:-1]})
    assert forecasts(without, sent, own_batch=True, cores=2) == ()
