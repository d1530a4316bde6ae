"""The first process of a run: a script is watched in it, and, where that changes nothing, asked for what it is."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace

from autoopt.errors import TrialFailed
from autoopt.events import FirstSteps, Opportunities
from autoopt.records import Sites
from autoopt.registry import Registry
from autoopt.search.planner import Choice, build_queue
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.stage_profile import Description, Process, describe, described_by
from autoopt.strategy import Case, Risk, Strategy

_STAGES = {
    "data": {"storage", "preparation", "collate", "pin"},
    "epoch": {"storage", "preparation", "collate"},
    "copy": {"pin", "copy"},
    "other": {"host"},
    "forward": {"forward"},
    "backward": {"backward"},
    "optimizer": {"optimizer"},
}
"""Stages as strategies name them, by what a script's first steps distinguish."""


class FirstProcess:
    """Findings of the first process of a workload.

    Args:
        runner: starts it.
        lean: the workload does not fit into memory: it is a script, which trains in little memory while it is watched.
    """

    def __init__(self, runner: TrialRunner, *, lean: bool = False) -> None:
        self._runner, self._lean = runner, lean
        self._found: Description | None = None

    def sites(self) -> Sites | None:
        """The sites of a script; None where the workload is not one.

        Raises:
            TrialFailed: it does not train.
        """
        if not self._lean:
            return self._runner.watched(self._ask)
        with self._runner.leanly():
            sites = self._runner.watched(self._ask)
        # its steps take as long as the copies of what they keep
        return None if sites is None else sites.model_copy(update={"step_seconds": None, "shares": {}})

    def description(self) -> Description:
        """Facts and peaks: of the process that was watched, else of one that is started for them.

        Raises:
            TrialFailed: the baseline cannot be built or set up.
        """
        with self._runner.leanly() if self._lean else nullcontext():
            found = self._found or describe(self._runner)
        sites = self._runner.watched()
        facts = found.facts.model_copy(update={"run": sites.run if sites is not None else None})
        return found.model_copy(update={"facts": facts})

    def _ask(self, process: Process, sites: Sites) -> None:
        # the first step was the same as in a process that knows the sites: that of a single optimizer
        evaluated = any(site.options.get("mode") == "eval" for site in sites.of("model"))
        if len(set(sites.period)) == 1 and not evaluated:
            with suppress(TrialFailed):  # what is wrong shows in a process that nobody watches
                self._found = described_by(process)


def first_steps(sites: Sites, at: float) -> FirstSteps | None:
    """Where the time of a script's first steps went; None where they were not timed.

    Args:
        at: seconds of the run.
    """
    if sites.step_seconds is None:
        return None
    return FirstSteps(at=at, steps=sites.steps, step_seconds=sites.step_seconds, shares=sites.shares)


def opportunities(registry: Registry, case: Case, choice: Choice, least: float) -> Opportunities:
    """Strategies that may shorten a step of a script, by what its first steps leave them to gain at most.

    Args:
        registry: of all strategies.
        case: of the script as it is, before anything was measured.
        choice: of the user among them.
        least: a speedup; what can bring no more than that is left out.
    """
    shares = case.sites.shares if case.sites is not None else {}

    def bound(strategy: Strategy) -> float:
        # what lies between the stages is most of all the script's own lines: few of them are an operator's issuing
        own = set(strategy.stages) - ({"host"} if len(strategy.stages) > 1 else set())
        share = sum(share for stage, share in shares.items() if _STAGES.get(stage, set()) & own)
        return 1 / max(1 - share, 1e-3)

    def worth(case: Case) -> list[Strategy]:
        proposed = [proposal.strategy for proposal in build_queue(registry, case, choice, least).proposals]
        return [each for each in proposed if each.risk in (Risk.EXACT, Risk.NUMERIC) and bound(each) >= least]

    ranked: dict[float, list[str]] = {}
    known = worth(case)
    for strategy in known:
        ranked.setdefault(bound(strategy), []).append(strategy.name)
    # the case in which every strategy that looks into the model or its data has found there what it looks for
    found = {name: each.example.inspected for name, each in registry.items() if each.example is not None}
    seen = replace(case, workload=case.workload.model_copy(update={"inspected": found}))
    unknown = [strategy for strategy in worth(seen) if strategy not in known]
    return Opportunities(
        at_most=tuple((value, tuple(ranked[value])) for value in sorted(ranked, reverse=True)),
        unknown=tuple(strategy.name for strategy in sorted(unknown, key=bound, reverse=True)),
    )
