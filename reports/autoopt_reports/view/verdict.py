"""The first screen: how much faster, how sure, is it safe, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoopt.records import Change, Estimate, Result, StopReason, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.pipeline import with_kind
from autoopt_reports.view.quality import metric_pair, metric_phrase, quality_view
from autoopt_reports.view.text import Interval, Number, Phrase, code, interval, name, number, say, throughput

TRIED = set(Verdict) - {Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED}
Status = Literal["faster", "unsure", "none", "slower", "unmeasured"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Before and after, for one quantity."""

    label: str
    before: Number
    after: Number


@dataclass(frozen=True, slots=True)
class Command:
    """Something to run next."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class VerdictView:
    status: Status
    speedup: Interval | None
    headline: Phrase
    qualifiers: tuple[Phrase, ...]
    support: tuple[Phrase, ...]
    facts: tuple[Fact, ...]
    commands: tuple[Command, ...]
    interrupted: bool


def judged(result: Result) -> tuple[Estimate | None, str, str]:
    """The estimate that decides, its path, and what it is a speedup of."""
    if result.speedup.time_to_target is not None:
        of_what = "to target" if result.objective.has_target else "for the same steps"
        if result.speedup.planned_steps is not None or _to_the_end(result):
            of_what = "over the planned run"
        return result.speedup.time_to_target, "/speedup/time_to_target", of_what
    return result.speedup.throughput, "/speedup/throughput", "in samples per second"


def status_of(result: Result) -> Status:
    """Claim that the interval allows; a plan without an estimate is not called anything."""
    if not result.found:
        return "none"
    estimate, _, _ = judged(result)
    if estimate is None:
        return "unmeasured"
    if estimate.low > 1:
        return "faster"
    return "slower" if estimate.high < 1 else "unsure"


def verdict_view(result: Result) -> VerdictView:
    status = status_of(result)
    estimate, path, _ = judged(result)
    return VerdictView(
        status=status,
        speedup=interval(estimate, path) if status != "none" else None,
        headline=_headline(result, status),
        qualifiers=_qualifiers(result, status),
        support=tuple(
            p for p in (_fitted(result), _your_run(result, status), metric_phrase(result), *_why(result, status)) if p
        ),
        facts=_facts(result),
        commands=_commands(result),
        interrupted=result.stop.reason is StopReason.INTERRUPTED,
    )


def _headline(result: Result, status: Status) -> Phrase:
    estimate, path, of_what = judged(result)
    shown = interval(estimate, path)
    if status == "none" and result.stop.reason is StopReason.INTERRUPTED:
        return say("Stopped before a gain was verified")
    if status == "none" and result.fitted:
        return say("Made to fit in memory; no safe gain found beyond that")
    if status == "none" and not any(trial.verdict in TRIED for trial in result.trials):
        return say("Nothing was tried")
    if status == "none":
        return say("No safe gain found")
    if shown is None:
        return say("{} kept, but the final plan was not measured against the baseline", _kept(result))
    if status == "faster":
        return say("{} faster " + of_what, shown.value)
    if status == "slower":
        return say("Slower: {} " + of_what, shown.value)
    return say("No gain shown: {} " + of_what, shown.value)


def _kept(result: Result) -> Phrase:
    changes = len(result.found)
    shown = Number(units.count(changes), changes, ("/best/plan/changes",), "count")
    return say("{} change" if changes == 1 else "{} changes", shown)


def _qualifiers(result: Result, status: Status) -> tuple[Phrase, ...]:
    """How sure and how safe, right under the headline."""
    estimate, path, _ = judged(result)
    shown = interval(estimate, path)
    pieces: list[Phrase] = []
    if shown is not None and shown.confidence is not None and status != "none":
        pieces.append(say("{} CI {}–{}×", shown.confidence, shown.low, shown.high))
        if status == "unsure":
            pieces.append(say("the interval includes no gain at all"))
        quality = quality_view(result)
        pieces.append(say(quality.short))
        before, after = result.baseline.peak_memory_bytes, result.best.peak_memory_bytes
        if before is not None and after is not None:
            pieces.append(
                say(
                    "peak memory {} → {}",
                    number(before, units.bytes_, "/baseline/peak_memory_bytes"),
                    number(after, units.bytes_, "/best/peak_memory_bytes"),
                )
            )
    return tuple(pieces)


def target_phrase(result: Result) -> Phrase:
    """``accuracy at least 0.93``, or the step up to which both sides were trained where there is no value to reach."""
    objective, over = result.objective, result.speedup.planned_steps
    if over is not None and status_of(result) == "faster":
        return say("the end of its {} planned steps", number(over, units.count, "/speedup/planned_steps"))
    if objective.metric is None or objective.target is None:
        trained, planned = result.baseline.trained_steps, result.workload.max_steps
        if trained is None or _to_the_end(result):
            return say("its planned end")
        step = number(trained, units.count, "/baseline/trained_steps")
        if planned is None:
            return say("step {}", step)
        return say("step {} of {}", step, number(planned, units.count, "/workload/max_steps"))
    bound = "at least" if objective.mode == "max" else "at most"
    return say(
        "{} " + bound + " {}", name(objective.metric, 60), number(objective.target, units.plain, "/objective/target")
    )


def _to_the_end(result: Result) -> bool:
    """Whether the times of a run without a target are those of all the steps that the user plans."""
    trained, planned = result.baseline.trained_steps, result.workload.max_steps
    return not result.objective.has_target and planned is not None and (trained is None or trained >= planned)


def _fitted(result: Result) -> Phrase | None:
    """That the workload as it is cannot run here, so that nobody reads the speedup as one over it."""
    if not result.fitted:
        return None
    changes = "with " + ", ".join("{}" for _ in result.baseline.plan.changes)
    return say(
        "Your workload as it is does not fit in memory here. The baseline is the same batch " + changes
        + ", under which it does; nothing is compared with what cannot run.",
        *(name(_words(change), 120) for change in result.baseline.plan.changes),
    )  # fmt: skip


def _words(change: Change) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in change.setting.items())
    return f"{change.strategy} ({settings})" if settings else change.strategy


def _your_run(result: Result, status: Status) -> Phrase:
    before, after = result.baseline.time_to_target_seconds, result.best.time_to_target_seconds
    if before is None:
        return say("Time to target of the baseline: not measured.")
    baseline = number(before.value, units.duration, "/baseline/time_to_target_seconds/value")
    if status != "faster" or after is None:  # a time saved is told only where a gain was shown
        low, high = (
            number(getattr(before, bound), units.duration, f"/baseline/time_to_target_seconds/{bound}")
            for bound in ("low", "high")
        )
        return say("Your run takes {} [{} to {}] to {}.", baseline, low, high, target_phrase(result))
    best = number(after.value, units.duration, "/best/time_to_target_seconds/value")
    source = {"measured": " (measured by training to it)", "modelled": " (modelled from its measured parts)", None: ""}
    ending = source[result.best.time_to_target_source]
    if result.best.time_to_target_source == "measured" and after.n == 1 and result.speedup.trained is None:
        ending = " (trained to it from one seed; the factor is that of the interleaved comparison, at equal steps)"
    return say("Your {} run to {} takes {}" + ending + ".", baseline, target_phrase(result), best)


def _why(result: Result, status: Status) -> list[Phrase]:
    """Why the search ended, and what holds the step back where nothing was gained."""
    phrases = []
    if status in {"none", "unsure", "slower"} and result.rounds:
        last = len(result.rounds) - 1
        round_ = result.rounds[last]
        if round_.bottleneck:
            what = with_kind(say("What holds it back: {}", name(round_.bottleneck, 60)), round_, ", ")
            if round_.ceiling_step_seconds is not None:
                what = what + say(
                    "; the step takes {}, its ceiling on this machine is {}",
                    number(round_.step_seconds, units.duration, f"/rounds/{last}/step_seconds"),
                    number(round_.ceiling_step_seconds, units.duration, f"/rounds/{last}/ceiling_step_seconds"),
                )
            phrases.append(what + ".")
    told = result.more_budget if status == "none" else ""
    more = [say("{}.", name(told[:1].upper() + told[1:]))] if told else []
    return [*phrases, _stop(result), *more]


_STOPS = {
    StopReason.DIMINISHING_RETURNS: "The search ended because what is left could not pay",
    StopReason.AT_THE_CEILING: "The search ended at the ceiling of this machine",
    StopReason.BUDGET: "The search ended with its budget",
    StopReason.EXHAUSTED: "The search ended because nothing applicable was left",
    StopReason.INTERRUPTED: "Interrupted: this is a partial result",
}


def _stop(result: Result) -> Phrase:
    words = _STOPS[result.stop.reason]
    return say(words + ": {}", name(result.stop.detail)) if result.stop.detail else say(words + ".")


def _facts(result: Result) -> tuple[Fact, ...]:
    before, after = result.baseline, result.best
    b_time, a_time = before.time_to_target_seconds, after.time_to_target_seconds
    b_step, a_step = before.step_seconds, after.step_seconds
    metric = result.objective.metric or "metric"
    facts = [
        Fact(
            "time to target" if result.objective.has_target else f"time to {target_phrase(result)}",
            number(
                b_time.value if b_time else None,
                units.duration,
                _at("baseline", b_time, "time_to_target_seconds", "value"),
            ),
            number(
                a_time.value if a_time else None, units.duration, _at("best", a_time, "time_to_target_seconds", "value")
            ),
        ),
        Fact(
            "step, median",
            number(b_step.p50 if b_step else None, units.duration, _at("baseline", b_step, "step_seconds", "p50")),
            number(a_step.p50 if a_step else None, units.duration, _at("best", a_step, "step_seconds", "p50")),
        ),
        Fact("throughput", throughput(before, "/baseline"), throughput(after, "/best")),
        _pair(result, "peak memory", "peak_memory_bytes", units.bytes_),
        _metric(result, str(name(metric, 24))),
    ]
    if result.objective.price_per_hour is not None:
        facts.append(_pair(result, "cost to target", "cost_to_target", units.money))
    return tuple(facts)


def _at(configuration: str, present: object, field: str, inner: str) -> str:
    return f"/{configuration}/{field}/{inner}" if present is not None else f"/{configuration}/{field}"


def _pair(result: Result, label: str, field: str, form: units.Formatter) -> Fact:
    return Fact(
        label,
        number(getattr(result.baseline, field), form, f"/baseline/{field}"),
        number(getattr(result.best, field), form, f"/best/{field}"),
    )


def _metric(result: Result, label: str) -> Fact:
    """The metric on both sides after the same training; without such readings the final plan's is not shown."""
    pair = metric_pair(result) if result.found else None
    if pair is not None:
        return Fact(label, *pair)
    after = None if result.found else result.best.metric
    return Fact(
        label,
        number(result.baseline.metric, units.plain, "/baseline/metric"),
        number(after, units.plain, "/best/metric"),
    )


