"""A candidate against a baseline, judged from outside: the whole of ``autoopt compare``."""

from __future__ import annotations

import contextlib
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import autoopt
from autoopt.comparing.answer import answer_of
from autoopt.comparing.learning import Judge
from autoopt.comparing.ledger import enter
from autoopt.comparing.sides import Side, side
from autoopt.comparing.watched import WatchedArm
from autoopt.errors import AutooptError, TrialFailed, WorkloadError
from autoopt.options import Options
from autoopt.records import Environment, Estimate, Plan
from autoopt.records.comparing import Compared, ComparedSide, Learning, LedgerEntry, Requirement
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Startup
from autoopt.registry import Registry
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.running.document import now
from autoopt.search.compare.compare import compare
from autoopt.search.compare.comparison import Comparison, Rule
from autoopt.search.compare.noise import control, doubts
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import TrialSpec

NAMES = {"incumbent": "baseline", "candidate": "candidate"}
DEFAULT_SECONDS = 300.0
_LEARNING, _CONTROL, _PAIRS = 0.3, 0.2, 24

Say = Callable[[str], None]


def compare_sides(
    baseline: str,
    candidate: str,
    workload: str | None,
    options: Options,
    *,
    requirement: Requirement | None = None,
    ledger: Path | None = None,
    say: Say = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Compared:
    """Compares two sides.

    Args:
        baseline, candidate: builds, plans or revisions (``autoopt.comparing.sides``).
        workload: what plans and revisions are of.
        options: budget, device and further strategies.
        requirement: what must hold; without one the comparison goes on until its interval is narrow.
        ledger: the file that divides one alpha over all asks.
        say: progress, a line at a time.

    Raises:
        WorkloadError: the baseline cannot be built, or fails.
        UsageError: a side is none.
    """
    registry, began, created = registry_of(options), clock(), now()
    with contextlib.ExitStack() as stack:
        sides = {
            "baseline": stack.enter_context(side(baseline, workload)),
            "candidate": stack.enter_context(side(candidate, workload)),
        }
        records = {name: _record(each) for name, each in sides.items()}
        seed = secrets.randbelow(2**31)  # neither side can have known it
        entry = (
            enter(ledger, baseline=_name(records["baseline"]), candidate=_name(records["candidate"]))
            if ledger
            else None
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autoopt-compare-")))
        launcher = stack.enter_context(Launcher())
        comparing = _Comparing(sides, options, registry, launcher, folder, seed, entry, requirement, clock, say)
        found = comparing.run(began + options.budget_seconds)
    document = Compared(
        autoopt_version=autoopt.__version__,
        created=created,
        seconds=clock() - began,
        baseline=_measured(records["baseline"], comparing, "baseline", found),
        candidate=_measured(records["candidate"], comparing, "candidate", found),
        environment=comparing.environment,
        seed=seed,
        answer="undecided",
        reason="",
        throughput=found.estimate if found else None,
        control=comparing.control,
        planned_run=comparing.planned_run(found),
        planned_steps=comparing.facts.max_steps if comparing.facts else None,
        pairs=found.ratios if found else (),
        metric=comparing.facts.metric if comparing.facts else None,
        learning=comparing.learning,
        requirement=requirement,
        ledger=entry,
        warnings=tuple(comparing.warnings),
    )
    return answer_of(
        document, found, comparing.failure, refusal(found, comparing.learning, comparing.judge, comparing.ceiling)
    )


class _Comparing:
    def __init__(
        self,
        sides: dict[str, Side],
        options: Options,
        registry: Registry,
        launcher: Launcher,
        folder: Path,
        seed: int,
        entry: LedgerEntry | None,
        requirement: Requirement | None,
        clock: Callable[[], float],
        say: Say,
    ) -> None:
        self.sides, self.clock, self.say, self.folder = sides, clock, say, folder
        self.plans: dict[str, Plan] = {name: each.plan for name, each in sides.items()}
        self.alpha = entry.alpha if entry else 0.05
        self.requirement, self.budget = requirement, options.budget_seconds
        self.runners = {
            name: TrialRunner(launcher, _spec(each, options, registry, seed), registry, folder / name)
            for name, each in sides.items()
        }
        self.starts: dict[str, list[float]] = {"baseline": [], "candidate": []}
        self.facts: WorkloadFacts | None = None
        self.environment: Environment | None = None
        self.learning = Learning()
        self.control: Estimate | None = None
        self.failure: str | None = None
        self.warnings: list[str] = []
        self.judge: Judge | None = None
        self.ceiling: float | None = None

    def run(self, deadline: float) -> Comparison | None:
        """The throughput of both; None where the candidate failed before it could be measured."""
        self._describe()
        self.say("training both sides for their weights")
        self.judge = Judge(self.runners, dict(self.plans), self.folder, self.clock, _LEARNING * self.budget)
        try:
            self.learning = self.judge.learning()
        except TrialFailed as failure:
            if failure.where == "baseline":
                raise WorkloadError(f"the baseline fails: {failure.reason}", detail=failure.detail) from None
            self.failure = failure.reason
            return None
        except AutooptError as error:  # the candidate's build cannot be imported or built: its own failure
            self.failure = error.message
            return None
        noise, controlled = control(
            self._start("baseline"), self.plans["baseline"], self._rule(_CONTROL * self.budget), clock=self.clock,
            pairs=2, deadline=self.clock() + _CONTROL * self.budget,
        )  # fmt: skip
        self.control = noise.aa_ratio
        self.warnings += doubts(noise, controlled, self.environment)
        self.say("comparing in pairs of processes")
        found = compare(
            self._start(), self.plans["baseline"], self.plans["candidate"], self._rule(deadline - self.clock()),
            clock=self.clock, deadline=deadline, noise=noise, on_progress=lambda note, estimate: self.say(note),
        )  # fmt: skip
        if found.failure is not None and found.failure.side == "incumbent":
            raise WorkloadError(f"the baseline fails: {found.failure.reason}", detail=found.failure.detail)
        self.failure = found.failure.reason if found.failure else None
        if found.estimate is not None and found.estimate.low > 1.0:
            self.ceiling = self._ceiling()
        return found

    def _ceiling(self) -> float | None:
        """Seconds that a step's operations take at the best of this machine's measured peaks; None where not known."""
        try:
            with self.runners["baseline"].trial(self.plans["baseline"], "ceiling") as process:
                flops = process.call("autoopt.benchmark.tasks:flops", timeout=120.0).get("flops_per_step")
                peaks = process.call("autoopt.simplify.tasks:measure_peaks", timeout=120.0)
        except TrialFailed:
            return None
        known = [value for name, value in peaks.items() if name.startswith("matmul_") and value]
        return flops / max(known) if flops and known else None

    def _describe(self) -> None:
        with self.runners["baseline"].trial(self.plans["baseline"], "describe") as process:
            self.facts = WorkloadFacts.model_validate(process.call("autoopt.benchmark.tasks:facts", timeout=300.0))
            found = process.call("autoopt.benchmark.tasks:environment", timeout=120.0)
            self.environment = Environment.model_validate(found)

    def _start(self, only: str | None = None) -> Callable[[Plan, str], WatchedArm]:
        def start(plan: Plan, label: str) -> WatchedArm:
            name = only or NAMES[label]
            began = self.clock()
            arm = _Counted(self.runners[name].launch(plan, label), plan, self.clock, began)
            arm.told = self.starts[name].append
            return arm

        return start

    def _rule(self, seconds: float) -> Rule:
        rule = Rule(max_seconds=max(seconds, 1.0), max_pairs=_PAIRS, alpha=self.alpha, warm_up_seconds=self.budget / 8)
        if self.requirement is None:
            return rule.model_copy(update={"min_gain": 0.0, "until_error": 0.02})
        return rule.model_copy(update={"min_gain": -self.requirement.margin, "alpha_reject": 0.05})

    def start_seconds(self, name: str) -> float | None:
        return statistics.median(self.starts[name]) if self.starts[name] else None

    def planned_run(self, found: Comparison | None) -> Estimate | None:
        """The ratio over the planned steps, with what each side pays once, by this process's clock."""
        steps = self.facts.max_steps if self.facts else None
        one, two = self.start_seconds("baseline"), self.start_seconds("candidate")
        if found is None or found.estimate is None or not steps or one is None or two is None:
            return None
        step = step_seconds(found, "baseline")
        if step is None:
            return None
        before = one + steps * step

        def at(ratio: float) -> float:
            return before / (two + steps * step / ratio)

        throughput = found.estimate
        values = {name: at(getattr(throughput, name)) for name in ("value", "low", "high")}
        return throughput.model_copy(update=values)


_COUNTED, _OUTSIDE, _CEILING = 1e-3, 1.5, 0.8
"""How far counts, the two ratios, and a step and its ceiling may lie apart by error of measurement."""


def refusal(found: Comparison | None, learning: Learning, judge: Judge | None, ceiling: float | None) -> str | None:
    """Why a measurement that went through is not believed, if it is not."""
    if found is None or found.estimate is None or judge is None:
        return None
    before, after = found.incumbent.samples_per_step, found.candidate.samples_per_step
    if learning.level == "identical" and before and after and abs(after / before - 1) > _COUNTED:
        return f"it counts {after:g} samples a step where {before:g} lead to the same weights"
    step = step_seconds(found, "candidate")
    if ceiling is not None and step is not None and step < _CEILING * ceiling:
        return (
            f"a step takes {1e3 * step:.3g} ms, and the baseline's operations take {1e3 * ceiling:.3g} ms at "
            "the highest rate that this machine was measured to reach"
        )
    outside = judge.ratio()
    if outside is not None and found.estimate.low > _OUTSIDE * max(outside, 1.0):
        return (
            f"its blocks say {found.estimate.value:.2f}x, the same steps in trainings whose weights were checked "
            f"at most {outside:.2f}x"
        )
    return None


class _Counted(WatchedArm):
    """Tells how long its start took."""

    told: Callable[[float], None]

    def warm_up(self, max_seconds: float) -> Startup:
        startup = super().warm_up(max_seconds)
        if self.start_seconds is not None:
            self.told(self.start_seconds)
        return startup


def _spec(each: Side, options: Options, registry: Registry, seed: int) -> TrialSpec:
    return baseline_spec(each.spec, options, registry).model_copy(
        update={"seed": seed, "directory": os.fspath(each.folder), "search_path": each.search_path}
    )


def _record(each: Side) -> ComparedSide:
    return ComparedSide(
        given=each.given, kind=each.kind, spec=each.spec, plan=each.plan, commit=each.commit, sources=each.sources
    )


def _name(record: ComparedSide) -> str:
    return f"{record.given} ({record.commit[:12]})" if record.commit else record.given


def step_seconds(found: Comparison, name: str) -> float | None:
    """Seconds of a step; the candidate's follows from the baseline's and the paired ratio."""
    one = found.incumbent
    if not one.samples_per_second or not one.samples_per_step:
        return None
    samples = one.samples_per_step if name == "baseline" else found.candidate.samples_per_step
    rate = _rate(found, name)
    return samples / rate if samples and rate else None


def _rate(found: Comparison | None, name: str) -> float | None:
    """Samples per second; the candidate's by the paired ratio, so that the two agree with the speedup."""
    if found is None or found.incumbent.samples_per_second is None or found.estimate is None:
        return None
    return found.incumbent.samples_per_second * (1.0 if name == "baseline" else found.estimate.value)


def _measured(record: ComparedSide, comparing: _Comparing, name: str, found: Comparison | None) -> ComparedSide:
    stats = None if found is None else found.incumbent if name == "baseline" else found.candidate
    metrics = comparing.judge.metrics.get(name) if comparing.judge else None
    metric = comparing.facts.metric if comparing.facts else None
    return record.model_copy(
        update={
            "samples_per_second": _rate(found, name),
            "samples_per_step": stats.samples_per_step if stats else None,
            "step_seconds": step_seconds(found, name) if found else None,
            "start_seconds": comparing.start_seconds(name),
            "metric": metrics.get(metric) if metrics and metric else None,
        }
    )
