"""The trial runner: starts trials of a workload under any plan, and does with them what the loop asks."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import ceil, inf
from pathlib import Path
from typing import Any

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import Change, JsonDict, Plan, Sites
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.registry import Registry
from autoopt.script.applicable import in_lines, moved, own_setup
from autoopt.script.execute import runs_here
from autoopt.script.metric import chosen, in_output
from autoopt.script.whole_run import saw_one_machine, turn_of, whole_runs
from autoopt.search.accept.evidence import TrainedPair
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.compare.arm import READY_SECONDS, ScriptArm, TrialArm
from autoopt.search.compare.comparison import Comparison
from autoopt.trial.parent import Launcher
from autoopt.trial.places import Place, Workers
from autoopt.trial.remote.launcher import AnyTrial, RemoteLauncher

SITES = "autoopt.script.tasks:sites"
PROBE = "autoopt.benchmark.tasks:probe"

CONFIRMED = 1
"""Evaluations after the first that reaches the target, which must reach it as well."""

TRAIN_LEG = "autoopt.benchmark.tasks:train_leg"
LEG_SECONDS = 1.0
_LEGS = 40
NO_FURTHER = 1.25
"""Of the steps at which the baseline's time was up before the target, for the plan: noise may take it there later."""


class Turns:
    """Two trainings that take turns.

    Args:
        processes: of baseline and plan, started; each is frozen while the other trains.
        arguments: of ``autoopt.benchmark.tasks.train``, such as the target.
        seconds, speedup: what a training of the baseline takes and how much faster the plan is, about, so that both
            end together.
        keep: a folder for the baseline's weights; none are kept where empty.
    """

    def __init__(
        self,
        processes: tuple[AnyTrial, AnyTrial],
        arguments: JsonDict,
        seconds: float,
        speedup: float = 1.0,
        keep: str = "",
    ) -> None:
        self._processes, self._arguments = processes, ({**arguments, "keep": keep} if keep else arguments, arguments)
        leg = max(LEG_SECONDS, seconds / _LEGS)
        self._legs = [leg, leg / max(speedup, 0.1)]
        self._rates = [0.0, 0.0]
        self._no_further: list[int] | None = None
        self._runs: dict[int, TrainingRun] = {}

    def run(self, first: int) -> tuple[TrainingRun, TrainingRun]:
        """Trains both to their end, in the order ABBA from ``first`` on.

        Raises:
            TrialFailed: one ended badly; its attribute ``side`` says which (0: the baseline).
        """
        for process in self._processes:
            _freeze(process)
        while len(self._runs) < 2:
            for side in (first, 1 - first, 1 - first, first):
                if side not in self._runs:
                    self._leg(side)
        return self._runs[0], self._runs[1]

    def _leg(self, side: int) -> None:
        process, seconds, arguments = self._processes[side], self._legs[side], self._arguments[side]
        timeout = 600.0 + 20 * seconds + 2 * float(arguments.get("max_seconds", 0.0))
        process.thaw()
        try:
            answer = process.call(TRAIN_LEG, timeout=timeout, seconds=seconds, no_further=self._no_further, **arguments)
        except TrialFailed as failure:
            failure.side = side
            raise
        if answer.get("steps") and answer["seconds"]:
            self._rates[side] = answer["steps"] / answer["seconds"]
        if all(self._rates):  # as many steps: a plan ahead of what was thought is evaluated past the baseline's end
            self._legs[1] = self._legs[0] * self._rates[0] / self._rates[1]
        if answer["over"]:
            run = self._runs[side] = TrainingRun.model_validate(answer["run"])
            if side == 0 and run.stopped == "seconds":
                self._no_further = [no_further(run), run.steps]
            process.close()
        else:
            _freeze(process)


def no_further(baseline: TrainingRun) -> int:
    """The step at which a plan's training ends, whose baseline's time was up before the target."""
    return ceil(NO_FURTHER * max(baseline.steps, 1))


def _freeze(process: AnyTrial) -> None:
    with suppress(TrialFailed):
        process.freeze()


