"""A candidate against a baseline, judged from outside: the whole of ``autoopt compare``."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autoopt
from autoopt.comparing import session as sessions
from autoopt.comparing.answer import answer_of, changed_sources
from autoopt.comparing.ask import Ask
from autoopt.comparing.learning import Judge, Trials
from autoopt.comparing.ledger import answered, enter
from autoopt.comparing.session import KnownBaseline, fingerprint_of
from autoopt.comparing.sides import Side, check_alike, check_files, side, workload_of
from autoopt.comparing.watched import Pairs, WatchedArm, WatchedScriptArm, apart
from autoopt.errors import AutooptError, TrialFailed, UsageError, WorkloadError
from autoopt.options import Options
from autoopt.records import Environment, Estimate, Noise, Plan, Sites
from autoopt.records.comparing import Compared, ComparedSide, Learning, Requirement
from autoopt.records.facts import WorkloadFacts
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry
from autoopt.running.baseline_spec import baseline_spec, registry_of
from autoopt.script.applicable import inapplicable
from autoopt.script.command import Build, Script
from autoopt.search.accept.gathering import PROBE_TIMEOUT
from autoopt.search.accept.losses import ROUNDING
from autoopt.search.accept.time_to_target import step_times
from autoopt.search.baseline import objective_of
from autoopt.search.compare.arm import READY_SECONDS
from autoopt.search.compare.comparison import Comparison, Rule, SideFailure
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control, doubts, learned
from autoopt.search.trial_runner import SITES, TrialRunner
from autoopt.storage.interrupts import handled
from autoopt.storage.journal import now
from autoopt.trial.parent import Launcher
from autoopt.trial.remote.launcher import AnyTrial

NAMES = {"incumbent": "baseline", "candidate": "candidate"}
_LEARNING, _CONTROL, _PAIRS = 0.3, 0.2, 24

Say = Callable[[str], None]


class Comparing:
    """Two sides from their first process to the last pair.

    Args:
        sides: ``baseline`` and ``candidate``.
        deadline: by the monotonic clock.
        alpha: error rate of the answer.
        known: the baseline as earlier asks have measured it; None: it is measured now.
        evaluates: both sides' weights are evaluated as well.

    Attributes:
        seed: of all trainings but the pairs', which neither side can have known.
    """

    facts: WorkloadFacts
    environment: Environment
    judge: Judge

    def __init__(
        self,
        sides: dict[str, Side],
        options: Options,
        registry: Registry,
        launcher: Launcher,
        folder: Path,
        deadline: float,
        *,
        alpha: float = 0.05,
        requirement: Requirement | None = None,
        known: KnownBaseline | None = None,
        evaluates: bool = True,
        say: Say = lambda text: None,
    ) -> None:
        self.sides, self.options, self.registry, self.budget = sides, options, registry, options.budget_seconds
        self.alpha, self.requirement, self.known, self.evaluates, self.say = alpha, requirement, known, evaluates, say
        self.sources = {name: each.sources for name, each in sides.items()}
        self.seed = secrets.randbelow(2**31)
        runners = {
            name: TrialRunner(launcher, _spec(each, options, registry, self.seed), registry, folder / name)
            for name, each in sides.items()
        }
        plans, script = {name: each.plan for name, each in sides.items()}, sides["baseline"].command is not None
        self.clock = time.monotonic
        self.trials = Trials(runners, plans, folder, self.clock, deadline, script)
        self.pairs = Pairs(known.step_seconds if known else None)
        self.learning = Learning()
        self.control: Estimate | None = None
        self.failure: str | None = None
        self.warnings: list[str] = []
        self.again: float | None = None

    def run(self) -> Comparison | None:
        """The throughput of both; None where the candidate failed before it could be measured."""
        noise = self._measure_baseline()
        self.say("training both sides for their weights")
        self.judge = self._judge()
        try:
            self.judge.fix_baseline()
            self._run_candidate()
            self.learning = self.judge.learning()
        except TrialFailed as failure:
            if failure.where == "baseline":
                raise _baseline_fails(failure) from None
            self.failure = failure.reason
            return None
        except UsageError:
            raise
        except AutooptError as error:  # the candidate's build cannot be imported or built: its own failure
            self.failure = error.message
            return None
        self.pairs.samples_per_step = self.judge.samples_per_step or 0.0
        return self._speed(noise)

    def speed(self) -> Comparison:
        """The throughput of both alone: whether they train the same is not asked.

        Raises:
            TrialFailed: the candidate cannot be run.
        """
        noise = self._measure_baseline()
        self._run_candidate()
        return self._speed(noise)

    def losses(self) -> tuple[float | None, float | None]:
        """The losses of both sides' weights after a short training of each, by the baseline, on the same batches.

        Raises:
            TrialFailed: the candidate cannot be run.
        """
        self._describe()
        self.facts = self.facts.model_copy(update={"has_evaluate": False})
        self._run_candidate()
        return self._judge().losses()

    def _speed(self, noise: Noise) -> Comparison:
        self.say("comparing in pairs of processes")
        deadline, plans = self.trials.deadline, self.trials.plans
        found = compare(
            self._start(), plans["baseline"], plans["candidate"], self._rule(deadline - self.clock()),
            clock=self.clock, deadline=deadline, noise=noise, on_progress=lambda note, estimate: self.say(note),
        )  # fmt: skip
        if found.failure is not None and found.failure.side == "incumbent":
            raise _baseline_fails(found.failure)
        self.failure = found.failure.reason if found.failure else None
        self.learning = self.learning.model_copy(update={"measured_apart": apart(self.pairs.all)})
        times = step_times(found)
        if times is not None and self.known is not None:  # what later asks may use again, with what this one adds
            more = {"noise": learned(noise, found), "step_seconds": times[0]}
            self.known = None if self.known.drifted(times[0]) else self.known.model_copy(update=more)
        return found

    def _measure_baseline(self) -> Noise:
        """The baseline against itself: the noise of the machine, and whether it repeats its own steps."""
        self._describe()
        if self.known is not None:
            return self.known.noise
        self.say("comparing the baseline with itself")
        noise, controlled = control(
            self._start("baseline"), self.sides["baseline"].plan, self._rule(_CONTROL * self.budget), clock=self.clock,
            pairs=2, deadline=self.clock() + _CONTROL * self.budget,
        )  # fmt: skip
        if controlled.failure is not None:
            raise _baseline_fails(controlled.failure)
        self.again, self.control = apart(self.pairs.all), noise.aa_ratio
        self.warnings += doubts(noise, controlled)
        self.pairs.all.clear()
        self.pairs.spent.clear()
        script, rate = self.trials.runners["baseline"].base.script, controlled.incumbent.steps_per_second
        # one that leaves out 1, or had no time for a pair, is measured anew by the next ask
        fair = self.control is not None and self.control.low <= 1.0 <= self.control.high
        if rate and fair:
            self.known = KnownBaseline(
                fingerprint=fingerprint_of(self.sides["baseline"], self.options.device),
                facts=self.facts,
                environment=self.environment,
                sites=script.sites if script is not None else None,
                noise=noise,
                again=self.again,
                step_seconds=1.0 / rate,
            )
        return noise

    def _describe(self) -> None:
        """The baseline's facts and environment, from its first process or from an earlier ask."""
        if self.known is not None:
            self.environment, self.facts, self.again = self.known.environment, self.known.facts, self.known.again
            self.control = self.known.noise.aa_ratio
            self.trials.runners["baseline"].knows(self.known.sites)
            return
        try:
            with self._first_run("baseline") as process:
                found = process.call("autoopt.benchmark.tasks:environment", timeout=PROBE_TIMEOUT)
                self.environment = Environment.model_validate(found)
                facts = process.call("autoopt.benchmark.tasks:facts", timeout=PROBE_TIMEOUT)
        except TrialFailed as failure:
            raise _baseline_fails(failure) from None
        self.facts = WorkloadFacts.model_validate(facts)

    @contextlib.contextmanager
    def _first_run(self, name: str) -> Iterator[AnyTrial]:
        """A side's first process. A script's shows its sites, and where a revision found its modules.

        Raises:
            UsageError: the side's plan cannot be put on it.
        """
        each, runner = self.sides[name], self.trials.patient(name)
        if each.command is None:
            with runner.trial(each.plan, "describe") as process:
                yield process
            return
        self.say(f"watching the {name}'s first steps")
        with runner.trial(Plan(), "watch") as process:
            sites = Sites.model_validate(process.call(SITES, timeout=min(READY_SECONDS, self.trials.patience)))
            runner.knows(sites)
            reason = inapplicable(self.registry.fold(each.plan), sites)
            if reason:
                raise UsageError(f"{each.given} cannot be put on this script from outside: {reason}")
            if each.root is not None:
                imported = process.call("autoopt.comparing.tasks:imported", timeout=PROBE_TIMEOUT)
                check_files(imported["files"], each)
            yield process

    def _run_candidate(self) -> None:
        """A script's first run as the candidate.

        Raises:
            TrialFailed: it cannot be run, whatever of it is the reason.
            UsageError: as of :meth:`_first_run`.
        """
        if self.sides["candidate"].command is None:
            return
        try:
            with self._first_run("candidate"):
                pass
        except WorkloadError as error:
            raise TrialFailed("error", error.message, detail=error.detail, where="candidate") from None

    def _judge(self) -> Judge:
        precision = self.registry.fold(self.sides["baseline"].plan).precision.dtype
        return Judge(
            self.trials, _LEARNING * self.budget, self.facts, objective=objective_of(self.facts, self.options),
            epsilon=ROUNDING.get(precision, ROUNDING[None]), evaluates=self.evaluates, again=self.again,
        )  # fmt: skip

    def _start(self, only: str | None = None) -> Callable[[Plan, str], WatchedArm]:
        def start(plan: Plan, label: str) -> WatchedArm:
            name = only or NAMES[label]
            runner, patience, pair = self.trials.patient(name), self.trials.patience, self.pairs.joined(label)
            given: Any = {
                "clock": self.clock, "began": self.clock(), "side": name, "label": label, "pair": pair,
                "pairs": self.pairs, "ready_seconds": patience, "warm_up_seconds": patience,
            }  # fmt: skip
            arm = (
                WatchedArm(runner.launch(plan, label, pair.seed), plan, **given)
                if self.sides[name].command is None
                else WatchedScriptArm(lambda: runner.launch(plan, label, pair.seed), plan, **given)
            )
            arm.process = f"{name}/{Path(runner.latest_log or label).stem}"
            return arm

        return start

    def _rule(self, seconds: float) -> Rule:
        rule = Rule(max_seconds=max(seconds, 1.0), max_pairs=_PAIRS, alpha=self.alpha, warm_up_seconds=self.budget / 8)
        if self.requirement is None:
            return rule.model_copy(update={"min_gain": 0.0, "until_error": 0.02})
        return rule.model_copy(update={"min_gain": -self.requirement.margin, "alpha_reject": 0.05})

    def tampered(self) -> str:
        """A change that was made during the comparison, whose speed then does not count; empty where none was."""
        files = (changed_sources(name, self.sources[name], each.sources) for name, each in self.sides.items())
        return next(filter(None, [*files, self.pairs.tampered, self.judge.evaluating.tampered]), "")

    def document(self, found: Comparison | None, **more: Any) -> Compared:
        """The document without its answer; ``more``: fields that are known outside of the comparison."""
        evaluating, facts = self.judge.evaluating, self.facts
        one, two = (evaluating.values.get(name) for name in self.sides)
        return Compared(
            autoopt_version=autoopt.__version__,
            baseline=self._measured("baseline", found),
            candidate=self._measured("candidate", found),
            environment=self.environment,
            seed=self.seed,
            answer="undecided",
            reason="",
            throughput=found.estimate if found else None,
            whole=self.pairs.whole,
            control=self.control,
            planned_run=_planned_run(facts.max_steps, found) if found else None,
            planned_steps=facts.max_steps,
            pairs=found.ratios if found else (),
            decision=found.decision if found else None,
            metric=evaluating.metric,
            metric_difference=two - one if one is not None and two is not None else None,
            metric_note=evaluating.note,
            loss_batches=evaluating.loss_batches or None,
            learning=self.learning,
            requirement=self.requirement,
            warnings=tuple(self.warnings),
            **more,
        )

    def _measured(self, name: str, found: Comparison | None) -> ComparedSide:
        each, evaluating, measured = self.sides[name], self.judge.evaluating, dict[str, float | None]()
        if found is not None:
            stats, times = (found.incumbent if name == "baseline" else found.candidate), step_times(found)
            measured = {
                "samples_per_step": stats.samples_per_step,
                "step_seconds": times[name == "candidate"] if times else None,
                "start_seconds": statistics.median(stats.fixed_seconds) if stats.fixed_seconds else None,
            }
            rate = found.incumbent.samples_per_second
            if found.estimate is not None and rate is not None:
                # the candidate's by the paired ratio, so that the two agree with the speedup
                measured["samples_per_second"] = rate * (1.0 if name == "baseline" else found.estimate.value)
        return ComparedSide(
            given=each.given,
            kind=each.kind,
            spec=each.workload.spec,
            plan=each.plan,
            commit=each.commit,
            sources=self.sources[name],
            metric=evaluating.values.get(name),
            loss=evaluating.loss(name),
            **measured,
        )


