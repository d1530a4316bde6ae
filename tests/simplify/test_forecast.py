"""What more devices would give: held against a machine whose steps and messages are known for every number of them."""

from __future__ import annotations

import pytest

from autoopt.records import Plan, Resource, Round, Simulation, Stage
from autoopt.records.distributed import Communication, ScalingForecast, Spread
from autoopt.simplify.analyse import communication
from autoopt.simplify.pipeline import forecasts, sending

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
