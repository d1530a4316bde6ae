"""The first screen: how much faster, how sure, is it safe, what to do next, and what a doubting reader checks first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoopt.records import Headline, Result, StopReason
from autoopt_reports.view import units
from autoopt_reports.view.claims import (
    AT,
    Status,
    claim_of,
    headline_phrase,
    qualifier_phrases,
    repeats_phrase,
    run_phrases,
    steps_name,
    target_phrase,
    verified_phrase,
)
from autoopt_reports.view.quality import both, metric_pair, metric_phrase, quality_view
from autoopt_reports.view.stages import with_kind
from autoopt_reports.view.text import (
    LONGEST_SENTENCES,
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

MOST_CHANGES = 5
"""Changes that the first screen names."""


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
        claim = claim_of(result)
        support = (
            _fitted(result), *run_phrases(result), _changes(result), metric_phrase(result), *_why(result, claim.status)
        )  # fmt: skip
        self.status = claim.status
        self.headline = headline_phrase(result)
        self.qualifiers = qualifier_phrases(result)
        self.support = tuple(phrase for phrase in support if phrase)
        self.facts = _facts(result)
        self.commands = _commands(result)
        self.interrupted = result.stop.reason is StopReason.INTERRUPTED


def _fitted(result: Result) -> Phrase | None:
    """That the workload as it is cannot run here, so that nobody reads the speedup as one over it."""
    if not result.fitted:
        return None
    changes = "with " + ", ".join("{}" for _ in result.baseline.plan.changes)
    return say(
        "Your workload does not fit into memory here. The baseline is the same batch " + changes
        + ", which makes it fit; a run that does not fit cannot be compared.",
        *(change_name(change.strategy, change.setting, longest=120) for change in result.baseline.plan.changes),
    )  # fmt: skip


def _changes(result: Result) -> Phrase | None:
    """How many changes were kept, the first few by name."""
    names = [say("{}", change_name(change.strategy, change.setting, longest=60)) for change in result.found]
    if not names:
        return None
    count = number(len(names), units.count, "/best/plan/changes", how="count")
    text = say("{} change: " if len(names) == 1 else "{} changes: ", count) + join(names[:MOST_CHANGES], "; ")
    return text + (" and more." if len(names) > MOST_CHANGES else ".")


def _why(result: Result, status: Status) -> list[Phrase]:
    """Why the search ended, and what holds the step back where nothing was gained."""
    phrases = []
    if status in {"none", "unsure", "slower", "point"} and result.rounds:
        last = len(result.rounds) - 1
        round_ = result.rounds[last]
        if round_.bottleneck:
            what = with_kind(say("Bottleneck: {}", name(round_.bottleneck, 60)), round_)
            if round_.ceiling_step_seconds is not None:
                words = ". A step takes {} in its profile; the ceiling of this machine is {}"
                fields = "step_seconds", "ceiling_step_seconds"
                what = what + say(words, *numbers(round_, f"/rounds/{last}", units.duration, *fields))
            phrases.append(what + ".")
    text = result.more_budget if status == "none" else ""
    more = [say("{}.", name(text[:1].upper() + text[1:]))] if text else []
    words = _STOPS[result.stop.reason]
    stop = say(words + ": {}", name(result.stop.detail)) if result.stop.detail else say(words + ".")
    return [*phrases, stop, *more]


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
    facts = [*(_compared(result) if record is None or not result.found else _recorded(result, record))]
    facts.append(Fact("peak memory", *both(result, units.bytes_, "peak_memory_bytes")))
    facts.append(_metric(result, str(name(metric, 24))))
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


def _compared(result: Result) -> Iterator[Fact]:
    """Without a headline: the time to target, and steps as the final comparison timed them."""
    to_target = "time to target" if result.objective.has_target else f"time to {target_phrase(result)}"
    yield Fact(to_target, *both(result, units.duration, "time_to_target_seconds", "value"))
    yield Fact("step in interleaved blocks, median", *both(result, units.duration, "step_seconds", "p50"))
    rates = throughput(result.baseline, "/baseline"), throughput(result.best, "/best")
    yield Fact("throughput in interleaved blocks", *rates)


def _metric(result: Result, label: str) -> Fact:
    """The metric on both sides after the same training; without such readings the final plan's is not shown."""
    before, after = both(result, units.plain, "metric")
    if result.found:
        before, after = metric_pair(result) or (before, number(None, units.plain, "/best/metric"))
    return Fact(label, before, after)


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


