"""Sections of the report that not every run has: scaling, sizes of the model, the patch of a script."""

from __future__ import annotations

import io
import json
from html import escape

import pytest
from rich.console import Console

import sample
from autoopt.records import Estimate, PatchedChange, Result, ScriptPatch, Site, Sites
from autoopt.records.distributed import Communication, Scaling, ScalingForecast, ScalingPoint, Spread
from autoopt.records.model_scaling import ModelScaling, SizeRun
from autoopt_reports import html
from autoopt_reports.charts.planes import law_chart, scaling_chart
from autoopt_reports.console import summary
from autoopt_reports.view.scaling import ModelScalingView, ScalingView
from tests.reports.test_numbers import resolve


def spread(seconds: float) -> Spread:
    return Spread(low=0.9 * seconds, median=seconds, high=1.1 * seconds, n=9)


def point(processes: int, ratio: float) -> ScalingPoint:
    throughput = Estimate(value=ratio, low=ratio - 0.1, high=ratio + 0.1, n=4)
    share = Estimate(value=ratio / processes, low=(ratio - 0.1) / processes, high=(ratio + 0.1) / processes, n=4)
    return ScalingPoint(processes=processes, throughput=throughput, efficiency=share)


def four() -> Scaling:
    sent = Communication(
        processes=2,
        gradient_bytes=4_000_000,
        alone=spread(0.012),
        apart=(spread(0.06), spread(0.095)),
        exposed=0.005,
        by_size={4096: 1e-4, 1 << 20: 2e-3},
        straggler=1,
    )
    eight = Estimate(value=5.0, low=4.8, high=5.2, n=1)
    told = ScalingForecast(
        processes=8,
        throughput=eight,
        efficiency=Estimate(value=0.625, low=0.6, high=0.65, n=1),
        step_seconds=0.02,
    )
    return Scaling(points=(point(2, 1.8), point(4, 3.1)), communication=sent, forecast=(told,))


def in_four() -> Result:
    return sample.win().model_copy(update={"scaling": four()})


def test_the_section_concludes_and_shows_every_point_with_its_interval() -> None:
    page = html.render(in_four())
    assert 'id="scaling"' in page
    view = ScalingView(four())
    said = "4 processes train 3.10× [3.00–3.20] as fast as one: scaling efficiency 77.5 % [75.0 %–80.0 %]"
    assert str(view.headline) == said
    assert "the rank that the others wait for" in page
    assert [mark.shape for mark in scaling_chart(view).marks] == ["ring", "circle", "circle"]
    assert "simulated on the graph, not measured" in page
    assert "5.00× [4.80–5.20]" in page


def test_its_numbers_are_those_of_the_document() -> None:
    document, view = json.loads(in_four().model_dump_json()), ScalingView(four())
    shown = [value for _, value in view.details] + [row.processes for row in (*view.rows, *view.forecast)]
    shown += [row.throughput.value for row in view.forecast]
    for number in shown:
        assert number.value == resolve(document, number.paths[0])


def result_of(found: ModelScaling | None) -> Result:
    return sample.win().model_copy(update={"model_scaling": found})


def test_the_section_shows_both_laws_with_their_bounds_and_counts() -> None:
    view = ModelScalingView(sample.sizes().model_scaling)
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
    assert "the line meets the target" not in str(timed.said)
    chart = law_chart(view, learnt)
    assert [mark.shape for mark in chart.marks] == ["circle"] * 4 + ["square"] * 2
    assert len(chart.paths) == 2
    assert [str(rule.label) for rule in chart.rules] == ["target"]


def test_it_says_why_no_line_and_no_size_is_told() -> None:
    found = sample.sizes().model_scaling
    missing = {"error": "2 sizes of 3 that a line needs", "seconds": "missed"}
    two = {"points": found.points[:2], "error": None, "seconds": None, "missing": missing}
    page = html.render(result_of(found.model_copy(update=two)))
    assert "too few for a line through them" in page
    assert "No line was fitted: <bdi>2 sizes of 3 that a line needs</bdi>" in page
    flat = found.error.model_copy(update={"at_target": None, "note": "the bounds hold zero", "by_size": True})
    sloped = found.model_copy(update={"error": flat})
    page = html.render(result_of(sloped))
    assert "the size that just reaches the target is unknown: <bdi>the bounds hold zero</bdi>" in page
    assert "farther from a line than trainings of one size from each other: each size counts once" in page
    assert "to the power of" in str(ModelScalingView(sloped).headline)
    none = result_of(ModelScaling(missing=missing))
    assert "none was trained to its end" in html.render(none)


