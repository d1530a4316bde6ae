"""Several processes on the page: the curve over processes with its intervals, and what messages cost."""

from __future__ import annotations

import json
from typing import Any

from autoopt.records import Estimate, Result
from autoopt.records.distributed import Communication, Scaling, ScalingForecast, ScalingPoint, Spread
from autoopt_reports import html
from autoopt_reports.charts.planes import scaling_chart
from autoopt_reports.view.scaling import scaling_view
from benchmarks import sample


def spread(seconds: float) -> Spread:
    return Spread(low=0.9 * seconds, median=seconds, high=1.1 * seconds, n=9)


def point(processes: int, ratio: float) -> ScalingPoint:
    throughput = Estimate(value=ratio, low=ratio - 0.1, high=ratio + 0.1, n=4)
    share = Estimate(value=ratio / processes, low=(ratio - 0.1) / processes, high=(ratio + 0.1) / processes, n=4)
    return ScalingPoint(processes=processes, throughput=throughput, efficiency=share)


def in_four() -> Result:
    sent = Communication(
        processes=2,
        gradient_bytes=4_000_000,
        alone=spread(0.012),
        together=spread(0.1),
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
        sending_seconds=0.015,
        exposed_seconds=0.006,
    )
    scaling = Scaling(points=(point(2, 1.8), point(4, 3.1)), communication=sent, forecast=(told,))
    return sample.win().model_copy(update={"scaling": scaling})


def resolve(document: Any, pointer: str) -> Any:
    for key in pointer.split("/")[1:]:
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def test_the_section_concludes_and_shows_every_point_with_its_interval() -> None:
    page = html.render(in_four())
    assert 'id="scaling"' in page
    view = scaling_view(in_four())
    assert view is not None
    said = "4 processes train 3.10× [3.00–3.20] as fast as one: scaling efficiency 77.5 % [75.0 %–80.0 %]"
    assert str(view.headline) == said
    assert "the rank that the others wait for" in page
    assert [mark.shape for mark in scaling_chart(view).marks] == ["ring", "circle", "circle"]
    assert "simulated on the graph, not measured" in page
    assert "5.00× [4.80–5.20]" in page


def test_its_numbers_are_those_of_the_document() -> None:
    result = in_four()
    document, view = json.loads(result.model_dump_json()), scaling_view(result)
    assert view is not None
    shown = [line.value for line in view.details] + [row.processes for row in (*view.rows, *view.forecast)]
    shown += [row.throughput.value for row in view.forecast]
    for number in shown:
        assert number.value == resolve(document, number.paths[0])


def test_one_process_has_no_such_section_and_an_unmeasured_curve_says_so() -> None:
    assert 'id="scaling"' not in html.render(sample.win())
    bare = sample.win().model_copy(update={"scaling": Scaling()})
    assert "How it scales was not measured" in html.render(bare)
