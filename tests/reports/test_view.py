"""Claims of the report: no more than was measured."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sample
from autoopt import records as r
from autoopt_reports import html
from autoopt_reports.view import Report
from autoopt_reports.view.page import ProfileView
from autoopt_reports.view.quality import claim_of, quality_view
from autoopt_reports.view.text import interval
from autoopt_reports.view.verdict import VerdictView

WIN = sample.win()
positive = st.floats(0.01, 100)


@st.composite
def estimates(draw: Any) -> r.Estimate:
    low, value, high = sorted(draw(st.lists(positive, min_size=3, max_size=3)))
    return r.Estimate(value=value, low=low, high=high, n=draw(st.integers(1, 50)))


def with_speedup(estimate: r.Estimate | None, **more: object) -> r.Result:
    return WIN.model_copy(update={"speedup": r.Speedup(throughput=estimate, **more)})


def sample_estimate(value: float) -> r.Estimate:
    return r.Estimate(value=value, low=value * 0.99, high=value * 1.01, n=5)


def test_a_kept_change_is_shown_as_it_was_measured_again() -> None:
    again = r.Estimate(value=1.07, low=1.02, high=1.12, n=3)
    trials = tuple(t.model_copy(update={"measured_again": again, "companions": ()}) for t in WIN.trials)
    view = Report(WIN.model_copy(update={"trials": trials}))
    shown = [change for change in view.adopt.changes if change.trial is not None]
    assert shown
    assert all(change.gain.value.value == 1.07 for change in shown if "measured again" in change.gain_kind)
    assert any("measured again" in change.gain_kind for change in shown)
    kept = next(group for group in view.groups if group.key == "kept")
    assert all(row.again is not None and row.again.value.value == 1.07 for row in kept.rows)
    assert "measured again" in html.render(WIN.model_copy(update={"trials": trials}))


@given(estimates())
def test_faster_is_said_only_where_the_whole_interval_is_above_one(estimate: r.Estimate) -> None:
    view = VerdictView(with_speedup(estimate))
    text = str(view.headline)
    assert ("faster" in text) == (estimate.low > 1)
    assert text.startswith("Slower") == (estimate.high < 1)
    assert text.startswith("No gain shown") == (estimate.low <= 1 <= estimate.high)
    offered = [label for label, _ in view.commands]
    assert ("Train with it" in offered) == (estimate.low > 1), "only a shown gain is to be trained with"


@given(estimates())
def test_an_interval_is_never_shown_narrower_than_it_is(estimate: r.Estimate) -> None:
    shown = interval(estimate, "/x")
    assert float(shown.low.text.replace(",", "")) <= estimate.low
    assert float(shown.high.text.replace(",", "")) >= estimate.high


def test_where_nothing_was_kept_the_first_screen_says_what_more_time_would_buy() -> None:
    told = "about 3.1 min more would screen 2 more strategies (workers, amp)"
    nothing = with_speedup(sample_estimate(2.0)).model_copy(update={"best": WIN.baseline, "more_budget": told})
    assert any(str(line) == f"A{told[1:]}." for line in VerdictView(nothing).support)
    won = with_speedup(sample_estimate(2.0)).model_copy(update={"more_budget": told})
    assert not any(told[1:] in str(line) for line in VerdictView(won).support)


def test_a_workload_that_was_made_to_fit_is_not_said_to_be_faster_than_what_cannot_run() -> None:
    fits = r.Change(strategy="accumulation", setting={"size": 32, "accumulation": 2})
    baseline = WIN.baseline.model_copy(update={"plan": r.Plan(changes=(fits,))})
    best = WIN.best.model_copy(update={"plan": r.Plan(changes=(fits, *WIN.best.plan.changes))})
    view = VerdictView(WIN.model_copy(update={"baseline": baseline, "best": best}))
    assert str(view.support[0]).startswith("Your workload does not fit into memory here.")
    assert "accumulation size=32, accumulation=2" in str(view.support[0])
    nothing = VerdictView(WIN.model_copy(update={"baseline": baseline, "best": baseline}))
    assert str(nothing.headline) == "Made to fit in memory; no safe gain found beyond that"


NOTHING = {"best": WIN.baseline}
FASTER = {"speedup": r.Speedup(throughput=sample_estimate(1.5))}


@pytest.mark.parametrize(
    ("document", "headline", "commands"),
    [
        pytest.param(WIN.model_copy(update=FASTER), "1.50× faster in samples per second",
                     ["autoopt verify autoopt-runs/synthetic-1",
                      "autoopt train synthetic.photos:build --plan autoopt-runs/synthetic-1/plan.json",
                      "autoopt export autoopt-runs/synthetic-1 --to pytorch"], id="throughput is no time to target"),
        pytest.param(WIN.model_copy(update=FASTER | NOTHING), "No safe gain found", [], id="an empty plan is no gain"),
        pytest.param(WIN.model_copy(update=NOTHING | {"stop": r.Stop(reason=r.StopReason.INTERRUPTED)}),
                     "Stopped before a gain was verified", ["autoopt resume autoopt-runs/synthetic-1"], id="stopped"),
        pytest.param(sample.no_gain().model_copy(update={"trials": sample.no_gain().trials[-2:]}),
                     "Nothing was tried", [], id="where nothing was tried no verdict is given"),
    ],
)  # fmt: skip
def test_the_headline_and_what_to_do_next(document: r.Result, headline: str, commands: list[str]) -> None:
    view = VerdictView(document)
    assert str(view.headline) == headline
    assert [text for _, text in view.commands] == commands


@pytest.mark.parametrize(
    ("trained", "planned", "end"),
    [(None, 90_000, "its planned end"), (400, 90_000, "step 400 of 90,000"), (179, None, "step 179"),
     (179, 179, "its planned end")],
)  # fmt: skip
def test_without_a_value_to_reach_a_run_ends_where_it_was_trained_to(
    trained: int | None, planned: int | None, end: str
) -> None:
    baseline = WIN.baseline.model_copy(update={"trained_steps": trained})
    known = {"objective": {"target": None}, "workload": {"max_steps": planned}}
    parts = {name: getattr(WIN, name).model_copy(update=values) for name, values in known.items()}
    view = VerdictView(WIN.model_copy(update={**parts, "baseline": baseline, "best": baseline}))
    assert str(view.support[0]).endswith(f" to {end}.")
    assert view.facts[0].label == f"time to {end}"


def test_a_plan_that_was_not_run_again_says_so() -> None:
    untrained = with_speedup(sample_estimate(1.5), end_to_end_verified=False)
    untrained = untrained.model_copy(update={"best": untrained.best.model_copy(update={"curves": ()})})
    view = Report(untrained)
    check = next(check for check in view.trust if check.label == "End to end")
    assert check.level == "caution"
    assert "not run again" in str(check.text)
    assert view.verdict.commands[0][1] == "autoopt verify autoopt-runs/synthetic-1"
    sites = r.Sites(command=("python", "train.py"), cwd="/work")
    for diff, wanted in (("--- a/x", "verify"), ("", "compare --candidate")):
        script = untrained.model_copy(update={"sites": sites, "patch": r.ScriptPatch(diff=diff)})
        asked = [text for _, text in Report(script).verdict.commands]
        assert asked[0] == f"autoopt {wanted} autoopt-runs/synthetic-1"


def test_what_was_proved_together_is_shown_as_one_gain() -> None:
    """Not the same figure once for each of them, as if each brought it."""
    kept = next(trial for trial in WIN.trials if trial.verdict is r.Verdict.KEPT)
    companion = r.Change(strategy="companion", setting={})
    trial = kept.model_copy(update={"companions": (companion,), "measured_again": None, "strategy": "first"})
    plan = r.Plan(changes=(r.Change(strategy="first", setting={}), companion))
    best = WIN.best.model_copy(update={"plan": plan})
    view = Report(WIN.model_copy(update={"trials": (trial,), "ablation": (), "best": best}))
    first, second = view.adopt.changes
    assert first.gain is not None
    assert (first.shared, second.gain, second.shared) == ("companion", None, "first")
    assert "together with companion" in first.gain_kind


@pytest.mark.parametrize(("cores", "label"), [(0.9, "Busy machine"), (0.1, "Machine"), (None, None)])
def test_what_other_programs_used_is_told(cores: float | None, label: str | None) -> None:
    noise = WIN.noise.model_copy(update={"foreign_cores": cores})
    checks = Report(WIN.model_copy(update={"noise": noise})).trust
    found = [check for check in checks if "achine" in check.label]
    assert [check.label for check in found] == ([label] if label else [])
    assert all(f"used {cores:g} cores" in str(check.text) for check in found)


def gate(**fields: Any) -> r.Quality:
    return r.Quality(method=fields.pop("method", "metric"), **fields)


LOWER = gate(passed=True, margin=0.01, difference=r.Estimate(value=-0.02, low=-0.03, high=-0.01, n=3))


@pytest.mark.parametrize(
    ("quality", "claim"),
    [
        (None, "not_tested"),
        (gate(method="not_tested"), "not_tested"),
        (gate(method="losses"), "not_tested"),
        (gate(method="losses", passed=True), "same_losses"),
        (gate(method="loss_path", passed=True), "same_path"),
        (gate(method="probe", level="identical", passed=True), "identical"),
        (gate(method="probe", level="equivalent", passed=True), "rounding"),
        (gate(method="probe", level="undecided", passed=True), "undecided"),
        (gate(method="probe", level="undecided"), "undecided"),
        (gate(method="probe", passed=False), "lost"),
        (gate(passed=False), "lost"),
        (gate(passed=True), "reached"),
        (gate(passed=True, margin=0.01, difference=r.Estimate(value=0, low=-0.009, high=0.01, n=3)), "equivalent"),
        (gate(passed=True, margin=0.01, difference=r.Estimate(value=0.05, low=-0.009, high=0.1, n=3)), "not_inferior"),
        pytest.param(LOWER, "undecided", id="less of it is worse"),
    ],
)
def test_a_gate_allows_its_claim_and_no_more(quality: r.Quality | None, claim: str) -> None:
    assert claim_of(quality) == claim
    assert quality is not LOWER or claim_of(quality, "min") == "not_inferior"


WIDE = r.Estimate(value=0, low=-0.02, high=0.02, n=2)


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (gate(passed=True, margin=0.01, difference=WIDE), "quality undecided"),
        (gate(passed=None), "quality undecided"),
        (gate(passed=False), "quality lost"),
        pytest.param(gate(method="not_tested"), "same quality", id="its changes tell"),
        pytest.param(None, "same quality", id="its changes alone tell"),
        (gate(method="probe", level="identical", passed=True), "identical training"),
        (gate(method="probe", level="equivalent", passed=True), "equivalent training"),
        (gate(method="probe", level="undecided"), "quality undecided"),
    ],
)
def test_the_test_of_the_whole_plan_decides_where_there_is_one(whole: r.Quality | None, said: str) -> None:
    view = quality_view(WIN.model_copy(update={"quality": whole}))
    assert view.short == said
    assert whole is None or whole.level is None or "same target" not in str(view.detail)


def test_the_plan_claims_what_its_weakest_change_may() -> None:
    assert quality_view(WIN).short == "same quality"
    trials = tuple(t.model_copy(update={"quality": None}) if t.strategy == "compile" else t for t in WIN.trials)
    view = quality_view(WIN.model_copy(update={"trials": trials, "quality": None}))
    assert view.short == "quality not tested"
    assert "compile" in str(view.detail)


def test_what_the_budget_went_on_stands_with_its_share_the_largest_first() -> None:
    spent = (r.Spent(on="starts", seconds=WIN.seconds / 4), r.Spent(on="comparisons", seconds=WIN.seconds / 2))
    view = Report(WIN.model_copy(update={"spent": spent})).search
    assert [(on, str(share)) for on, _, share in view.spent] == [("comparisons", "50.0 %"), ("starts", "25.0 %")]
    assert str(view.budget_headline).endswith("the most on comparisons (50.0 %)")


@pytest.mark.parametrize(
    ("aa", "floor", "gain", "level"),
    [
        ((0.99, 1.0, 1.01), 0.01, 1.5, "good"),
        ((0.9, 1.0, 1.1), 0.1, 1.5, "caution"),
        ((1.02, 1.05, 1.08), 0.04, 1.5, "caution"),
        pytest.param((0.99, 1.0, 1.01), 0.05, 1.02, "caution", id="a gain inside the noise"),
    ],
)
def test_a_noisy_machine_is_no_good_sign(aa: tuple[float, float, float], floor: float, gain: float, level: str) -> None:
    noise = r.Noise(aa_ratio=r.Estimate(low=aa[0], value=aa[1], high=aa[2], n=4), floor=floor)
    check = Report(with_speedup(sample_estimate(gain)).model_copy(update={"noise": noise})).trust[0]
    assert (check.label, check.level) == ("Noise floor", level)


def test_the_quality_says_what_it_rests_on_what_it_costs_and_what_it_would_have_missed() -> None:
    quality = gate(method="probe", level="equivalent", passed=True).model_copy(
        update={
            "rests_on": "the first 64 steps",
            "would_miss": "what the training does otherwise after step 64",
            "step_penalty": r.Estimate(value=1.12, low=1.02, high=1.15, n=32),
        }
    )
    checks = Report(WIN.model_copy(update={"quality": quality})).trust
    told = next(str(check.text) for check in checks if "Evidence: the first" in str(check.text))
    assert "Evidence: the first 64 steps." in told
    assert "counts as 1.12" in told
    assert "Not covered: what the training does otherwise after step 64." in told


def test_the_first_screen_gives_the_metric_of_the_final_plan_with_its_interval() -> None:
    def told(result: r.Result) -> str:
        return " ".join(str(line) for line in Report(result).verdict.support)

    assert "accuracy 0.9318 against 0.9312: a difference of 0.0006 [-0.0019 to 0.0031] over 3 seeds." in told(WIN)
    lost = WIN.quality.model_copy(update={"passed": None, "level": "undecided", "seeds": 1})
    assert "[-0.0019 to 0.0031] over 1 seed." in told(WIN.model_copy(update={"quality": lost}))
    untold = WIN.model_copy(update={"quality": None})
    assert "accuracy 0.9318 against 0.9312; their difference has no interval." in told(untold)
    ends = WIN.speedup.headline.model_copy(update={"whole": True, "kind": "to_target"})
    runs = untold.model_copy(update={"speedup": WIN.speedup.model_copy(update={"headline": ends})})
    assert "Each run ends at the target: accuracy 0.9318 against 0.9312 in the last pair." in told(runs)
    unmeasured = untold.model_copy(update={"best": WIN.best.model_copy(update={"metric": None})})
    assert "accuracy of the final plan was not compared with the baseline's." in told(unmeasured)
    no_metric = WIN.model_copy(update={"objective": WIN.objective.model_copy(update={"metric": None})})
    assert "difference of" not in told(no_metric)


def test_metrics_of_trainings_of_different_lengths_are_not_held_against_each_other() -> None:
    def curve(*metrics: float) -> r.Curve:
        points = [r.CurvePoint(step=10 * (n + 1), seconds=n + 1.0, metric=m) for n, m in enumerate(metrics)]
        return r.Curve(seed=0, points=tuple(points))

    best = WIN.best.model_copy(update={"metric": 0.95, "curves": (curve(0.90, 0.93, 0.95),)})
    baseline = WIN.baseline.model_copy(update={"metric": 0.925, "curves": (curve(0.90, 0.925),)})
    further = WIN.model_copy(update={"quality": None, "best": best, "baseline": baseline})
    verdict = Report(further).verdict
    assert "accuracy 0.93 against 0.925;" in " ".join(str(line) for line in verdict.support)
    fact = next(fact for fact in verdict.facts if fact.label == "accuracy")
    assert (fact.before.value, fact.after.value) == (0.925, 0.93)
    elsewhere = best.model_copy(update={"curves": (r.Curve(seed=0, points=curve(0.9, 0.93, 0.95).points[2:]),)})
    apart = Report(further.model_copy(update={"best": elsewhere})).verdict
    assert "not compared with the baseline's" in " ".join(str(line) for line in apart.support)
    assert next(fact for fact in apart.facts if fact.label == "accuracy").after.missing


def test_what_a_bound_leaves_is_told_as_at_most_and_comes_after_what_is_predicted() -> None:
    bound = r.Estimate(value=9.5, low=1.0, high=9.5, n=1, kind=r.EstimateKind.BOUND)
    profile = sample.profile()
    rows = (r.Prediction(strategy="allocator", predicted=bound), *profile.predictions)
    view = ProfileView(profile.model_copy(update={"predictions": rows}))
    open_ = [row for row in view.expectations if row.applies]
    assert [re.split("[ =]", row.label.text)[0] for row in open_] == ["workers", "amp", "allocator", "prefetch"]
    assert str(view.expectations[2].predicted and view.expectations[2].predicted.text) == "at most 9.5×"
    alone = ProfileView(profile.model_copy(update={"predictions": rows[:1]}))
    assert not any("is expected of" in str(line) for line in (alone.headline, *alone.support))
