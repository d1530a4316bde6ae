"""result.json from what the loop found."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import autoopt
from autoopt.options import DEFAULT_RISKS, Options
from autoopt.options.parsers import format_duration
from autoopt.records import (
    Advice,
    BreakEven,
    Configuration,
    Deeper,
    JsonDict,
    Reproduce,
    Result,
    Round,
    Snippets,
    WorkloadSummary,
)
from autoopt.script.applicable import advice_of
from autoopt.script.command import Build, Script
from autoopt.search.outcome import Outcome, decided, more_budget, spending
from autoopt.simplify.costly import costly_lines
from autoopt.storage.journal import now
from autoopt.storage.run import Took


def result_of(
    workload: Build | Script,
    options: Options,
    outcome: Outcome,
    *,
    created: str,
    seconds: float,
    directory: Path,
    snippets: tuple[Snippets, ...] = (),
    took: Sequence[Took] = (),
) -> Result:
    """The document of a run that came to an end, by itself or by interruption."""
    state = outcome.state
    facts = state.facts.model_dump()
    # the most expensive places of the run stand before all else that only the user can change
    costly: tuple[Advice, ...] = ()
    if state.rounds:  # the user's functions are those of the first round: no change is one of them
        last = state.rounds[-1].model_copy(update={"own": state.rounds[0].own})
        costly = costly_lines(last, state.facts, state.sites, outcome.best.plan)
    left_out = (outcome.best.plan.setting("forced_calls") or {}).get("calls", ())
    of_script = advice_of(state.sites, left_out) if state.sites else ()
    laws = state.model_scaling.missing if state.model_scaling is not None else {}
    unfitted = (f"model_scaling.{name}: {why}" for name, why in laws.items())
    return Result(
        autoopt_version=autoopt.__version__,
        created=created,
        finished=now(),
        seconds=seconds,
        budget_seconds=options.budget_seconds,
        workload=WorkloadSummary.model_validate({**facts, "spec": workload.spec}),
        environment=state.environment,
        objective=state.objective,
        noise=state.noise_throughout,
        baseline=outcome.baseline,
        best=outcome.best,
        speedup=outcome.speedup,
        quality=outcome.quality,
        break_even=break_even(seconds, outcome.baseline, outcome.best, state.planned_steps),
        rounds=tuple(near(round_, Path.cwd()) for round_ in state.rounds),
        trials=state.all_trials(),
        ablation=tuple(outcome.ablation),
        decided=decided(state),
        stop=outcome.stop,
        sites=state.sites,
        scaling=state.scaling,
        sharing=tuple(state.sharing.values()),
        spent=spending(took, seconds),
        more_budget=more_budget(state),
        tuning=state.tuning,
        model_scaling=state.model_scaling,
        advice=tuple(located(item, Path.cwd()) for item in (*costly, *state.advice, *of_script)),
        warnings=tuple(state.warnings),
        notes=tuple(state.notes),
        snippets=snippets,
        reproduce=Reproduce(
            command=command(workload, options),
            seed=options.seed,
            strategies=options.strategies,
            run_directory=str(directory),
        ),
        not_measured=(
            *state.missing,
            *unfitted,
            *_missing(outcome.baseline, "baseline"),
            *(_missing(outcome.best, "best") if outcome.best.plan != outcome.baseline.plan else []),
        ),
    )


def break_even(seconds: float, baseline: Configuration, best: Configuration, planned_steps: int | None) -> BreakEven:
    """How many planned runs pay for the search; None where nothing is saved or it is not known."""
    saved = 0.0  # seconds of one run to the target, else of its planned length
    before, after = baseline.time_to_target_seconds, best.time_to_target_seconds
    if before is not None and after is not None:
        saved = before.value - after.value
    elif planned_steps and baseline.step_seconds and best.step_seconds:
        fixed = (baseline.fixed_seconds or 0.0) - (best.fixed_seconds or 0.0)
        saved = fixed + planned_steps * (baseline.step_seconds.p50 - best.step_seconds.p50)
    gains = saved > 0 and best.plan != baseline.plan
    return BreakEven(search_seconds=seconds, runs=seconds / saved if gains else None)


def command(workload: Build | Script, options: Options) -> str:
    """The command line that asks for the same."""
    words = [f"--budget {format_duration(options.budget_seconds)}"]
    default = Options()
    for name, value in asdict(options).items():
        if name in ("budget_seconds", "json", "quiet", "open", "out") or value == getattr(default, name):
            continue
        if name == "allow":
            value = tuple(risk for risk in value if risk not in DEFAULT_RISKS)
        if name in ("tolerance", "min_gain"):
            value = f"{100 * value:g}%"
        if name == "memory_limit":
            value = f"{value}B"
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        if text:
            words.append(f"--{name.replace('_', '-')} {text if name != 'metric' else shlex.quote(text)}")
    return f"autoopt optimize {workload.asked(words)}"


def _missing(configuration: Configuration, name: str) -> list[str]:
    """Fields that no trial could fill."""
    fields: JsonDict = configuration.model_dump()
    return [f"{name}.{field}" for field, value in fields.items() if value is None]


Located = TypeVar("Located", Advice, Deeper)


def located(item: Located, folder: Path) -> Located:
    """The same with its file relative to the folder in which the run was started, where it lies below it."""
    if item.file is None or not Path(item.file).is_relative_to(folder):
        return item
    return item.model_copy(update={"file": str(Path(item.file).relative_to(folder))})


def near(round_: Round, folder: Path) -> Round:
    """The same for the chain that opens a round's bottleneck, and for the user's own functions."""
    chains = {name: tuple(located(link, folder) for link in getattr(round_, name)) for name in ("deeper", "own")}
    return round_.model_copy(update=chains)