class MemoryLedger:
    """Peaks of plans on a device; ``limit_bytes``: that all its processes have together; None where it is not known."""

    def __init__(self) -> None:
        self.limit_bytes: int | None = None
        self._peaks: dict[str, int] = {}
        self._too_much: float = inf  # of two that were seen not to fit

    def note(self, comparison: Comparison) -> None:
        """What a comparison has shown of both plans."""
        for side in (comparison.incumbent, comparison.candidate):
            self.note_peak(side.plan, side.peak_memory_bytes)
        if comparison.mode == "alternating":
            together = self._together(comparison.incumbent.plan, comparison.candidate.plan)
            self._too_much = min(self._too_much, together or inf)

    def note_peak(self, plan: Plan, peak: int | None) -> None:
        if peak:
            self._peaks[plan.key] = max(self._peaks.get(plan.key, 0), peak)

    def fit_together(self, one: Plan, other: Plan) -> bool:
        """Whether processes of two plans may fit, as far as is known; an unmeasured one counts as the other."""
        together = self._together(one, other)
        return together is None or (together < self._too_much and together <= (self.limit_bytes or inf))

    def _together(self, one: Plan, other: Plan) -> int | None:
        known = [self._peaks[plan.key] for plan in (one, other) if plan.key in self._peaks]
        return sum(known) * 2 // len(known) if known else None