DIFF = """--- a/train.py
+++ b/train.py
@@ -1,2 +1,2 @@
-loader = DataLoader(data, batch_size=32)
+loader = DataLoader(data, batch_size=32, num_workers=2)
 name = "<b>"
"""


def a_script(diff: str = DIFF) -> Result:
    sites = Sites(
        command=("/usr/bin/python", "train.py", "--name", "two words"),
        cwd="/home/user/project",
        sites=(Site(kind="loader_training", file="train.py", line=1, end_line=1, call="DataLoader"),),
    )
    changes = (
        PatchedChange(strategy="workers", setting={"num_workers": 2}, how="patched", file="train.py", line=1),
        PatchedChange(strategy="threads", setting={"threads": 1}, how="plan only", reason="no line of it says so"),
    )
    return sample.win().model_copy(update={"sites": sites, "patch": ScriptPatch(diff=diff, changes=changes)})


def launched(found: Result, spec: str) -> Result:
    return found.model_copy(update={"workload": found.workload.model_copy(update={"spec": spec, "processes": 4})})


def with_variables(found: Result) -> Result:
    patch = found.patch.model_copy(update={"environment": {"MALLOC_MMAP_MAX_": "0", "B": "<1>"}})
    return found.model_copy(update={"patch": patch})


def missed(found: ModelScaling) -> ModelScaling:
    """Its first size misses the target, and less of the metric is better."""
    first = found.points[0].model_copy(update={"runs": (SizeRun(seed=0, metric=0.5, reached=False),)})
    return found.model_copy(update={"points": (first, *found.points[1:]), "mode": "min"})


@pytest.mark.parametrize(
    ("result", "shown", "missing"),
    [
        pytest.param(sample.win(), [], ['id="scaling"', 'id="sizes"', 'id="patch"', "autoopt apply"], id="none"),
        pytest.param(sample.win().model_copy(update={"scaling": Scaling()}), ["How it scales was not measured"], [],
                     id="a curve that was not measured"),
        pytest.param(result_of(missed(sample.sizes().model_scaling)), ["<td>not reached</td>", "error (accuracy)"], [],
                     id="a missed target and another metric"),
        pytest.param(a_script(), ["no line of it says so", "autoopt apply"],
                     ["train.py &#39;--name&#39;", "autoopt.env"], id="a patch"),
        pytest.param(with_variables(a_script()), ["MALLOC_MMAP_MAX_=0\nB=&lt;1&gt;\n"], [], id="an environment file"),
        pytest.param(a_script(diff=""), ["the plan applies it while the script runs", "autoopt run --plan"],
                     ["autoopt apply"], id="a plan without a line"),
        pytest.param(launched(a_script(), "torchrun --nproc-per-node 4 train.py"),
                     ["-- torchrun --nproc-per-node 4 train.py"], [], id="a script that a launcher starts"),
    ],
)  # fmt: skip
def test_a_section_is_there_where_there_is_something_to_say(
    result: Result, shown: list[str], missing: list[str]
) -> None:
    page = html.render(result)
    assert [text for text in shown if text not in page] == []
    assert [text for text in missing if text in page] == []


def test_the_diff_stands_right_below_the_verdict() -> None:
    page = html.render(a_script())
    assert escape(DIFF, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
    assert page.index('id="verdict"') < page.index('id="patch"') < page.index('id="adopt"')


def test_the_terminal_ends_with_the_diff_and_what_to_do() -> None:
    text = io.StringIO()
    summary(a_script(), Console(file=text, width=100, no_color=True))
    shown = text.getvalue()
    assert "1 of 2 kept changes are in the patch" in shown
    assert "+loader = DataLoader(data, batch_size=32, num_workers=2)" in shown
    assert "with the plan alone: no line of it says so" in shown
    assert "-- /usr/bin/python train.py --name 'two words'" in shown
    assert shown.index("+loader") < shown.index("autoopt apply")
