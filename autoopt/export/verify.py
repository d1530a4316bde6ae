"""``autoopt verify``: the exported script against the baseline once more, next to what the run reported.

A patch is verified by whole runs: the untouched and the patched script, nothing listening.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from autoopt.benchmark.target import parts
from autoopt.errors import AutooptError, DocumentError, EnvironmentLacks, TrialFailed, UsageError
from autoopt.export.applying import patched_texts
from autoopt.records import Estimate, Plan, Record, Result, ValidationError
from autoopt.records.base import Z
from autoopt.records.headline import AGREEMENT, Headline, Session, Sessions
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.records.reading import read_result
from autoopt.records.writing import write_whole
from autoopt.registry import load_strategies
from autoopt.script.command import Build, parse
from autoopt.script.whole_run import WholeRun, saw_one_machine, turn_of, whole_runs
from autoopt.search.accept.evidence import memory_limit
from autoopt.search.accept.trainings import PATIENCE, next_session, ratio_of_pairs
from autoopt.search.compare.arm import READY_SECONDS, TrialArm
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.search.trial_runner import CONFIRMED, TrialRunner, Turns
from autoopt.trial.parent import Launcher


class Checked(Record):
    """Findings of a verification.

    ``measured``, ``reported``: speedups of throughput over the baseline. ``headline_measured``, ``headline_reported``:
    of the time to the target, or of whole runs of a script; None where it was not measured. ``sessions``: all in which
    the result was measured, this one included; ``next_session``: what the next one is expected to measure, with a 95 %
    prediction interval, from two sessions on.
    """

    holds: bool
    detail: str
    measured: Estimate | None = None
    reported: Estimate | None = None
    headline_measured: Estimate | None = None
    headline_reported: Estimate | None = None
    against: str | None = None
    kind: Literal["script", "runs", "whole_runs"] = "script"
    seconds: float | None = None
    sessions: tuple[Session, ...] = ()
    next_session: Estimate | None = None


def judged(measured: Estimate, reported: Estimate, seconds: float | None = None, *, margin: float = 0.0) -> Checked:
    """Whether two estimates of one ratio agree: their difference is within what their intervals allow.

    Args:
        margin: in log speedup, that is allowed in any case.
    """
    apart = abs(math.log(measured.value) - math.log(reported.value))
    allowed = max(Z * math.hypot(measured.log_sd, reported.log_sd), margin)
    inside = reported.low <= measured.value <= reported.high
    holds = inside or apart <= allowed
    where = (
        "inside the reported interval" if inside else "outside it, within the noise of both" if holds else "outside it"
    )
    return Checked(
        holds=holds,
        detail=f"measured {_shown(measured)}, reported {_shown(reported)}: {where}",
        measured=measured,
        reported=reported,
        seconds=seconds,
    )


def _shown(estimate: Estimate) -> str:
    sure = f"{100 * estimate.confidence:.0f} % CI " if estimate.confidence is not None else ""
    return f"{estimate.value:.2f}x ({sure}{estimate.low:.2f}-{estimate.high:.2f})"


def compare_runs(result: Result, other: Result, name: str) -> Checked:
    """Whether a run is no worse than an earlier one of the same workload on the same machine.

    Each speedup is over its own baseline, so that the load of the machine on two days does not decide.

    Raises:
        UsageError: they are not of the same workload and device.
    """
    for what, one, two in (
        ("workload", result.workload.spec, other.workload.spec),
        ("device", result.environment.device_name or result.environment.device,
         other.environment.device_name or other.environment.device),
    ):  # fmt: skip
        if one != two:
            raise UsageError(f"the two runs have another {what}: {one} and {two}", hint="compare runs of one workload")
    now, before = throughput_of(result), throughput_of(other)
    lost = math.log(before.value) - math.log(now.value)
    allowed = Z * math.hypot(now.log_sd, before.log_sd)
    holds = lost <= allowed
    return Checked(
        holds=holds,
        detail=f"speedup {_shown(now)}, that of {name} {_shown(before)}: {'no worse' if holds else 'worse'}",
        measured=now,
        reported=before,
        against=name,
        kind="runs",
    )


def throughput_of(result: Result) -> Estimate:
    """The reported speedup of throughput; 1 within the noise floor where nothing was kept."""
    if result.speedup.throughput is not None:
        return result.speedup.throughput
    floor = 1 + (result.noise.floor or 0.05)
    return Estimate(value=1.0, low=1 / floor, high=floor, n=1)


def verify_run(
    run: Path,
    result: Result,
    *,
    seconds: float,
    against: Path | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Checked:
    """Measures a run's script or patch again, or compares the run with another.

    Args:
        run: the run directory, or its result.json.
        seconds: wall-clock for all of it, about.
        against: another run; then nothing is measured.

    Raises:
        UsageError: the directory has no script or patch, the plan is one for several processes, or there is not the
            time for one pair of whole runs.
        EnvironmentLacks: another device or torch than the run was measured with.
    """
    if against is not None:
        return compare_runs(result, read_result(against), str(against))
    began, folder = now().isoformat(timespec="seconds"), (run if run.is_dir() else run.parent).resolve()
    if result.sites is not None:
        found = verify_script(folder, result, seconds=seconds)
    else:
        script = folder / "optimized_train.py"
        if result.best.plan.processes > 1:
            raise UsageError(
                f"the plan trains in {result.best.plan.processes} processes, which its script leaves to autoopt train",
                hint=f"autoopt compare {result.workload.spec} --baseline BASE.json --candidate {folder / 'plan.json'}",
            )
        if not script.is_file():
            raise UsageError(f"{folder} holds no optimized_train.py", hint="name the directory of a finished run")
        import torch

        if result.environment.torch not in (None, torch.__version__):
            raise EnvironmentLacks(
                f"the run was measured with torch {result.environment.torch}, this is {torch.__version__}",
                hint="a speedup holds for the versions it was measured with: optimize again",
            )
        found = verify(result, script, seconds=seconds, logs=folder / "logs")
    return with_sessions(folder, result, found, began=began, ended=now().isoformat(timespec="seconds"))


def verify(result: Result, script: Path, *, seconds: float, logs: Path) -> Checked:
    """The script against the baseline: trained to the target alternately, then paired as in every comparison.

    What the first screen claims is the time to the target, so that is measured where it fits half of the time.

    Args:
        seconds: wall-clock, starts of processes included.
    """
    registry = load_strategies(result.reproduce.strategies)
    base = TrialSpec(
        workload=result.workload.spec,
        strategies=registry.specs,
        device=result.environment.device,
        seed=result.reproduce.seed,
        directory=os.getcwd(),
        search_path=tuple(path for path in sys.path if path),
    )
    began = time.monotonic()
    with Launcher() as launcher:
        runner = TrialRunner(launcher, base, registry, logs)

        def start(plan: Plan, label: str) -> TrialArm:
            process = runner.launch(plan, f"verify-{label}")
            return TrialArm(process if label == "incumbent" else scripted(process, script), plan)

        headline = train_again(runner, script, result, until=began + seconds / 2)
        if not headline.holds:
            return headline.model_copy(update={"reported": throughput_of(result)})
        left = seconds - (time.monotonic() - began)
        found = compare(
            start,
            result.baseline.plan,
            result.best.plan,
            Rule(max_seconds=left, until_error=0.03, warm_up_seconds=min(60.0, left / 4)),
            clock=time.monotonic,
            noise=result.noise,
            rng=np.random.default_rng(result.reproduce.seed),
        )
    if found.failure is not None:
        return Checked(holds=False, detail=f"the measurement failed: {found.reason}", reported=throughput_of(result))
    if found.estimate is None:
        raise AutooptError(f"nothing could be measured in {seconds:.0f} s", hint="give more time: --budget 10m")
    throughput = judged(found.estimate, throughput_of(result), time.monotonic() - began)
    return with_headline(throughput, headline, result)


def with_headline(throughput: Checked, headline: Checked, result: Result) -> Checked:
    """Both figures: what the first screen claims, and the throughput. Each must hold."""
    detail = f"throughput {throughput.detail}"
    measured, reported = headline.headline_measured, result.speedup.time_to_target
    if measured is None or reported is None:
        return throughput.model_copy(update={"detail": "; ".join(part for part in (detail, headline.detail) if part)})
    again = judged(measured, reported)
    return throughput.model_copy(
        update={
            "holds": throughput.holds and again.holds,
            "detail": f"time to target {again.detail} ({headline.detail}); {detail}",
            "headline_measured": measured,
            "headline_reported": reported,
        }
    )


START_SECONDS = 20.0
"""To start both and to build them, about."""


def train_again(runner: TrialRunner, script: Path, result: Result, *, until: float) -> Checked:
    """Trains baseline and script from fresh seeds, as many pairs as fit the time.

    Args:
        until: of the monotonic clock; a pair that does not fit is not begun.

    Returns:
        The ratio of the trainings with their seconds, or why there is none; it does not hold where one failed.
    """
    before, after = result.baseline.time_to_target_seconds, result.best.time_to_target_seconds
    if result.objective.target is None or before is None or after is None:
        return Checked(holds=True, detail="the run has no time to a target, so only the throughput is compared")
    each = START_SECONDS + before.value + after.value
    limit = PATIENCE * max(before.value, after.value) + START_SECONDS
    arguments = {"max_seconds": limit, "target": result.objective.target, "confirm": CONFIRMED}
    pairs: list[tuple[TrainingRun, TrainingRun]] = []
    while len(pairs) < 4 and time.monotonic() + each <= until:  # a fifth narrows the interval by a tenth
        seed = result.reproduce.seed + 2000 + len(pairs)  # above those that search and verification have seen
        try:
            with (
                runner.trial(result.baseline.plan, "verify-baseline", seed) as one,
                runner.trial(result.best.plan, "verify-script", seed) as other,
            ):
                both = (one, scripted(other, script, whole=True))
                pairs.append(Turns(both, arguments, before.value, before.value / after.value).run(seed % 2))
        except TrialFailed as failure:
            return Checked(holds=False, detail=f"the training failed: {failure.reason}")
    if not pairs:
        time_needed = f"a pair of trainings takes about {each:.0f} s, and the verification {each * 2:.0f} s"
        detail = f"the time to the target was not measured again: {time_needed}; give more with --budget"
        return Checked(holds=True, detail=detail)
    return summed_up(pairs, result)


def summed_up(pairs: list[tuple[TrainingRun, TrainingRun]], result: Result) -> Checked:
    """The ratio of these trainings; a failure where the script misses a target that the baseline reaches."""
    objective = result.objective
    ends = [tuple(parts(run, objective.target, objective.mode) for run in pair) for pair in pairs]
    timed = [tuple(None if end is None else end.seconds for end in pair) for pair in ends]
    missed = [run for (_, run), (old, new) in zip(pairs, timed, strict=True) if old is not None and new is None]
    if missed:
        target = f"{objective.metric} {objective.target:g}"
        where = f"in {missed[0].steps} steps from {len(missed)} of {len(pairs)} seeds"
        detail = f"the script does not reach {target} {where}, where the baseline does"
        return Checked(holds=False, detail=detail)
    both = [(old, new) for old, new in timed if old is not None and new is not None]
    if not both:
        detail = "the baseline did not reach the target again, so there is no time to compare"
        return Checked(holds=True, detail=detail)
    ratio = ratio_of_pairs([math.log(old / new) for old, new in both], result.noise.process_sd)
    seen = ", ".join(f"{old:.1f} s to {new:.1f} s" for old, new in both)
    return Checked(
        holds=True, detail=f"trained to the target, baseline to script by seed: {seen}", headline_measured=ratio
    )


def scripted(process: Any, script: Path, *, whole: bool = False) -> Any:
    """The trial's process, which trains by the exported script from now on.

    Raises:
        TrialFailed: the script cannot be loaded or set up; the process is closed then.
    """
    try:
        process.call("autoopt.export.script_trial:take_over", timeout=READY_SECONDS, script=str(script), whole=whole)
    except TrialFailed:
        process.close()
        raise
    return process


UNTOUCHED, PATCHED = "untouched", "patched"

Runs = Callable[[Sequence[str], float], list[WholeRun]]
"""``runs(sides, timeout)``, interleaved whole runs of these sides, the first one first."""


def verify_script(run: Path, result: Result, *, seconds: float) -> Checked:
    """Interleaved whole runs of both sides, the order drawn at random, until the time is up; one pair at least.

    Args:
        seconds: wall-clock for all of them.

    Raises:
        UsageError: there is no patch, or it does not fit the script as it is.
        EnvironmentLacks: the script cannot be given a view of its folder.
    """
    sites = result.sites
    assert sites is not None, "it is a script's run"
    if result.patch is None or not result.patch.diff:
        raise UsageError(f"{run} holds no patch: nothing was kept, or no line of the script says it")
    workload, folder = parse(result.workload.spec), Path(sites.cwd)
    if isinstance(workload, Build) or not folder.is_dir():
        raise UsageError(f"the script was run in {folder}, which is not there", hint="run `autoopt optimize` again")
    workload.check(folder)
    plain = workload.in_trials(folder)
    if plain.launch is not None:
        raise UsageError(
            f"{workload.words[0]} starts the processes of this script, and whole runs are of one process",
            hint=f"autoopt compare --candidate {run}",
        )
    patched = plain.model_copy(update={"patched": patched_texts(result.patch.diff, [folder])})
    sides, turn, seeds = {UNTOUCHED: plain, PATCHED: patched}, turn_of(memory_limit(result.environment)), count(1)

    def both(order: Sequence[str], timeout: float) -> list[WholeRun]:
        scripts = [sides[side] for side in order]
        runs = whole_runs(scripts, plain.folders[0], timeout=timeout, turn=turn, seed=next(seeds))
        return [run.reading(result.objective.metric) for run in runs]

    return measured(both, result, seconds=seconds, clock=time.monotonic, rng=np.random.default_rng())


def measured(
    runs: Runs, result: Result, *, seconds: float, clock: Callable[[], float], rng: np.random.Generator
) -> Checked:
    """Findings over as many pairs as fit.

    Raises:
        UsageError: not one pair fits the time.
    """
    began, pairs = clock(), list[dict[str, WholeRun]]()
    while not pairs or clock() + (clock() - began) / len(pairs) <= began + seconds:
        order = [(UNTOUCHED, PATCHED)[place] for place in rng.permutation(2)]
        left = began + seconds - clock()
        try:
            # a pair that was seen to fit may take longer, but not for ever
            pair = dict(zip(order, runs(order, left if not pairs else max(left, seconds)), strict=True))
        except TrialFailed as failure:
            side = order[failure.side]
            if failure.kind == "timeout" and not pairs:
                raise UsageError(
                    f"{seconds:.0f} s do not hold a pair of whole runs: the {side} script was not at its end",
                    hint="give more with --budget",
                ) from failure
            return Checked(holds=False, kind="whole_runs", detail=f"the {side} script failed: {failure.reason}")
        pairs.append(pair)
    logs = [math.log(pair[UNTOUCHED].seconds / pair[PATCHED].seconds) for pair in pairs]
    turn = turn_of(memory_limit(result.environment))
    time_sliced = saw_one_machine((run for pair in pairs for run in pair.values()), turn)
    ratio = ratio_of_pairs(logs, result.noise.process_sd, time_sliced=time_sliced)
    each = ", ".join(f"{pair[UNTOUCHED].seconds:.1f} s to {pair[PATCHED].seconds:.1f} s" for pair in pairs)
    headline = result.speedup.headline
    # the speedup of as many steps: what whole runs, which all take the same steps, can show
    reported = None if headline is None else headline.step_ratio
    if headline is not None and headline.kind != "to_target":
        reported = headline.estimate or headline.step_ratio
    again = None if reported is None else judged(ratio, reported, margin=AGREEMENT)
    holds, details = ratio.high > 1.0, [f"whole runs, untouched to patched: {each}"]
    if again is not None:
        holds, details = again.holds, [again.detail, *details]
    worse = _worse(pairs, result)
    if worse is not None:
        holds, details = holds and worse[0], [*details, f"{result.objective.metric} {worse[1]}"]
    return Checked(
        holds=holds,
        detail="; ".join(details),
        headline_measured=ratio,
        headline_reported=reported,
        kind="whole_runs",
        seconds=clock() - began,
    )


def _worse(pairs: Sequence[dict[str, WholeRun]], result: Result) -> tuple[bool, str] | None:
    """Whether the metric at the end is no worse within the tolerance, and in words; None where none was printed."""
    ends = [(pair[UNTOUCHED].metric, pair[PATCHED].metric) for pair in pairs]
    both = [(old, new) for old, new in ends if old is not None and new is not None]
    if not both:
        return None
    old, new = (float(np.mean(side)) for side in zip(*both, strict=True))
    loss = (new - old) if result.objective.mode == "min" else (old - new)
    allowed = result.objective.tolerance * abs(old)
    fine = loss <= allowed
    verdict = "within the tolerance" if fine else f"worse than the tolerance of {allowed:.3g} allows"
    return fine, f"{old:.4g} to {new:.4g}, mean of {len(both)}: {verdict}"


FILE = "sessions.json"
SAME = timedelta(hours=1)
"""What begins within an hour of a session's end belongs to it: the machine is likely in the same state, so that it
says nothing of how sessions differ."""
_WHAT = {"to_target": "faster to target", "whole_runs": "faster in whole runs", "per_step": "faster a step"}


def with_sessions(run: Path, result: Result, found: Checked, *, began: str, ended: str) -> Checked:
    """The verification as a session of the run's account, which is written into its directory.

    Raises:
        DocumentError: the file that is there cannot be read.
    """
    path = run / FILE
    try:
        known = Sessions.model_validate_json(path.read_bytes()).sessions if path.is_file() else ()
    except ValidationError as error:
        hint = "move it away to begin a new account"
        raise DocumentError(f"{path} is not a document of sessions", detail=str(error), hint=hint) from error
    if not known and result.sites is None:  # a script's trainings were listened to: they are no whole runs
        headline = result.speedup.headline
        trained = headline is not None and headline.kind == "to_target" and headline.source == "trained"
        when = {"began": result.created, "ended": result.finished or result.created, "run": True}
        own = session_of(result, headline if trained else None, result.speedup.throughput, **when)
        known = (own,) if own is not None else ()
    new = session_of(result, found.headline_measured, found.measured, began=began, ended=ended)
    if new is None:
        return found.model_copy(update={"sessions": known})
    sessions = joined(known, new)
    write_whole(path, Sessions(sessions=sessions).model_dump_json(indent=1) + "\n")
    expected = prediction(sessions, result.noise.process_sd)
    said = "one session so far, so the intervals are those of this machine and this hour; verify on another day"
    if expected is not None:
        said = (
            f"{expected.n} sessions; the next one is expected to measure {expected.value:.2f}x {_WHAT[new.kind]} "
            f"(95 % prediction interval {expected.low:.2f} to {expected.high:.2f})"
        )
    changes = {"sessions": sessions, "next_session": expected, "detail": f"{found.detail}; {said}"}
    return found.model_copy(update=changes)


def session_of(
    result: Result, headline: Estimate | Headline | None, throughput: Estimate | None, **when: object
) -> Session | None:
    """A session of a run or of its verification; None where it measured nothing.

    Args:
        headline: the speedup of its trainings to the target; of a script, of its whole runs.
        throughput: that of steps, which counts where the run has no target.
        when: ``began`` and ``ended``; ``run`` where it is that of the run itself.
    """
    kind = "to_target" if result.objective.target is not None else "per_step"
    kind = kind if result.sites is None else "whole_runs"
    found = throughput if kind == "per_step" else headline
    return None if found is None else Session.model_validate({"kind": kind, "value": found.value, "n": found.n, **when})


def joined(known: Sequence[Session], new: Session) -> tuple[Session, ...]:
    """With one more session, or with its repeats in the last one where it began soon after that."""
    last = known[-1] if known else None
    time = datetime.fromisoformat
    if last is None or last.kind != new.kind or time(new.began) - time(last.ended) > SAME:
        return (*known, new)
    n = last.n + new.n
    value = math.exp((last.n * math.log(last.value) + new.n * math.log(new.value)) / n)
    return (*known[:-1], last.model_copy(update={"ended": new.ended, "value": value, "n": n}))


def prediction(sessions: Sequence[Session], process_sd: float | None) -> Estimate | None:
    """The speedup that the next session is expected to measure; None with fewer than two sessions of one kind."""
    alike = [session for session in sessions if session.kind == sessions[-1].kind]
    if len(alike) < 2:
        return None
    return next_session([math.log(session.value) for session in alike], process_sd)