Level = Literal["good", "caution", "open"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that makes the result more or less believable. ``open``: not measured."""

    label: str
    level: Level
    text: Phrase


def trust_checks(result: Result) -> tuple[Check, ...]:
    checks = [_noise(result), *_evidence(result), _quality(result), _load(result), *_neighbors(result), _gaps(result)]
    return tuple(check for check in checks if check is not None)


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
    """Repeats and trainings that the figure rests on; nothing where no change was kept."""
    found = repeats_phrase(result)
    if found is not None:
        enough, text = found
        yield Check("Repeats", "open" if enough is None else "good" if enough else "caution", text)
        verified, text = verified_phrase(result)
        headline, patch = result.speedup.headline, result.patch
        if patch is not None and patch.diff and not (headline is not None and headline.whole):
            verified, text = False, text + " The patched script itself was not run to its end."
        yield Check("End to end", "good" if verified else "caution", text)


def _quality(result: Result) -> Check | None:
    view = quality_view(result)
    if view.claim == "nothing":
        return None
    level: Level = {"not_tested": "open", "lost": "caution", "undecided": "caution"}.get(view.claim, "good")  # type: ignore[assignment]
    return Check(view.short[0].upper() + view.short[1:], level, _basis(result) or view.detail)


def _basis(result: Result) -> Phrase:
    """The evidence for the final plan's level, its price in steps, and what it does not cover; empty where unknown."""
    quality = result.quality
    if quality is None or not quality.rests_on:
        return Phrase()
    text = say("Evidence: {}.", name(quality.rests_on, LONGEST_SENTENCES))
    if quality.step_penalty is not None and quality.step_penalty.value > 1.005:
        price = number(quality.step_penalty.value, units.ratio, "/quality/step_penalty/value")
        what = "The longer way to the target" if quality.level == "trained" else "Rounding"
        text = text + say(" " + what + " counts as {} as many steps.", price)
    if quality.would_miss:
        text = text + say(" Not covered: {}.", name(quality.would_miss, LONGEST_SENTENCES))
    return text


def _neighbors(result: Result) -> list[Check]:
    """Whether candidates could be screened at the same time, from the control of the last incumbent."""
    if not result.sharing:
        return []
    last, at = result.sharing[-1], f"/sharing/{len(result.sharing) - 1}"
    seen = [interval(each, f"{at}/beside/{index}") for index, each in enumerate(last.beside)]
    shown = [each.phrase for each in seen if each is not None]
    reported = say("throughput with neighbors over alone: {}", join(shown)) if shown else say("it was not measured")
    screened = "Candidates were screened at the same time and confirmed alone; {}."
    text = say(screened if last.allowed else "Nothing was screened at the same time; {}.", reported)
    return [Check("Neighbors", "good" if last.allowed else "caution", text)]


def _load(result: Result) -> Check | None:
    foreign = result.noise.foreign_cores
    if foreign is None:
        return None
    shown = number(foreign, lambda cores: f"{cores:.2g}", "/noise/foreign_cores")
    reported = say("Other programs used {} cores while plans were compared.", shown)
    return Check("Busy machine", "caution", reported) if result.noise.busy else Check("Machine", "good", reported)


def _gaps(result: Result) -> Check | None:
    warnings, gaps = len(result.warnings), len(result.not_measured)
    if not warnings and not gaps:
        return Check("Warnings", "good", say("None."))
    shown = number(warnings, units.count, "/warnings", how="count")
    missing = number(gaps, units.count, "/not_measured", how="count")
    words = "No warnings" if not warnings else "{} warning" if warnings == 1 else "{} warnings"
    thing = "; {} thing not measured" if gaps == 1 else "; {} things not measured"
    return Check(
        "Warnings",
        "caution" if warnings else "open",
        say(words + thing + ".", *((shown, missing) if warnings else (missing,))),
    )
