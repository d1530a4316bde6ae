"""``autoopt verify``: the exported script against the baseline once more, beside what the run reported."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from autoopt.errors import AutooptError, EnvironmentLacks, UsageError
from autoopt.export.checked import Checked, compare_runs, judged, throughput_of
from autoopt.export.headline import Headline, train_again
from autoopt.export.sessions import added, measured_session, prediction, told
from autoopt.export.verify_script import verify_script
from autoopt.options import Options
from autoopt.records import Plan, Result
from autoopt.records.reading import read_result
from autoopt.registry import load_strategies
from autoopt.search.compare.arm import Arm, TrialArm
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import TrialSpec

DEFAULT_SECONDS = 180.0


class _ScriptArm(TrialArm):
    """An arm that trains with the exported script."""

    def __init__(self, process: Any, plan: Plan, script: str) -> None:
        super().__init__(_Redirected(process, script), plan)


class _Redirected:
    """The trial's process, its training tasks answered by the script."""

    def __init__(self, process: Any, script: str) -> None:
        self._process, self._script = process, script
        self.can_freeze = getattr(process, "can_freeze", True)

    def call(self, task: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        name = task.rpartition(":")[2]
        if name in ("warm_up", "run_block", "train_leg"):
            task, arguments = f"autoopt.export.script_trial:{name}", {"script": self._script, **arguments}
        return self._process.call(task, timeout=timeout, **arguments)

    def freeze(self) -> None:
        self._process.freeze()

    def thaw(self) -> None:
        self._process.thaw()

    def close(self) -> None:
        self._process.close()


def verify_run(
    run: Path,
    result: Result,
    options: Options,
    *,
    seconds: float | None = None,
    against: Path | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Checked:
    """Measures a run's script or patch again, or compares the run with another.

    Args:
        run: the run directory.
        result: its document.
        options: ``budget_seconds`` limits it; the three minutes of ``DEFAULT_SECONDS`` where it is longer.
        seconds: what was asked for, in place of that.
        against: another run; then nothing is measured.
        now: the time of day, in UTC.

    Raises:
        UsageError: the directory has no script or patch, the plan is one for several processes, or there is not the
            time for one pair of whole runs.
        EnvironmentLacks: another device or torch than the run was measured with.
    """
    if against is not None:
        return compare_runs(result, read_result(against), str(against))
    limit = seconds if seconds is not None else min(options.budget_seconds, DEFAULT_SECONDS)
    began = now().isoformat(timespec="seconds")
    if result.sites is not None:
        found = verify_script(run, result, seconds=limit)
        return with_sessions(run, result, found, began=began, ended=now().isoformat(timespec="seconds"))
    if result.best.plan.processes > 1:
        raise UsageError(
            f"the plan trains in {result.best.plan.processes} processes, which its script leaves to autoopt train",
            hint=f"autoopt compare {result.workload.spec} --baseline BASE.json --candidate {Path(run) / 'plan.json'}",
        )
    script = (Path(run) if Path(run).is_dir() else Path(run).parent).resolve() / "optimized_train.py"
    if not script.is_file():
        raise UsageError(f"{run} holds no optimized_train.py", hint="name the directory of a finished run")
    _same_torch(result)
    found = verify(result, script, seconds=limit, logs=script.parent / "logs")
    return with_sessions(script.parent, result, found, began=began, ended=now().isoformat(timespec="seconds"))


def with_sessions(run: Path, result: Result, found: Checked, *, began: str, ended: str) -> Checked:
    """The verification as a session of the run's account, which is written into its directory."""
    new = measured_session(result, found.headline_measured, found.measured, began=began, ended=ended)
    sessions, sd = added(run, result, new), result.noise.process_sd
    if new is None or not sessions:
        return found.model_copy(update={"sessions": sessions})
    detail = f"{found.detail}; {told(sessions, sd)}"
    return found.model_copy(update={"sessions": sessions, "next_session": prediction(sessions, sd), "detail": detail})


def verify(
    result: Result, script: Path, *, seconds: float, logs: Path, clock: Callable[[], float] = time.monotonic
) -> Checked:
    """The script against the baseline: trained to the target in turns, then paired as in every comparison.

    What the first screen claims is the time to the target, so that is measured where it fits half of the time.

    Args:
        seconds: wall-clock, starts of processes included.
        logs: where the trials' own output goes.
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
    began = clock()
    with Launcher() as launcher:
        runner = TrialRunner(launcher, base, registry, logs)

        def start(plan: Plan, label: str) -> Arm:
            process = runner.launch(plan, f"verify-{label}")
            return TrialArm(process, plan) if label == "incumbent" else _ScriptArm(process, plan, str(script))

        def scripted(process: Any) -> _Redirected:
            return _Redirected(process, str(script))

        headline = train_again(runner, scripted, result, until=began + seconds / 2, clock=clock)
        if headline.failed:
            return Checked(holds=False, detail=headline.detail, reported=throughput_of(result))
        left = seconds - (clock() - began)
        found = compare(
            start,
            result.baseline.plan,
            result.best.plan,
            Rule(max_seconds=left, until_error=0.03, warm_up_seconds=min(60.0, left / 4)),
            clock=clock,
            noise=result.noise,
            rng=np.random.default_rng(result.reproduce.seed),
        )
    if found.failure is not None:
        return Checked(holds=False, detail=f"the measurement failed: {found.reason}", reported=throughput_of(result))
    if found.estimate is None:
        raise AutooptError(f"nothing could be measured in {seconds:.0f} s", hint="give more time: --budget 10m")
    throughput = judged(found.estimate, throughput_of(result), clock() - began)
    return with_headline(throughput, headline, result)


def with_headline(throughput: Checked, headline: Headline, result: Result) -> Checked:
    """Both figures: what the first screen claims, and the throughput. Each must hold."""
    detail = f"throughput {throughput.detail}"
    reported = result.speedup.time_to_target
    if headline.measured is None or reported is None:
        return throughput.model_copy(update={"detail": "; ".join(part for part in (detail, headline.detail) if part)})
    again = judged(headline.measured, reported)
    return throughput.model_copy(
        update={
            "holds": throughput.holds and again.holds,
            "detail": f"time to target {again.detail} ({headline.detail}); {detail}",
            "headline_measured": headline.measured,
            "headline_reported": reported,
        }
    )


def _same_torch(result: Result) -> None:
    import torch

    if result.environment.torch not in (None, torch.__version__):
        raise EnvironmentLacks(
            f"the run was measured with torch {result.environment.torch}, this is {torch.__version__}",
            hint="a speedup holds for the versions it was measured with: optimize again",
        )
