"""The report's charts: scales, bars that sum up, fronts that nothing beats, stages that each have a place."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

import sample
from autoopt import records as r
from autoopt_reports.charts.planes import Frame, Scale, frame, linear_ticks, log_ticks, span, tradeoff_chart
from autoopt_reports.view import Report
from autoopt_reports.view.learning import at, thin
from autoopt_reports.view.stages import columns_of
from autoopt_reports.view.steps import step_basis, waterfall_view
from autoopt_reports.view.text import Number
from autoopt_reports.view.tradeoff import knee, pareto, tradeoff_views

WIN = sample.win()
positive = st.floats(0.01, 100)


def gain(ratio: float) -> r.Estimate:
    return r.Estimate(value=ratio, low=ratio, high=ratio, n=5)


@given(st.lists(st.floats(0.2, 5), max_size=12), positive, positive)
def test_the_waterfall_sums_exactly_also_as_printed(ratios: list[float], before: float, after: float) -> None:
    trials = tuple(
        WIN.trials[0].model_copy(update={"id": k, "throughput": gain(ratio)}) for k, ratio in enumerate(ratios)
    )
    percentiles = [r.Percentiles(p50=s, p95=s, p99=s) for s in (before, after)]
    base, best = (c.model_copy(update={"step_seconds": p, "samples_per_second": None})
                  for c, p in zip((WIN.baseline, WIN.best), percentiles, strict=True))  # fmt: skip
    view = waterfall_view(WIN.model_copy(update={"trials": trials, "baseline": base, "best": best}))
    first, *middle, last = view.bars
    assert math.isclose(first.end + sum(bar.end - bar.start for bar in middle), last.end)
    for one, following in zip(view.bars, view.bars[1:-1], strict=False):
        assert one.end == following.start
    printed = [printed_number(bar.shown.text) for bar in view.bars]
    assert math.isclose(sum(printed[:-1]), printed[-1], abs_tol=1e-9 * max(map(abs, printed))), [
        b.shown.text for b in view.bars
    ]


def printed_number(text: str) -> float:
    return float(text.split()[0].replace("−", "-").replace(",", ""))


def test_a_larger_batch_is_compared_on_as_many_samples() -> None:
    doubled = WIN.best.model_copy(
        update={"samples_per_second": 1200.0, "step_seconds": r.Percentiles(p50=0.4267, p95=0.5, p99=0.6)}
    )
    basis = step_basis(WIN.model_copy(update={"best": doubled}))
    assert basis.after == 256 / 1200
    assert "256" in str(basis.words)


def test_a_step_of_a_launched_script_has_a_batch_of_each_process() -> None:
    launched = WIN.workload.model_copy(update={"processes": 4})
    one, four = step_basis(WIN), step_basis(WIN.model_copy(update={"workload": launched}))
    assert four.before == 4 * one.before
    assert "1,024" in str(four.words) or "1024" in str(four.words)


points = st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=40)


@given(points)
def test_nothing_beats_a_point_of_the_front(pairs: list[tuple[float, float]]) -> None:
    front = pareto(pairs)
    assert front
    for i in front:
        assert not any(x <= pairs[i][0] and y <= pairs[i][1] and (x, y) != pairs[i] for x, y in pairs)
    bend = knee(pairs, front)
    assert bend is None or bend in front


def test_the_knee_is_where_the_front_bends() -> None:
    pairs = [(0.0, 10.0), (1.0, 2.0), (5.0, 1.0), (10.0, 0.0)]
    assert knee(pairs, pareto(pairs)) == 1
    straight = [(0.0, 2.0), (1.0, 1.0), (2.0, 0.0)]
    assert knee(straight, pareto(straight)) is None


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    )
)
def test_columns_follow_the_edges_and_circles_do_not_hang(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = case
    names = [str(k) for k in range(count)]
    columns = columns_of(names, [(str(a), str(b)) for a, b in pairs if a != b])
    assert set(columns) == set(names)
    if all(a < b for a, b in pairs):
        assert all(columns[str(a)] < columns[str(b)] for a, b in pairs)


def test_no_two_stages_share_a_place_and_new_changes_are_pinned() -> None:
    for view in Report(WIN).lanes:
        places = [(node.lane, node.column) for node in view.nodes]
        assert len(set(places)) == len(places)
    pins = [{str(node.label): [str(p) for p in node.pins] for node in view.nodes} for view in Report(WIN).lanes]
    assert pins[0]["decode"] == []
    assert pins[1]["decode"] == ["workers"]
    assert pins[2]["decode"] == []
    assert pins[2]["forward"] == ["amp", "compile"]


def test_curves_are_read_between_their_points_and_not_beyond() -> None:
    line = ((0.0, 0.0), (10.0, 1.0))
    assert at(line, 5.0) == 0.5
    assert at(line, 11.0) is None
    assert len(thin(tuple(range(1000)))) == 48
    assert thin(tuple(range(1000)))[-1] == 999


def test_stages_in_the_bar_have_colours_of_their_own() -> None:
    view = Report(WIN).stages
    for bar in view.bars:
        colours = [segment.colour for segment in bar.segments]
        assert len(set(colours)) == len(colours)
    assert {str(label) for label, _ in view.legend} == {str(s.label) for bar in view.bars for s in bar.segments}


def test_the_waterfall_names_changes_and_leaves_their_settings_to_the_list() -> None:
    trials = tuple(
        trial.model_copy(update={"setting": {"prefetch_factor": 2, "persistent_workers": True}}) for trial in WIN.trials
    )
    view = waterfall_view(WIN.model_copy(update={"trials": trials}))
    assert not any("prefetch_factor" in str(bar.label) for bar in view.bars)


def trained(number: int, ratio: float | None, metric: float) -> r.Trial:
    """A trial of class ``model`` on the baseline; without a ratio it missed the target."""
    return WIN.trials[0].model_copy(
        update={
            "id": number,
            "strategy": f"change_{number}",
            "setting": {},
            "base": "baseline",
            "verdict": r.Verdict.NO_GAIN if ratio else r.Verdict.QUALITY_LOST,
            "time_to_target": gain(ratio) if ratio else None,
            "quality": r.Quality(method="metric", candidate=metric),
        }
    )


def test_what_was_trained_stands_in_the_trade_off_of_time_and_quality() -> None:
    given = WIN.model_copy(update={"trials": (trained(1, 0.5, 0.95), trained(2, 40.0, 0.94), trained(3, None, 0.4))})
    view = tradeoff_views(given)[-1]
    assert {str(spot.label) for spot in view.spots} == {"baseline", "final plan", "change_1", "change_2"}
    assert WIN.baseline.cost_to_target
    costs = {str(spot.label): spot.x.value for spot in view.spots if spot.x}
    assert math.isclose(costs["change_1"] or 0.0, WIN.baseline.cost_to_target / 0.5)
    assert [str(spot.label) for spot in view.failed] == ["change_3"]
    assert (view.limit.value.value, view.limit.below, view.limit.word) == (WIN.objective.target, False, "target")
    front = {str(spot.label) for spot in view.spots if spot.front}
    assert front == {"change_1", "change_2"}, "cheapest, and best in the metric"
    assert "change_2 may be sooner, but is not confirmed" in str(view.reason)
    assert "change_3 missed the target" in str(view.reason)
    plane = tradeoff_chart(view)
    assert plane.rules[0].kind == "target"
    assert plane.paths[0].fill


def test_where_nothing_is_kept_the_baseline_is_taken_and_the_limit_of_memory_is_drawn_where_it_is_near() -> None:
    given = sample.no_gain()
    assert "Taken: the baseline" in str(
        tradeoff_views(given.model_copy(update={"trials": (trained(1, 0.5, 0.9),)}))[-1].reason
    )
    peak = max(c.peak_memory_bytes or 0 for c in (WIN.baseline, WIN.best))
    for memory, drawn in ((2 * peak, True), (1000 * peak, False), (None, False)):
        environment = WIN.environment.model_copy(update={"device_memory_bytes": memory})
        view = tradeoff_views(WIN.model_copy(update={"environment": environment}))[0]
        assert view.y_label == "peak memory"
        assert (view.limit is not None) is drawn
        assert view.limit is None or isinstance(view.limit.value, Number)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_ticks_stand_inside(low: float, width: float) -> None:
    ticks = linear_ticks(low, low + width)
    assert len(ticks) <= 24
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert all(low - slack <= t <= low + width + slack for t in ticks) or len(ticks) == 1


@given(st.floats(1e-6, 1e12), st.floats(1.001, 1e9))
def test_log_ticks_stand_inside(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert all(low * 0.999 <= t <= low * factor * 1.001 for t in ticks)
    assert len(ticks) < 40


@given(st.lists(st.floats(1e-9, 1e12), min_size=1), st.booleans())
def test_a_scale_keeps_everything_on_the_paper(values: list[float], log: bool) -> None:
    low, high = span(values, log=log)
    assert low < high
    scale = Scale(low, high, 3, 97, log=log)
    assert all(3 <= scale.at(v) <= 97 for v in [*values, -1.0, 0.0, 1e300])


def test_dots_and_paths_are_numbers_only() -> None:
    f: Frame = frame((0, 1), (0, 1))
    assert f.path([(0, 0), (1, 1)], "x").d == "M30 212.0L970 14.0"
    assert f.dots([(0, 0)], "x").d == "M30 212.0h0"
