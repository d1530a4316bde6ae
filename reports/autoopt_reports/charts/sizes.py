"""The planes of models of several sizes: error and time to target over parameters, both logarithmic."""

from __future__ import annotations

from autoopt_reports.charts.plane import BESIDE, GuideLine, Mark, Plane, axes, frame
from autoopt_reports.charts.scale import span
from autoopt_reports.view import units
from autoopt_reports.view.model_scaling import AS_IT_IS, LawView, ModelScalingView, drawn
from autoopt_reports.view.text import say


def law_chart(view: ModelScalingView, law: LawView) -> Plane | None:
    """Every training as a mark, the fitted line with the bounds of its mean, and the target."""
    spots = drawn(view, law.of)
    if not spots:
        return None
    values = [y for _, _, y in spots] + [y for _, y, _, _ in law.line]
    target = [law.target] if law.target is not None else []
    low, high = span([*values, *target], log=True, pad=0.1)
    xs = span([x for _, x, _ in spots], log=True)
    f = frame(xs, (low, high), 220, left=BESIDE, log_x=True, log_y=True)
    band = f.area([(x, max(least, low), min(most, high)) for x, _, least, most in law.line], "after")
    paths = (band, f.path([(x, y) for x, y, _, _ in law.line], "after")) if law.line else ()
    marks = tuple(
        Mark(
            f.x.at(x),
            f.y.at(y),
            "baseline" if row.size.text == AS_IT_IS else "kept",
            "square" if row.size.text == AS_IT_IS else "circle",
            say("{}: {} parameters, {}", row.size, row.parameters, row.seconds if law.of == "seconds" else row.metric),
        )
        for row, x, y in spots
    )
    rules = tuple(GuideLine(0, f.y.at(y), 100, f.y.at(y), "target", "target") for y in target)
    size, word = units.time_unit(max(values)) if law.of == "seconds" else (1.0, "")
    x_ticks, y_ticks = axes(f, y_unit=(size, f" {word}" if word else ""))
    label = "time to target" if law.of == "seconds" else f"error ({_of(view)})"
    return Plane(f.height, x_ticks, y_ticks, "trained parameters", label, paths, marks, rules)


def _of(view: ModelScalingView) -> str:
    return str(view.metric) if view.mode == "min" else f"one less {view.metric}"
