"""No sentence of the first screen claims more than the fields that it is made from."""

from __future__ import annotations

import io
import itertools
import json
import re

import pytest
from rich.console import Console

import sample
from autoopt import records as r
from autoopt.events import Verified
from autoopt.records.headline import Headline
from autoopt.toolserver.answers import reported
from autoopt.trackers.values import of_result
from autoopt_reports import card, html
from autoopt_reports.console import summary
from autoopt_reports.live import describe
from autoopt_reports.view import Report
from autoopt_reports.view.claims import claim_of

WIN = sample.win()
LEVELS = ("identical", "equivalent", "trained", "undecided")
KINDS = ("to_target", "same_steps", "per_step")
CASES = [
    case
    for case in itertools.product(LEVELS, KINDS, (1, 2), ("trained", "modelled"), (True, False))
    if case[3] == "trained" or case[4]  # blocks agree or disagree with trainings alone
]


def estimate(value: float, n: int) -> r.Estimate:
    if n == 1:
        return r.Estimate(value=value, low=value, high=value, n=1, confidence=None)
    return r.Estimate(value=value, low=value / 1.1, high=value * 1.1, n=n)


def headline(kind: str, n: int, source: str, agrees: bool = True, value: float = 24.8 / 17.1) -> Headline:
    point = n == 1 and source == "trained"
    seconds = {"baseline_seconds": 24.8, "best_seconds": 24.8 / value}
    steps = 1.05 if kind == "to_target" and source == "trained" else 1.0
    return Headline.model_validate(
        {
            "kind": kind,
            "value": value,
            "low": None if point else value / 1.1,
            "high": None if point else value * 1.1,
            "n": n,
            "step_ratio": estimate(value * steps, n),
            "steps_ratio": estimate(1 / steps, n) if steps != 1.0 else None,
            **seconds,
            "source": source,
            "baseline_steps": 1.0 if kind == "per_step" else 200.0,
            "best_steps": 1.0 if kind == "per_step" else 200.0 * steps,
            "pairs": n if source == "trained" else 0,
            "target_missed": kind == "per_step" and source == "trained",
            "blocks": estimate(value * (1.0 if agrees else 1.9), 3) if source == "trained" else None,
            "agrees": agrees if source == "trained" else None,
        }
    )


def result_of(level: str, kind: str, n: int, source: str, agrees: bool) -> r.Result:
    record = headline(kind, n, source, agrees)
    verified = not record.doubts(control_failed=False)
    details = {"identical": "same losses and weights over 40 steps, other draws of augmentation"}
    quality = r.Quality(method="probe", level=level, passed=level != "undecided" or None, detail=details.get(level, ""))
    speedup = r.Speedup(
        headline=record,
        time_to_target=record.estimate if kind != "per_step" else None,
        trained=record.estimate if source == "trained" else None,
        throughput=estimate(1.5, 3),
        end_to_end_verified=verified,
    )
    return WIN.model_copy(update={"speedup": speedup, "quality": quality})


