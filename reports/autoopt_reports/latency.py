"""The document of ``autoopt latency`` as lines for a terminal, and as a page: verdict, trade-off, every variant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoopt.records import Estimate
from autoopt.records.latency import Latency, Served
from autoopt_reports.html import Table, lines, tables_page
from autoopt_reports.view import units
from autoopt_reports.view.text import Number, Phrase, name, number
from autoopt_reports.view.tradeoff import Limit, Spot, Tradeoff
from autoopt_reports.view.units import NOT_MEASURED

ANSWERS = {"yes": "holds", "no": "does not hold", "undecided": "undecided", None: "not asked"}


def milliseconds(seconds: float | None) -> str:
    return NOT_MEASURED if seconds is None else f"{1e3 * seconds:.3g} ms"


def latency_text(served: Served) -> str:
    """A P95 over fresh processes, or that of the only one that was measured."""
    if served.p95 is None:
        return f"{milliseconds(served.screened_p95)} screened"
    return f"{served.p95_text}, {served.p95.n} processes"


def ratio_text(estimate: Estimate | None) -> str:
    return NOT_MEASURED if estimate is None else estimate.text()


def headline(found: Latency) -> str:
    """The verdict in one line."""
    limit = "" if found.limit_seconds is None else f"P95 of {milliseconds(found.limit_seconds)}"
    if found.chosen is None:
        return f"{limit}: {ANSWERS[found.holds]}" if limit else "No variant was shown to keep the quality"
    best = found.variant(found.chosen)
    assert best is not None
    speed = f", {best.ratio.text()} of the model as it is" if best.ratio and best.name != "as it is" else ""
    return f"{limit + ' holds: ' if limit else ''}{best.name}, P95 {latency_text(best)}{speed}"


def summary(found: Latency) -> Iterator[str]:
    """Lines for a terminal: the answer first."""
    yield headline(found)
    for served in found.variants:
        if served.status in ("measured", "screened"):
            yield f"  {served.name}: P95 {latency_text(served)}; drop of {found.metric} {served.drop_text}"
        else:
            yield f"  {served.name}: {served.status.replace('_', ' ')}: {served.reason}"
    yield from lines(facts(found))


def facts(found: Latency) -> list[tuple[str, str]]:
    """Title and text of what is said of the whole."""
    size, lengths = (
        ", ".join(f"{n} ({100 * share:g} %)" for n, share in shares.items()) for shares in (found.batch, found.lengths)
    )
    cut = f", cut to {lengths} tokens" if lengths else ""
    at, tested = found.environment, found.acceptance
    passed = tested and ("passed" if tested.exit_code == 0 else f"failed (exit code {tested.exit_code})")
    reported = [
        ("Why", found.reason),
        ("Limit", f"P95 {milliseconds(found.limit_seconds)}" if found.limit_seconds else "none was given"),
        ("Quality", f"at most {100 * found.max_drop:g} % of {found.metric}, on {found.validation_samples} samples"),
        ("Requests", f"{size} samples each, {found.clients} at once{cut}"),
        ("Weights", found.weights),
        ("The model as it is against itself", ratio_text(found.control)),
        ("Machine", at and f"{at.device_name or at.device}, torch {at.torch}, seed {found.seed}"),
        ("Measured in", f"{units.duration(found.seconds)} of {units.duration(found.budget_seconds)}"),
        ("Exported", found.exported),
        ("Acceptance test without autoopt", tested and f"{passed}: {tested.command}"),
        *(("Warning", warning) for warning in found.warnings),
    ]
    return [(title, text) for title, text in reported if text]


Row = tuple[str, tuple[str, ...]]
"""A variant in the table: a class, and cells in the order of ``HEADS``."""
HEADS = (
    "variant", "P95", "speedup of the P95", "P50, P95, P99 by clients", "requests/s by clients", "drop",
    "limit, quality", "machine for 1,000 requests", "model", "peak memory", "prepare, load, first answer",
)  # fmt: skip


def rows(found: Latency) -> list[Row]:
    """All variants: what was verified first, by P95; then what was only screened, failed or was not tried."""
    order = {"measured": 0, "screened": 1, "failed": 2, "not_tried": 3, "not_applicable": 4}
    ranked = sorted(found.variants, key=lambda v: (order[v.status], v.p95.value if v.p95 else v.screened_p95 or 0.0))
    return [_row(found, served) for served in ranked]


def _row(found: Latency, served: Served) -> Row:
    name = served.name + (" (taken)" if served.name == found.chosen else "")
    name += " · knee" if served.knee else " · front" if served.front else ""
    if served.status not in ("measured", "screened"):
        return "mute", (name, f"{served.status.replace('_', ' ')}: {served.reason}", *[""] * (len(HEADS) - 2))
    cold = served.cold_start
    start = (
        f"{units.duration(cold.prepare_seconds) if cold.prepare_seconds is not None else 'nothing'}, "
        f"{units.duration(cold.load_seconds)}, {units.duration(cold.first_seconds)}"
        if cold
        else NOT_MEASURED
    )
    cost = str(number(served.cost_seconds, units.duration, ""))
    cost += f", {units.money(served.cost)}" if served.cost is not None else ""
    each = ([f"{1e3 * value:.3g}" for value in (load.p50, load.p95, load.p99)] for load in served.loads)
    times = [", ".join(values) + " ms" for values in each]
    return (
        "win" if served.name == found.chosen else "",
        (
            name,
            latency_text(served) + ("" if served.p95 else f": {served.reason}"),
            ratio_text(served.ratio),
            "; ".join(f"{load.clients}: {quantiles}" for load, quantiles in zip(served.loads, times, strict=True)),
            "; ".join(f"{load.clients}: {load.throughput:.4g} ({load.requests} requests)" for load in served.loads),
            served.drop_text,
            f"{ANSWERS[served.fits]}, {ANSWERS[served.keeps]}",
            cost,
            *(str(number(size, units.bytes_, "")) for size in (served.model_bytes, served.peak_memory_bytes)),
            start,
        ),
    )


def tradeoffs(found: Latency) -> list[Tradeoff]:
    """P95 against what is lost, and P95 against cost, of the variants that are verified; none for fewer than two."""
    proven = [served for served in found.variants if served.p95 is not None and served.drop is not None]
    if len(proven) < 2:
        return []
    bend = next((served.name for served in proven if served.knee), None)
    sentence = f"On the front: {', '.join(served.name for served in proven if served.front)}. "
    knee = f"The knee, nearest to the best of every axis, is {bend}." if bend else ""
    sentence += knee or "A knee needs three variants on the front."
    if found.limit_seconds is not None:
        sentence += " What meets limit and quality lies in the shaded region."

    def against(title: str, label: str, ys: Sequence[Number], most: Limit | None = None) -> Tradeoff:
        spots = tuple(_spot(found, served, y) for served, y in zip(proven, ys, strict=True))
        limit = None if found.limit_seconds is None else number(found.limit_seconds, milliseconds, "/limit_seconds")
        return Tradeoff(title, Phrase((sentence,)), "P95", label, spots, (), most, x_limit=limit)

    def percent(share: float) -> Number:
        return Number(units.percent(share), 100 * share, ())

    lost = [percent(served.drop.value) for served in proven if served.drop is not None]
    cost = [number(served.cost_seconds or 0.0, units.duration, "") for served in proven]
    most = Limit(percent(found.max_drop), True, "at most")
    return [
        against("Latency against quality", f"drop of {found.metric}, %", lost, most),
        against("Latency against cost", "machine s for 1,000 requests", cost),
    ]


def _spot(found: Latency, served: Served, y: Number) -> Spot:
    kind = "baseline" if served.name == "as it is" else "kept" if served.front else "rejected"
    p95 = number(served.p95.value if served.p95 else None, milliseconds, "")
    return Spot(name(served.name, 60), "final" if served.name == found.chosen else kind, p95, y, knee=served.knee)


def page(found: Latency) -> str:
    """One self-contained page."""
    tone = "win" if found.chosen is not None and found.holds in ("yes", None) else "none"
    shown = rows(found)
    table = Table(
        "variants",
        "Every variant, measured alternately on the same machine",
        HEADS,
        tuple(cells for _, cells in shown),
        "A P95 is the geometric mean over fresh processes, with its 90 % interval by Student's t: either end is passed "
        "with a chance of 5 %. A drop is a part of the metric of the model as it is, on the same validation samples.",
        {place: mark for place, (mark, _) in enumerate(shown)},
    )
    return tables_page(
        found,
        brand="autoopt latency",
        title=f"autoopt latency: {found.workload}",
        headline=headline(found),
        tone=tone,
        facts=facts(found),
        tradeoffs=tradeoffs(found),
        tables=[table],
        output=found.acceptance.output if found.acceptance is not None else "",
    )
