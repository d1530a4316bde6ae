"""Models of several sizes on the page: both laws with their bounds, every training, and what is not told."""

from __future__ import annotations

from autoopt.records import Result
from autoopt.records.model_scaling import ModelScaling, SizeRun
from autoopt_reports import html
from autoopt_reports.charts.planes import law_chart
from autoopt_reports.view.scaling import model_scaling_view
from benchmarks import sample
from benchmarks.sample.sizes import scaling


def result_of(found: ModelScaling | None) -> Result:
    return sample.win().model_copy(update={"model_scaling": found})


def test_the_section_shows_both_laws_with_their_bounds_and_counts() -> None:
    view = model_scaling_view(result_of(scaling()))
    assert view is not None
    assert str(view.headline) == (
        "Sizes of the model that were trained: 3; after 120 steps the line meets the target at "
        "16,300 [12,100–23,900] parameters"
    )
    learnt, timed = view.laws
    assert str(learnt.said).startswith(
        "the error goes with the parameters to the power of -0.25 [-0.31 to -0.19] (95 % CI; standard error 0.0205; "
        "6 trainings of 3 sizes); after"
    )
    assert "after 120 steps the line meets the target at 16,300 [12,100–23,900] parameters" in str(learnt.said)
    assert timed.at_target is None
    chart = law_chart(view, learnt)
    assert chart is not None
    assert [mark.shape for mark in chart.marks] == ["circle"] * 4 + ["square"] * 2
    assert len(chart.paths) == 2
    assert [str(rule.label) for rule in chart.rules] == ["target"]


def test_it_says_why_no_line_and_no_size_is_told() -> None:
    found = scaling()
    missing = {"error": "2 sizes of 3 that a line needs", "seconds": "missed"}
    two = {"points": found.points[:2], "error": None, "seconds": None, "missing": missing}
    page = html.render(result_of(found.model_copy(update=two)))
    assert "too few for a line through them" in page
    assert "No line was fitted: <bdi>2 sizes of 3 that a line needs</bdi>" in page
    assert found.error is not None
    flat = found.error.model_copy(update={"at_target": None, "note": "the bounds hold zero", "by_size": True})
    page = html.render(result_of(found.model_copy(update={"error": flat})))
    assert "the size that just reaches the target is unknown: <bdi>the bounds hold zero</bdi>" in page
    assert "farther from a line than trainings of one size from each other: each size counts once" in page
    assert "to the power of" in str(model_scaling_view(result_of(found.model_copy(update={"error": flat}))).headline)  # type: ignore[union-attr]
    none = result_of(ModelScaling(missing=missing))
    assert "none was trained to its end" in html.render(none)


def test_a_missed_target_and_another_metric_are_shown_as_such() -> None:
    found = scaling()
    missed = found.points[0].model_copy(update={"runs": (SizeRun(seed=0, metric=0.5, reached=False),)})
    result = result_of(found.model_copy(update={"points": (missed, *found.points[1:]), "mode": "min"}))
    page = html.render(result)
    assert "<td>not reached</td>" in page
    assert "error (accuracy)" in page


def test_a_run_of_one_size_has_no_such_section() -> None:
    assert 'id="sizes"' not in html.render(result_of(None))
