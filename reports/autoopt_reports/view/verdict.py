"""The first screen: how much faster, how sure, is it safe, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from autoopt.records import Headline, Result, StopReason
from autoopt_reports.view import units
from autoopt_reports.view.claims import (
    AT,
    Status,
    claim_of,
    headline_phrase,
    qualifier_phrases,
    run_phrases,
    steps_name,
    target_phrase,
)
from autoopt_reports.view.pipeline import with_kind
from autoopt_reports.view.quality import both, metric_pair, metric_phrase
from autoopt_reports.view.text import (
    Number,
    Phrase,
    change_name,
    clean,
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
