"""Slow trainings as they are reported: autoopt's findings on each, and what they reach.

    python -m benchmarks.reports --seconds 280     # measures what is missing or was disturbed; call again to go on
    python -m benchmarks.reports --asks 1          # so many scripts of `asked.py`, five minutes each; --only names one

Each kind of report is a small workload. Its strategy is asked whether it applies and what it expects, and its first
setting is measured beside the baseline in pairs of live processes. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from autoopt.options import Options
from autoopt.records import Change, Environment, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.search.baseline import objective_of
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.search.planner import candidate_plan
from autoopt.search.trial_runner import TrialRunner
from autoopt.strategy import Case
from benchmarks.documents import RESULTS, load, parser_of, record
from benchmarks.reports.asked import ASKS, BUDGET
from benchmarks.reports.asked import answer as answer_to
from benchmarks.reports.cases import REPORTS, Report
from benchmarks.runners import runner_of

FILE = RESULTS / "reports.json"
RULE = Rule(max_seconds=16.0, min_pairs=2, max_pairs=3, until_error=0.05, warm_up_seconds=4.0)


def answer(report: Report) -> dict[str, Any]:
    """The strategy's findings on the workload, and what its first setting reaches."""
    with runner_of(report.spec) as runner:
        case = case_of(runner, report)
        assert report.strategy is not None
        strategy = runner.registry[report.strategy]
        applies = strategy.applies(case)
        if not applies:
            return {"refused": applies.reason}
        setting = dict(next(iter(strategy.settings(case))))
        companions = strategy.companions(case, setting)
        changes = (Change(strategy=strategy.name, setting=setting), *companions)
        plan = candidate_plan(runner.registry, Plan(), changes)
        found = compare(runner.start, Plan(), plan, RULE, clock=time.monotonic)
    estimate = found.estimate.model_dump() if found.estimate is not None else None
    said = [change.model_dump() for change in changes]
    return {"changes": said, "throughput": estimate, "inspected": case.inspected(strategy.name)}


def case_of(runner: TrialRunner, report: Report) -> Case:
    """The workload as a strategy is told of it, without a pipeline: what it found on real samples decides."""
    with runner.trial(Plan(), "describe") as process:
        facts = WorkloadFacts.model_validate(process.call("autoopt.benchmark.tasks:facts", timeout=120.0))
        machine = Environment.model_validate(process.call("autoopt.benchmark.tasks:environment", timeout=60.0))
        inspected = process.call("autoopt.benchmark.tasks:inspect", timeout=120.0, strategies=[report.strategy])
    known = facts.model_copy(update={"inspected": inspected})
    return Case(workload=known, environment=machine, objective=objective_of(known, Options()), planned_steps=100_000)


def measure(seconds: float) -> None:
    """Measures what is missing, and what was measured on a busy machine, until the time is up."""
    end = time.monotonic() + seconds
    answers = load(FILE).get("reports", {})
    for report in REPORTS:
        if report.build is None or report.strategy is None or settled(answers.get(report.build)):
            continue
        if time.monotonic() > end:
            break
        found = answer(report)
        record(FILE, found, "reports", report.build)
        print(report.build, found.get("throughput") or found.get("refused"), flush=True)


def settled(found: dict[str, Any] | None) -> bool:
    """Whether a case was measured on a machine that was not busy; one that was not is measured again."""
    return found is not None and found["environment"]["load"][0] <= found["environment"]["cores"]


def main(words: list[str]) -> None:
    parser = parser_of("benchmarks.reports", __doc__)
    parser.add_argument("--seconds", type=float, default=280.0, help="begin no report after so long")
    parser.add_argument("--asks", type=int, metavar="COUNT", help="answer so many scripts in place of reports")
    parser.add_argument("--only", choices=[ask.script for ask in ASKS], help="answer this script again")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS", help="of each command")
    chosen = parser.parse_args(words)
    if chosen.asks is None and chosen.only is None:
        measure(chosen.seconds)
    else:
        ask_some(chosen.asks or 1, chosen.only, chosen.budget)


def ask_some(count: int, only: str | None, budget: float) -> None:
    """Answers so many scripts that have no answer from a quiet machine, or the one that is named."""
    answers = load(FILE).get("asks", {})
    waiting = [ask for ask in ASKS if (ask.script == only if only else not settled(answers.get(ask.script)))]
    for ask in waiting[:count]:
        found = {**answer_to(ask, budget), "budget_seconds": budget}
        record(FILE, found, "asks", ask.script)
        print(ask.script, found, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
