"""Recollection: the plan that an earlier run found for this workload on this device is screened first."""

from __future__ import annotations

from datetime import UTC, datetime
from math import log
from pathlib import Path

from autoopt.records import Plan, Speedup
from autoopt.search.candidate import Candidate
from autoopt.search.compare.sequential_test import PLAN_DOF
from autoopt.search.compare.statistics import BetweenProcess
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan, unwanted
from autoopt.search.run_context import RunContext
from autoopt.search.screening import Screening
from autoopt.search.state import SearchState
from autoopt.storage.history import KnownNoise, Remembered

AS_GOOD = 0.7
"""A remembered plan whose look shows so much of its log gain again goes to its confirmation at once."""


def recall(context: RunContext, state: SearchState) -> None:
    """Puts what is remembered of this workload into the state; durably, so that a resumed run remembers the same."""
    history = context.history
    if history is not None:
        key = _key(state)
        state.remembered = context.run.step(
            "history", {"key": key}, lambda: history.recall(key, Remembered), Remembered
        )
        device = _device(state)
        state.known_noise = context.run.step(
            "history", {"noise": device}, lambda: history.recall(device, KnownNoise), KnownNoise
        )


def known_noise(state: SearchState) -> BetweenProcess | None:
    """The variance between processes of an earlier run on this device, as a first guess; None where there is none.

    It is worth no more than two pairs, as what other plans show is: a placebo on a machine that has become restless
    must not pass for a gain.
    """
    known = state.known_noise
    if known.process_sd is None or known.pairs is None:
        return None
    return BetweenProcess(known.process_sd, min(known.pairs, PLAN_DOF))


def remember(context: RunContext, state: SearchState, best: Plan, speedup: Speedup) -> None:
    """Writes down the best plan of a run that was verified, and the noise of the device."""
    noise, history = state.noise, context.history
    if history is not None and noise.process_sd is not None:
        history.remember(_device(state), KnownNoise(process_sd=noise.process_sd, pairs=noise.process_dof))
    gain = speedup.time_to_target or speedup.throughput
    if history is not None and state.found and speedup.end_to_end_verified and gain is not None:
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        history.remember(_key(state), Remembered(plan=best, speedup=gain.value, finished=finished))


def confirmed(context: RunContext, state: SearchState, screening: Screening) -> bool:
    """Screens the remembered plan. True if it does about as well as before: then it is confirmed first."""
    candidate, known = _candidate(context, state), state.remembered.speedup
    if candidate is None or known is None or state.rounds[1:] or screening.over:
        return False
    seen = screening.screen(candidate)
    return seen is not None and seen.plain and seen.gain >= AS_GOOD * log(known)


def _candidate(context: RunContext, state: SearchState) -> Candidate | None:
    """The remembered plan on the incumbent; None where there is none, or a part of it cannot be."""
    registry, remembered = context.runner.registry, state.remembered.plan
    if remembered.processes > state.processes:
        return None  # of more processes than were offered now
    changes = tuple(change for change in remembered.changes if change not in state.incumbent.changes)
    try:
        case = state.case(registry, None, None)
        for change in changes:
            if change.strategy not in registry:
                return None
            strategy = registry[change.strategy]
            if unwanted(strategy, context.choice) or not strategy.applies(case):
                return None
            if strategy.risk.trains_otherwise:
                return None  # confirmed by trainings, not by looks
        plan = candidate_plan(registry, state.incumbent, changes)
        if not changes or registry.fold(plan) == registry.fold(state.incumbent) or not state.first_time(changes):
            return None
    except PLUGIN_ERRORS:
        return None
    return Candidate(registry[changes[0].strategy], changes[0], changes[1:], plan, None, combined=True)


def _key(state: SearchState) -> str:
    """The workload where it stands, and the device."""
    return f"{state.facts.spec} in {Path.cwd()} on {_device(state)}"


def _device(state: SearchState) -> str:
    return state.environment.device_name or state.environment.device
