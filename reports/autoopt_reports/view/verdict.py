"""The first screen: how much faster, how sure, is it safe, what to do next, and what a doubting reader checks first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from autoopt.records import Change, Headline, Result, StopReason
from autoopt_reports.view import units
from autoopt_reports.view.claims import (
    AT,
    Check,
    Status,
    claim_of,
    headline_phrase,
    qualifier_phrases,
    repeats_check,
    run_phrases,
    steps_name,
    target_phrase,
    verified_check,
)
from autoopt_reports.view.quality import both, metric_pair, metric_phrase, quality_view
from autoopt_reports.view.stages import with_kind
from autoopt_reports.view.text import (
    LONGEST_SENTENCES,
    Name,
    Number,
    Phrase,
    change_name,
    clean,
    interval,
    join,
    name,
    number,
    numbers,
    say,
    throughput,
)

MOST_CHANGES, SHORT = 8, 40
"""Changes that the first screen names, and characters of one."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Before and after, for one quantity."""

    label: str
    before: Number
    after: Number


Command = tuple[str, str]
"""What running it does, and the command."""


class VerdictView:
    """The first screen. The same document gives the same."""

    def __init__(self, result: Result) -> None:
        self.status = claim_of(result).status
        self.headline = headline_phrase(result)
        self.qualifiers = qualifier_phrases(result)
        self.support = tuple(filter(None, _support(result, self.status)))
        self.facts = _facts(result)
        self.commands = _commands(result)
        self.interrupted = result.stop.reason is StopReason.INTERRUPTED


def _short_name(change: Change) -> Name:
    """With its setting where that is short: half of one says nothing."""
    whole = change_name(change.strategy, change.setting, longest=SHORT)
    return name(change.strategy, SHORT) if "…" in whole.text else whole


def _support(result: Result, status: Status) -> Iterator[Phrase | None]:
    """The sentences below the headline; None where there is nothing to say."""
    if result.fitted:  # so that nobody reads the speedup as one over the workload as it is
        changes = result.baseline.plan.changes
        yield say(
            "Your workload does not fit into memory here. The baseline is the same batch with "
            + ", ".join("{}" for _ in changes)
            + ", which makes it fit; a run that does not fit cannot be compared.",
            *(change_name(change.strategy, change.setting, longest=120) for change in changes),
        )
    yield from run_phrases(result)
    names = [say("{}", _short_name(change)) for change in result.found]
    if names:
        count = number(len(names), units.count, "/best/plan/changes", how="count")
        text = say("{} change: " if len(names) == 1 else "{} changes: ", count) + join(names[:MOST_CHANGES], "; ")
        yield text + (" and more." if len(names) > MOST_CHANGES else ".")
    yield metric_phrase(result)
    if status in {"none", "unsure", "slower", "point"} and result.rounds and result.rounds[-1].bottleneck:
        round_, at = result.rounds[-1], f"/rounds/{len(result.rounds) - 1}"
        what = with_kind(say("Bottleneck: {}", name(str(round_.bottleneck), 60)), round_)
        if round_.ceiling_step_seconds is not None:
            words = ". A step takes {} in its profile; the ceiling of this machine is {}"
            what += say(words, *numbers(round_, at, units.duration, "step_seconds", "ceiling_step_seconds"))
        yield what + "."
    words, detail = _STOPS[result.stop.reason], result.stop.detail
    yield say(words + ": {}", name(detail)) if detail else say(words + ".")
    if status == "none" and result.more_budget:
        yield say("{}.", name(result.more_budget[:1].upper() + result.more_budget[1:]))


_STOPS = {
    StopReason.DIMINISHING_RETURNS: "The search ended because no remaining change promises enough",
    StopReason.AT_THE_CEILING: "The search ended at the ceiling of this machine",
    StopReason.BUDGET: "The search ended at the end of its budget",
    StopReason.EXHAUSTED: "The search ended because nothing applicable was left",
    StopReason.INTERRUPTED: "Interrupted: this is a partial result",
}