def screen(result: r.Result, width: int = 100) -> str:
    out = io.StringIO()
    summary(result, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def first_screen(result: r.Result) -> str:
    """All sentences up to the changes: verdict, facts, trust."""
    view = Report(result)
    facts = [f"{fact.label}: {fact.before} {fact.after}" for fact in view.verdict.facts]
    trust = [f"{check.label}: {check.text}" for check in view.trust]
    verdict = map(str, (view.verdict.headline, *view.verdict.qualifiers, *view.verdict.support))
    return "\n".join([*verdict, *facts, *trust])


@pytest.mark.parametrize(("level", "kind", "n", "source", "agrees"), CASES)
def test_no_sentence_claims_more_than_its_field(level: str, kind: str, n: int, source: str, agrees: bool) -> None:
    result = result_of(level, kind, n, source, agrees)
    record = result.speedup.headline
    view, text, terminal = Report(result), first_screen(result), screen(result)
    first = "\n".join(map(str, (view.verdict.headline, *view.verdict.qualifiers, *view.verdict.support)))
    shown_card = "\n".join(shape.text for shape in card.shapes(result) if isinstance(shape, card.Text))
    lines = [first, terminal.partition("changes to adopt")[0], shown_card, record.text]
    point = n == 1 and source == "trained"
    if point:
        assert all("CI" not in line and "95 %" not in line for line in (first, shown_card))
        assert not re.search(r"\d× \[", first), "no interval of one pair"
        assert [check.level for check in view.trust if check.label in ("Repeats", "End to end")] == ["caution"] * 2
        assert "one pair of trainings" in str(view.verdict.headline)
    else:
        assert "this machine, this hour" in first
    if not result.speedup.end_to_end_verified:
        assert all("verified end to end" not in line.replace("not verified end to end", "") for line in lines)
        assert "Not verified: " in text
    assert result.speedup.end_to_end_verified == (source == "trained" and n > 1 and agrees and kind != "per_step")
    if kind == "per_step":
        assert all("faster to target" not in line for line in lines)
        assert all("time to target" not in line for line in (first, shown_card))
        assert ("the target was not reached in this budget" in first) == (source == "trained")
    if kind != "to_target":
        assert "faster to target" not in terminal
    if source == "modelled":
        assert "modelled" in first
        assert "trained interleaved" not in first
    assert ("disagree" in first) == (record.agrees is False)
    assert ("disagree" in terminal) == (record.agrees is False)
    assert "same samples" not in text
    if level != "identical":
        assert "identical" not in text
    if level in ("undecided", "trained"):
        assert "same training" not in text
    # the seconds divide to the factor that is shown, here and by the tools
    claim = claim_of(result)
    decimals = len(str(claim.value).partition(".")[2].rstrip("×"))
    assert str(claim.value) == f"{record.baseline_seconds / record.best_seconds:.{decimals}f}×"
    assert f"{claim.value} faster" in str(view.verdict.headline)
    told, tracked = reported(result, "report.html")["headline"], of_result(result)
    assert told["baseline_seconds"] / told["best_seconds"] == pytest.approx(told["value"])
    assert "low" in told
    assert bool(told["not_verified_because"]) is not result.speedup.end_to_end_verified
    assert tracked["speedup/headline"] == record.value
    assert ("speedup/headline_low" in tracked) == (record.low is not None)


@pytest.mark.parametrize(("kind", "n", "source"), [*itertools.product(KINDS, (1, 12), ("trained", "modelled"))])
def test_terminal_lines_are_no_wider_than_a_screen(kind: str, n: int, source: str) -> None:
    result = result_of("equivalent", kind, n, source, agrees=False)
    for line in screen(result).partition("Train with it")[0].splitlines():
        assert len(line) <= 100, line
    event = Verified(at=298.0, best=result.best, speedup=result.speedup, has_target=True)
    told = f"[{'1:04:58':>7}] {describe(event)}"
    assert len(told) <= 100, told
    assert ("[1." in told) == (n > 1 or source == "modelled")


def test_the_first_screen_gives_one_figure_of_a_step() -> None:
    """Steps of the record alone; those of blocks and of the profile are named where they stand."""
    result = result_of("equivalent", "to_target", 2, "trained", agrees=True)
    facts = {fact.label: fact for fact in Report(result).verdict.facts}
    steps = [label for label in facts if label.startswith("a step") or "step," in label]
    assert steps == ["a step, start and evaluations included"]
    assert "throughput" not in " ".join(facts)
    shown = facts[steps[0]]
    assert shown.before.value == pytest.approx(24.8 / 200)
    page = html.render(result)
    assert "in interleaved blocks" in page
    assert "in the profile" in page


@pytest.mark.parametrize(
    ("agrees", "shown"),
    [
        (True, ["Two factors: seconds a step 1.52× [", "steps to target 0.95× [", "(200 → 210)"]),
        (False, ["the trainings give 1.45×, the blocks 2.76×, a difference above 10.0 %",
                 "load, start-up, evaluation, caches"]),
    ],
)  # fmt: skip
def test_both_factors_are_shown_and_that_blocks_disagree_and_why(agrees: bool, shown: list[str]) -> None:
    text = first_screen(result_of("identical", "to_target", 2, "trained", agrees=agrees))
    assert [each for each in shown if each not in text] == []


def test_a_failed_control_is_said_to_block_the_verification() -> None:
    result = result_of("identical", "to_target", 2, "trained", agrees=True)
    noise = r.Noise(aa_ratio=r.Estimate(value=1.05, low=1.03, high=1.07, n=3), floor=0.05)
    speedup = result.speedup.model_copy(update={"end_to_end_verified": False})
    text = first_screen(result.model_copy(update={"noise": noise, "speedup": speedup}))
    assert "the control failed" in text
    assert "verified end to end" not in text.replace("Not verified", "")


def test_a_document_without_a_headline_claims_the_throughput_alone() -> None:
    old = json.loads(WIN.model_dump_json())
    del old["speedup"]["headline"]
    page = html.render(r.Result.model_validate(old))
    assert "2.31× faster in samples per second" in re.sub(r"<[^>]+>", "", page)