def _baseline_fails(failure: TrialFailed | SideFailure) -> WorkloadError:
    return WorkloadError(f"the baseline fails: {failure.reason}", detail=failure.detail)


def _planned_run(steps: int | None, found: Comparison) -> Estimate | None:
    """The ratio over the planned steps, with what each side pays once, by the judging process's clock."""
    starts, times = (found.incumbent.fixed_seconds, found.candidate.fixed_seconds), step_times(found)
    if found.estimate is None or times is None or not steps or not all(starts):
        return None
    (one, two), stepping, ratios = map(statistics.median, starts), steps * times[0], vars(found.estimate)
    values = {name: (one + stepping) / (two + stepping / ratios[name]) for name in ("value", "low", "high")}
    return found.estimate.model_copy(update=values)


def _spec(each: Side, options: Options, registry: Registry, seed: int) -> TrialSpec:
    script = each.script.model_copy(update={"metric": options.metric}) if each.script is not None else None
    own = {"seed": seed, "directory": os.fspath(each.folder), "search_path": each.search_path}
    return baseline_spec(each.workload, options, registry, script=script).model_copy(update=own)


def compare_sides(
    ask: Ask, workload: Build | Script | None, options: Options, *, say: Say = lambda text: None
) -> Compared:
    """Compares two sides.

    Args:
        workload: the function or the command that plans, patches, revisions and ``.`` are of.

    Raises:
        WorkloadError: the baseline cannot be built, or fails.
        UsageError: a side is none, or the two are a script and a function.
    """
    registry, began, created = registry_of(options), time.monotonic(), now()
    workload = workload_of((ask.baseline, ask.candidate), workload)
    with contextlib.ExitStack() as stack:
        stack.enter_context(handled(_stopped))  # checkouts are removed from the user's repository in any case
        sides = {
            "baseline": stack.enter_context(side(ask.baseline, workload, ask.baseline_python)),
            "candidate": stack.enter_context(side(ask.candidate, workload, ask.candidate_python)),
        }
        check_alike(*sides.values())
        stack.enter_context(sides["baseline"].workload.alone())
        before = sessions.read(ask.session) if ask.session else sessions.Session()
        names = {name: f"{s.given} ({s.commit[:12]})" if s.commit else s.given for name, s in sides.items()}
        entry = enter(ask.ledger, **names, after=ask.head or before.head) if ask.ledger else None
        known = before.baseline
        if known is not None and known.fingerprint != fingerprint_of(sides["baseline"], options.device):
            known = None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autoopt-compare-")))
        comparing = Comparing(
            sides, options, registry, stack.enter_context(Launcher()), folder, began + options.budget_seconds,
            alpha=entry.alpha if entry else 0.05, requirement=ask.requirement, known=known,
            evaluates=ask.session is None, say=say,
        )  # fmt: skip
        found = comparing.run()
        tampered = comparing.tampered()
    entry = entry.model_copy(update={"e_value": found.e_value if found else None}) if entry else None
    document = comparing.document(
        found, created=created, seconds=time.monotonic() - began, reused=known is not None, ledger=entry
    )
    document = answer_of(document, found, comparing.failure, tampered)
    if ask.ledger is not None and entry is not None:
        document = document.model_copy(update={"ledger": answered(ask.ledger, entry, document.answer)})
    if ask.session is not None:
        head = document.ledger.head if document.ledger else before.head
        sessions.write(ask.session, sessions.Session(baseline=comparing.known, head=head))
    return document


def _stopped(number: int, frame: object) -> None:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")