def _facts(result: Result) -> tuple[Fact, ...]:
    """Before and after. What is timed is all of the headline's record; of the final comparison where there is none."""
    record, metric = result.speedup.headline, result.objective.metric or "metric"
    if record is not None and result.found:
        facts = [*_recorded(result, record)]
    else:
        to_target = "time to target" if result.objective.has_target else f"time to {target_phrase(result)}"
        step = both(result, units.duration, "step_seconds", "p50")
        rates = throughput(result.baseline, "/baseline"), throughput(result.best, "/best")
        facts = [
            Fact(to_target, *both(result, units.duration, "time_to_target_seconds", "value")),
            Fact("step in interleaved blocks, median", *step),
            Fact("throughput in interleaved blocks", *rates),
        ]
    facts.append(Fact("peak memory", *both(result, units.bytes_, "peak_memory_bytes")))
    before, after = both(result, units.plain, "metric")
    if result.found:  # read after the same training; without such readings the final plan's is not shown
        before, after = metric_pair(result) or (before, number(None, units.plain, "/best/metric"))
    facts.append(Fact(str(name(metric, 24)), before, after))
    if result.objective.price_per_hour is not None:
        facts.append(Fact("cost to target", *both(result, units.money, "cost_to_target")))
    return tuple(facts)


def _recorded(result: Result, record: Headline) -> Iterator[Fact]:
    seconds = numbers(record, AT, units.duration, "baseline_seconds", "best_seconds")
    if record.kind == "per_step":
        what = "start and evaluations included" if record.source == "trained" else "final comparison"
        yield Fact(f"a step, {what}", *seconds)
        return
    yield Fact("time to target" if record.kind == "to_target" else f"time to {target_phrase(result)}", *seconds)
    steps = numbers(record, AT, units.count, "baseline_steps", "best_steps")
    each = [
        number(took.value / count.value, units.duration, *took.paths, *count.paths, how="quotient")
        for took, count in zip(seconds, steps, strict=True)
        if took.value is not None and count.value is not None
    ]
    if len(each) < 2:
        return
    yield Fact("a step, start and evaluations included", *each)
    if record.steps_ratio is not None:
        yield Fact(steps_name(record), *steps)


def _commands(result: Result) -> tuple[Command, ...]:
    """Commands to run next; paths are quoted, so that a pasted line does what it says."""
    run = shlex.quote(clean(result.reproduce.run_directory or "RUN"))
    spec = shlex.quote(clean(result.workload.spec))
    commands: list[Command] = []
    if result.stop.reason is StopReason.INTERRUPTED:
        commands.append(("Continue the search", f"autoopt resume {run}"))
    if not result.found:
        return tuple(commands)
    plan = shlex.quote(
        f"{clean(result.reproduce.run_directory)}/plan.json" if result.reproduce.run_directory else "RUN/plan.json"
    )
    if not result.speedup.end_to_end_verified:
        has_code = result.sites is None or bool(result.patch and result.patch.diff)
        alone = has_code and result.best.plan.processes == 1
        commands.append(
            ("Check it end to end", f"autoopt verify {run}")
            if alone
            else ("Measure it again", f"autoopt compare --candidate {run}")
        )
    if result.sites is not None:
        if result.patch is not None and result.patch.diff:
            commands += [("Apply the patch", f"autoopt apply {run}"), ("Or with git", f"git apply {run}/patch.diff")]
        launched = result.workload.processes > 1  # its sites are those of one of the processes
        words = shlex.split(result.workload.spec) if launched else result.sites.command
        command = f"autoopt run --plan {plan} -- {shlex.join(map(clean, words))}"
        return (*commands, ("Train without a patch", command))
    if claim_of(result).gain:
        commands.append(("Train with it", f"autoopt train {spec} --plan {plan}"))
    commands.append(("Take the code", f"autoopt export {run} --to pytorch"))
    return tuple(commands)


def trust_checks(result: Result) -> tuple[Check, ...]:
    return (_noise(result), *_evidence(result), *_machine(result), _gaps(result))