class TrialRunner:
    """Starts trials.

    Args:
        base: the trial of the baseline; every other one differs in plan, seed and flags.
        logs: the folder of the trials' own output.
        places: where pairs may be measured at the same time; none: one after the other.

    Attributes:
        limits: of the time that starting a trial takes; ``once``: what a start takes beyond that, by a strategy's
            word.
        place: where this one starts its trials; empty where it starts them as every run does.
    """

    place = ""

    def __init__(
        self,
        launcher: Launcher | RemoteLauncher,
        base: TrialSpec,
        registry: Registry,
        logs: Path,
        places: Sequence[Place] = (),
    ) -> None:
        self.places = tuple(places)
        self.base = base
        self.registry = registry
        self._launcher = launcher
        self._logs = logs
        self._number = itertools.count(1 + sum(1 for _ in logs.glob("*.log")) if logs.exists() else 1)
        self.latest_log: str | None = None
        self.patched_files: Callable[[Plan], dict[str, str]] | None = None
        self.unsaid: Callable[[Plan], str] = lambda plan: ""
        self.limits = TimeLimits()
        self.memory = MemoryLedger()
        self.once: dict[str, float] = {}

    def spec(self, plan: Plan, seed: int | None = None, base: TrialSpec | None = None) -> TrialSpec:
        """The trial of a plan; ``base``: of which it is one, where that is another than the baseline's."""
        base = base or self.base
        setup = self.registry.fold(plan)
        env = setup.flags.get("env", {})
        script, launch = base.script, base.script.launch if base.script is not None else None
        if in_lines(setup) and script is not None and script.sites is not None and self.patched_files is not None:
            # those changes are in the script's lines that nothing but its lines can say
            files = self.patched_files(Plan(changes=tuple(filter(self._in_lines_alone, plan.changes))))
            sites = moved(script.sites, files)
            script = script.model_copy(update={"patched": {**files, **script.patched}, "sites": sites})
        changed = {
            "plan": plan,
            "seed": base.seed if seed is None else seed,
            "flags": {"env": dict(env)} if env else {},
            "processes": setup.distributed.processes if launch is None else launch.size,
            "script": script,
        }
        return base.model_copy(update=changed)

    def _in_lines_alone(self, change: Change) -> bool:
        return in_lines(self.registry.fold(Plan(changes=(change,))))

    def in_source(self, plan: Plan) -> bool:
        """Whether all of a plan is in the patch of a script; so is what needs none."""
        return not self.unsaid(plan)

    def not_in_lines(self, change: Change) -> str:
        """Why the patch of a script has no lines for a change that needs some; empty where it has, or needs none."""
        script = self.base.script is not None and self._in_lines_alone(change)
        return self.unsaid(Plan(changes=(change,))) if script else ""

    def watched(self, then: Callable[[AnyTrial, Sites], None] | None = None, wait: float = 0.0) -> Sites | None:
        """The sites of a script, seen in a first run of it; None of other workloads. Its trials know them from then on.

        Args:
            then: asks more of the process that was watched.
            wait: seconds in which the end of an epoch is waited for, and its evaluation.

        Raises:
            TrialFailed: it does not train.
        """
        if self.base.script is None:
            return None
        if self.base.script.sites is None:
            with self.trial(Plan(), "watch") as process:
                sites = Sites.model_validate(process.call(SITES, timeout=READY_SECONDS + wait, wait=wait))
                if then is not None:
                    then(process, sites)
            self.knows(sites)
        return self.base.script.sites

    def knows(self, sites: Sites | None) -> None:
        """Takes over the sites that an earlier run of the script has shown."""
        if self.base.script is not None:
            here = sites is not None and not sites.early and runs_here(self.base.script.command)
            self._script(sites=sites, path=sites.path or None if here and sites is not None else None)

    def _script(self, **update: object) -> None:
        if self.base.script is not None:
            self.base = self.base.model_copy(update={"script": self.base.script.model_copy(update=update)})

    def draw_alike(self, wanted: bool) -> None:
        """From now on, what datasets draw for a batch follows from the batch alone; or, not ``wanted``, no longer."""
        self.base = self.base.model_copy(update={"same_draws": wanted})

    def reads(self, metric: str) -> None:
        """From now on the metric is what this pattern, which was found in what the script prints, finds there."""
        self._script(metric=metric, found=True)

    @contextmanager
    def leanly(self) -> Iterator[None]:
        """A script that is started in the meantime trains in little memory, slowly."""
        self.base = self.base.model_copy(update={"lean": True})
        try:
            yield
        finally:
            self.base = self.base.model_copy(update={"lean": False})

    @property
    def parallel(self) -> int:
        """Pairs that may be measured at the same time."""
        return max(len(self.places), 1)

    def placed(self) -> list[TrialRunner]:
        """A runner for each place: the same trials, started there."""
        found = [copy.copy(self) for _ in self.places]
        for there, place in zip(found, self.places, strict=True):
            there.place, there._launcher = place.name, place.launcher
            if place.devices is not None:
                there.base = self.base.model_copy(update={"devices": place.devices})
        return found

    def workers(self) -> Workers:
        """Workers that fill the places."""
        return Workers(self.parallel)

    def held(self) -> AbstractContextManager[None]:
        """All that is started within runs on one machine."""
        return self._launcher.held()

    def launch(
        self,
        plan: Plan,
        label: str,
        seed: int | None = None,
        *,
        processes: int | None = None,
        base: TrialSpec | None = None,
    ) -> AnyTrial:
        """Starts a process; the caller closes it.

        Args:
            processes: so many of those that a script's launcher starts; all of them where None.

        Raises:
            TrialFailed: it could not be built or set up.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{next(self._number):04d}-{label}.log"
        self.latest_log = f"{self._logs.name}/{log.name}"
        base = base or self.base
        spec = self.spec(plan, seed, base)
        if processes is not None and spec.script is not None and spec.script.launch is not None:
            fewer = spec.script.launch.with_processes(processes)
            script = spec.script.model_copy(update={"launch": fewer})
            spec = spec.model_copy(update={"script": script, "processes": processes})
        return self._launcher.start(spec, log=log, timeout=self._start_seconds(plan, base.script))

    def _start_seconds(self, plan: Plan, script: ScriptSpec | None) -> float:
        """How long a start may take. A script compiles in its first step, which is a part of it."""
        limits = self._limits(plan)
        compiles = script is not None and self.registry.fold(plan, own_setup(script.sites)).compile is not None
        warm_up = READY_SECONDS if limits.warm_up is None else limits.warm_up
        return max(limits.start, warm_up) if compiles else limits.start

    def _limits(self, plan: Plan) -> TimeLimits:
        """Limits of a plan's starts, with what its changes are known to take once."""
        return self.limits.paying(sum(self.once.get(name, 0.0) for name in plan.names()))

    @contextmanager
    def trial(
        self, plan: Plan, label: str, seed: int | None = None, base: TrialSpec | None = None
    ) -> Iterator[AnyTrial]:
        process = self.launch(plan, label, seed, base=base)
        try:
            yield process
        finally:
            process.close()

    def start(self, plan: Plan, label: str, processes: int | None = None) -> TrialArm:
        """As ``autoopt.search.compare.arm.Start`` wants it; ``processes``: see ``launch``."""
        allowed = self._limits(plan)
        limits: dict[str, Any] = {"ready_seconds": allowed.ready, "warm_up_seconds": allowed.warm_up}
        if self.base.script is None:
            arm = TrialArm(self.launch(plan, label), plan, **limits)
        else:
            arm = ScriptArm(lambda: self.launch(plan, label, processes=processes), plan, **limits)
        arm.process = Path(self.latest_log or label).stem
        return arm

    def train(self, plan: Plan, *, seed: int, max_seconds: float, label: str, **limits: Any) -> TrainingRun:
        """Trains from the first step to the target, which a further evaluation confirms, or to a limit.

        Args:
            limits: of :class:`~autoopt.benchmark.run.RunUnderWay`, such as ``target`` and ``max_steps``.

        Raises:
            TrialFailed: the trial ended badly.
        """
        with self._adopted(plan, label, seed) as process:
            limits |= {"max_seconds": max_seconds, "confirm": CONFIRMED}
            document = process.call("autoopt.benchmark.tasks:train", timeout=max_seconds * 2 + 120.0, **limits)
        return TrainingRun.model_validate(document)

    def train_interleaved(
        self,
        baseline: Plan,
        plan: Plan,
        *,
        seed: int,
        label: str,
        seconds: float,
        speedup: float = 1.0,
        keep: str = "",
        **limits: Any,
    ) -> TrainedPair:
        """Trains both to the target from one seed, and so much further, alternately.

        Where both do not fit into memory, one after the other; what is known of them decides it beforehand. ``keep``: a
        folder for the baseline's weights; ``seconds``, ``speedup``: see :class:`Turns`; ``limits``: see :meth:`train`.

        Raises:
            TrialFailed: a training ended badly; ``side`` is 1 where it was the plan's.
        """
        if self.memory.fit_together(baseline, plan):
            try:
                with self._adopted(baseline, f"{label}-baseline", seed) as one:
                    _freeze(one)  # while the other one starts
                    with self._adopted(plan, label, seed) as other:
                        turns = Turns((one, other), {**limits, "confirm": CONFIRMED}, seconds, speedup, keep)
                        before, after = turns.run(seed % 2)
                return TrainedPair(baseline=before, best=after)
            except TrialFailed as failure:
                if not failure.for_want_of_room:
                    raise
        runs = []
        for side, (which, kept) in enumerate(((baseline, keep), (plan, ""))):
            try:
                runs.append(self.train(which, seed=seed, label=label, keep=kept, **limits))
            except TrialFailed as failure:
                failure.side = side
                raise
        return TrainedPair(baseline=runs[0], best=runs[1], interleaved=False)

    def runs_whole(self, plan: Plan) -> bool:
        """Whether whole runs can show what a plan brings: its patch changes a script that one process here runs."""
        return self.runs_here and self.patched_files is not None and bool(self.patched_files(plan))

    @property
    def runs_here(self) -> bool:
        """Whether it is a script that one process runs, on this machine."""
        script = self.base.script
        if script is None or script.sites is None or script.launch is not None:
            return False
        return isinstance(self._launcher, Launcher)

    def whole_run(self, *, steps: int, every: float | None, seed: int, max_seconds: float) -> TrainingRun:
        """A whole run of the untouched script, with the metric that was named; see :meth:`whole_runs`."""
        script = self.base.script
        assert script is not None, "whole runs are of a script"
        (run,) = whole_runs([script], self.base.directory, timeout=max_seconds, turn=turn_of(self.memory.limit_bytes))
        return run.reading(script.metric).as_training(steps, seed, every=every)

    def whole_runs(
        self,
        before: Plan,
        plan: Plan,
        *,
        steps: int,
        seed: int,
        max_seconds: float,
        speedup: float,
        patience: float,
        every: float | None = None,
    ) -> TrainedPair:
        """A whole run of the script with the patch of one plan and one with that of another; nothing listens to either.

        They take turns on the CPU. What a device has been asked for goes on while its process stands still. A metric
        that is not known yet is looked for in what the first one printed.

        Args:
            before: without changes: the untouched script.
            seed: names the pair; it decides which goes first, and another one than the run's is mixed with those
                that the script sets.
            max_seconds: of each; ``patience``: times the first one's seconds that the second one may take.
            every: steps between two evaluations, where runs end at one of them by what they have reached.

        Raises:
            TrialFailed: one ended badly, or was not at its end in time; ``side`` is 1 where it was the second one.
        """
        script = self.base.script
        assert script is not None, "whole runs are of a script"
        assert script.sites is not None, "it was watched"
        assert self.patched_files is not None, "it can be patched"
        patched = (self.patched_files(each) if each.changes else script.patched for each in (before, plan))
        sides = tuple(script.model_copy(update={"patched": files}) for files in patched)
        order = (seed % 2, 1 - seed % 2)
        turn = turn_of(self.memory.limit_bytes)
        try:
            found = whole_runs(
                [sides[side] for side in order],
                self.base.directory,
                timeout=max_seconds,
                shares=[(speedup, 1.0)[side] for side in order],
                turn=turn,
                seed=seed if seed != self.base.seed else None,
                within=(order.index(0), patience),
            )
        except TrialFailed as failure:
            failure.side = order[failure.side]
            raise
        runs, patterns = [found[order.index(side)] for side in (0, 1)], tuple[str, ...]()
        if script.sites.seeded or every:  # of another seed a metric says nothing of the patch, but for its target
            patterns = () if script.metric else in_output(runs[0].output.splitlines())
            runs = [run.reading(script.metric or chosen(patterns)) for run in runs]
        first, second = (run.as_training(steps, seed, patterns, every) for run in runs)
        return TrainedPair(baseline=first, best=second, whole=True, time_sliced=saw_one_machine(found, turn))

    def _adopted(self, plan: Plan, label: str, seed: int) -> AbstractContextManager[AnyTrial]:
        """A trial of the plan in the form in which it is adopted.

        A script's is its patch: the patched files are trained as they are, as are the files as they were, with nothing
        on them but the step clock. What the patch cannot say is part of no figure. The seeds that a script sets are its
        own in the first training; in every other one, which would be the same again, they are mixed with that
        training's.
        """
        files = self.patched_files(plan) if self.patched_files is not None else None
        script, base, trained = self.base.script, self.base, plan
        if script is not None and script.sites is not None:
            bare = script.sites.model_copy(update={"sites": ()})
            own_seeds = script.own_seeds and seed == base.seed
            if files is not None:
                path = None if self.spec(plan).flags else script.path  # the patch sets its variables before torch comes
                script = script.model_copy(update={"sites": bare, "patched": files, "path": path})
                trained = Plan()
            base = base.model_copy(update={"script": script.model_copy(update={"own_seeds": own_seeds})})
        return self.trial(trained, label, seed, base)

    def ask(
        self, plan: Plan, task: str, *, timeout: float, label: str, disturbed: float = 0.0, **arguments: Any
    ) -> JsonDict:
        """Runs one task in a trial of its own, whose weights begin so far away; a script's probes draw the same."""
        changed: JsonDict = {"disturbed": disturbed}
        if self.base.script is not None and task == PROBE:
            changed["same_draws"] = True
        with self.trial(plan, label, base=self.base.model_copy(update=changed)) as process:
            return process.call(task, timeout=timeout, **arguments)


class BaselineFailed(WorkloadError):  # noqa: N818 - reads as the sentence that the user gets
    """A trial of the baseline failed: the user's error (exit code 3), unless a plan is found under which it fits.

    Args:
        what: it was doing, such as ``in training``.
        lean: it was a script's, trained in little memory.
    """

    def __init__(self, failure: TrialFailed, what: str, *, lean: bool = False) -> None:
        hint = "the workload must train as it is before it can be made faster"
        if failure.kind == "out_of_memory" and lean:
            less = "take a smaller model, or a device with more memory"
            hint = f"with what its backward pass needs on the host it does not fit either: {less}"
        elif failure.kind == "out_of_memory":
            hint = "autoopt optimize looks for a plan under which it fits, as long as its weights do"
        super().__init__(f"the baseline failed {what}: {failure.reason}", hint=hint, detail=failure.detail)
        self.failure = failure