def _commands(result: Result) -> tuple[Command, ...]:
    """Commands to run next; paths are quoted, so that a pasted line does what it says."""
    run = shlex.quote(code(result.reproduce.run_directory or "RUN"))
    spec = shlex.quote(code(result.workload.spec))
    commands: list[Command] = []
    if result.stop.reason is StopReason.INTERRUPTED:
        commands.append(Command("Go on with the search", f"autoopt resume {run}"))
    if not result.found:
        return tuple(commands)
    plan = shlex.quote(
        f"{code(result.reproduce.run_directory)}/plan.json" if result.reproduce.run_directory else "RUN/plan.json"
    )
    if not result.speedup.end_to_end_verified:
        alone = result.sites is None and result.best.plan.processes == 1
        commands.append(
            Command("Check it end to end", f"autoopt verify {run}")
            if alone
            else Command("Measure it again", f"autoopt compare --candidate {run}")
        )
    if result.sites is not None:
        return (*commands, *_script_commands(result, run, plan))
    if status_of(result) == "faster":
        commands.append(Command("Train with it", f"autoopt train {spec} --plan {plan}"))
    commands.append(Command("Take the code", f"autoopt export {run} --to pytorch"))
    return tuple(commands)


def _script_commands(result: Result, run: str, plan: str) -> Iterator[Command]:
    """Of a script: its patch where there is one, and a run with the plan that changes no file."""
    if result.patch is not None and result.patch.diff:
        yield Command("Put the patch on", f"autoopt apply {run}")
        yield Command("Or with git", f"git apply {run}/patch.diff")
    if result.sites is not None:
        launched = result.workload.processes > 1  # its sites are those of one of the processes
        command = shlex.split(result.workload.spec) if launched else result.sites.command
        words = shlex.join(code(word) for word in command)
        yield Command("Train without a patch", f"autoopt run --plan {plan} -- {words}")