def _noise(result: Result) -> Check:
    aa = interval(result.noise.aa_ratio, "/noise/aa_ratio")
    if aa is None or result.noise.floor is None:
        if aa is None and result.speedup.trained is not None:
            return Check("Noise floor", "open", say("Not measured: whole runs were compared, and no blocks of steps."))
        seen = (
            say("Baseline against itself: {}, but no floor follows from it", aa.phrase)
            if aa
            else say("The baseline was not measured against itself")
        )
        return Check("Noise floor", "open", seen + ", so no gain can be distinguished from noise.")
    floor = number(result.noise.floor, units.percent, "/noise/floor")
    claim = claim_of(result)
    low = claim.interval.low.value if claim.interval is not None else None
    inside = claim.status == "faster" and low is not None and low < 1 + result.noise.floor
    seen = say("{} in one pair of processes", aa.value) if aa.n.value == 1 else aa.phrase
    text = say("Baseline against itself: {}; gains under {} are within noise.", seen, floor)
    control = result.noise.aa_ratio
    doubts = (
        (inside, "The lower bound of the speedup lies under it."),
        (result.noise.failed(result.objective.min_gain), "The control failed: the machine favored one side."),
        (
            control is not None and not control.low <= 1 <= control.high,
            "The interval does not contain 1: the machine favored one side.",
        ),
        (result.noise.floor > 0.05, "That is high: a quieter machine would show smaller gains."),
    )
    doubt = next((words for holds, words in doubts if holds), None)
    return Check("Noise floor", "caution", text + f" {doubt}") if doubt else Check("Noise floor", "good", text)


def _evidence(result: Result) -> Iterator[Check]:
    """Repeats and trainings that the figure rests on, and quality; nothing where no change was kept.

    Of the quality: the evidence for its level, its price in steps, and what it does not cover, as far as known.
    """
    found = repeats_check(result)
    if found is not None:
        yield found
        yield verified_check(result)
    view, quality, basis = quality_view(result), result.quality, Phrase()
    if quality is not None and quality.rests_on:
        basis = say("Evidence: {}.", name(quality.rests_on, LONGEST_SENTENCES))
        if quality.step_penalty is not None and quality.step_penalty.value > 1.005:
            price = number(quality.step_penalty.value, units.ratio, "/quality/step_penalty/value")
            what = "The longer way to the target" if quality.level == "trained" else "Rounding"
            basis += say(" " + what + " counts as {} as many steps.", price)
        if quality.would_miss:
            basis += say(" Not covered: {}.", name(quality.would_miss, LONGEST_SENTENCES))
    if view.claim != "nothing":
        level = {"not_tested": "open", "lost": "caution", "undecided": "caution"}.get(view.claim, "good")
        yield Check(view.short[0].upper() + view.short[1:], level, basis or view.detail)  # type: ignore[arg-type]


def _machine(result: Result) -> Iterator[Check]:
    """Load by other programs; whether candidates could be screened at the same time, from the last control of that."""
    if result.noise.foreign_cores is not None:
        shown = number(result.noise.foreign_cores, lambda cores: f"{cores:.2g}", "/noise/foreign_cores")
        reported = say("Other programs used {} cores while plans were compared.", shown)
        busy = result.noise.busy
        yield Check("Busy machine" if busy else "Machine", "caution" if busy else "good", reported)
    if result.sharing:
        last, at = result.sharing[-1], f"/sharing/{len(result.sharing) - 1}"
        seen = [interval(each, f"{at}/beside/{index}") for index, each in enumerate(last.beside)]
        ratios = [each.phrase for each in seen if each is not None]
        reported = say("it was not measured")
        if ratios:
            reported = say("throughput with neighbors over alone: {}", join(ratios))
        screened = "Candidates were screened at the same time and confirmed alone; {}."
        text = say(screened if last.allowed else "Nothing was screened at the same time; {}.", reported)
        yield Check("Neighbors", "good" if last.allowed else "caution", text)


def _gaps(result: Result) -> Check:
    warnings, gaps = len(result.warnings), len(result.not_measured)
    if not warnings and not gaps:
        return Check("Warnings", "good", say("None."))
    text = say("No warnings")
    if warnings:
        words = "{} warning" if warnings == 1 else "{} warnings"
        text = say(words, number(warnings, units.count, "/warnings", how="count"))
    missing = number(gaps, units.count, "/not_measured", how="count")
    text += say("; {} thing not measured." if gaps == 1 else "; {} things not measured.", missing)
    return Check("Warnings", "caution" if warnings else "open", text)
