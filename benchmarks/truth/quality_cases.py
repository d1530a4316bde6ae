"""What the quality gate makes of changes whose truth is known, and what its price of noise is worth.

    python -m benchmarks.truth.quality_cases                    # broken and honest changes, and the price
    python -m benchmarks.truth.quality_cases --only broken      # or honest, price
    python -m benchmarks.truth.quality_cases --case bf16_gan    # one of them, printed alone

Each change is judged as a search judges it (``Gate.quality``); what its probes pass is trained from two seeds beside
the baseline and judged as a verification does. All in one process, so that a case takes seconds. Added to
``benchmarks/results/quality.json``; the first run stays there beside the latest.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.tasks import probe, ready
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Change, Environment, JsonDict, Objective, Plan, Quality
from autoopt.records.messages import Ready, TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry, Source
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.fidelity import gradient_fidelity
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.gathering import Gate, Probes
from autoopt.search.accept.trainings import Trainings
from autoopt.search.state import SearchState
from autoopt.workload import Workload
from benchmarks.documents import RESULTS, environment, load, parser_of, save
from benchmarks.truth import quality_changes, quality_nets
from benchmarks.truth.quality_changes import BROKEN, HONEST, noisy

SEEDS = 2
BASELINE_SEEDS = 3
NETS = str(Path(quality_nets.__file__))


class Here:
    """A runner whose trials are made in this process, one after the other; each durable step is made once."""

    def __init__(self, build: str, registry: Registry) -> None:
        self._build, self._registry, self.step_seconds = build, registry, 0.0

    def _live(self, plan: Plan, seed: int = 0) -> TrialContext:
        spec = TrialSpec(workload=f"{NETS}:{self._build}", plan=plan, device="cpu", seed=seed)
        return TrialContext(spec, self._registry)

    def _in_trial(self, plan: Plan, seed: int, task: Callable[[TrialContext], Any]) -> Any:
        threads, live = torch.get_num_threads(), self._live(plan, seed)
        try:
            return task(live)
        finally:
            live.close()
            torch.set_num_threads(threads)

    def ask(self, plan: Plan, task: str, *, timeout: float, label: str, **arguments: Any) -> JsonDict:
        found: JsonDict = self._in_trial(plan, 0, lambda live: probe(live, **arguments))
        return found

    def ready(self) -> Ready:
        return Ready.model_validate(self._in_trial(Plan(), 0, ready))

    def train(self, plan: Plan, *, seed: int, keep: str = "", **_: Any) -> TrainingRun:
        def run(live: TrialContext) -> TrainingRun:
            under_way = RunUnderWay(live, max_seconds=120.0, keep=keep)
            under_way.go_on()
            return under_way.document()

        began = time.perf_counter()
        found: TrainingRun = self._in_trial(plan, seed, run)
        self.step_seconds = (time.perf_counter() - began) / max(found.steps, 1)
        return found

    def step(self, kind: str, key: JsonDict, measure: Callable[[], Any], model: Any) -> Any:
        return measure()


class Judged:
    """The gate of one workload, with its baseline trained.

    Args:
        build: of the workload, by name.
        changes: that may be judged.
        folder: for weights and probes.
    """

    def __init__(self, build: str, changes: tuple[quality_changes.Change, ...], folder: Path) -> None:
        registry = Registry([Source(change, "benchmark") for change in changes])
        here: Any = Here(build, registry)
        facts = self.facts = here.ready().facts
        objective = Objective(
            metric=facts.metric,
            mode=facts.mode,
            target=None,
            target_source="baseline",
            tolerance=0.005,
            min_gain=0.01,
        )
        self.trainings = Trainings(here, here)
        probes = Probes(here, here, folder / "probes")
        self.gate = Gate(self.trainings, registry, seed=0, now=time.monotonic, probes=probes)
        self.gate.state = SearchState(facts, Environment(python="", device="cpu", cores=1, threads=1), objective)
        for seed in range(BASELINE_SEEDS):
            keep = "" if seed else str(folder / "weights")
            run = self.trainings.get(Plan(), seed, purpose=f"baseline seed {seed}", keep=keep)
            probes.weights = probes.weights or run.kept
        probes.step_seconds = here.step_seconds

    def level(self, name: str) -> tuple[Plan, Quality]:
        plan = Plan(changes=(Change(strategy=name),))
        found = self.gate.quality(plan, Plan())
        assert found is not None
        return plan, found

    def trained(self, plan: Plan, level: Quality) -> Quality:
        """The verification's judgement of trainings from two seeds, with the level that probes told."""
        for seed in range(SEEDS):
            self.trainings.get(plan, seed, purpose=f"plan seed {seed}")
        evidence = Evidence(
            objective=self.gate.state.objective,
            baseline_runs=self.trainings.of(Plan()),
            candidate_runs=self.trainings.of(plan),
            level=level,
            deterministic=self.facts.dataset.deterministic,
        )
        return judge_runs(evidence)


def judged(
    cases: tuple[quality_changes.Change, ...],
    progress: Callable[[str], None],
    save: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """A row of each case: what probes told, and trainings where these passed it; those so far are saved after each."""
    rows = []
    for build in dict.fromkeys(case.build.__name__ for case in cases):
        mine = tuple(case for case in cases if case.build.__name__ == build)
        with tempfile.TemporaryDirectory() as folder:
            one = Judged(build, mine, Path(folder))
            for case in mine:
                began = time.perf_counter()
                plan, level = one.level(case.name)
                seconds = time.perf_counter() - began
                after = one.trained(plan, level) if level.passed is not False else None
                row = {
                    "case": case.name,
                    "workload": build,
                    "risk": case.risk.value,
                    "level": level.level,
                    "passed": level.passed,
                    "detail": level.detail,
                    "gradient_error": level.gradient_error,
                    "bias_bound": level.bias_bound,
                    "batches": level.batches,
                    "step_penalty": level.step_penalty.value if level.step_penalty else None,
                    "rests_on": level.rests_on,
                    "would_miss": level.would_miss,
                    "seconds": round(seconds, 2),
                    "trained_level": after.level if after else None,
                    "trained_passed": after.passed if after else None,
                    "trained_detail": after.detail if after else "",
                }
                rows.append(row)
                save(rows)
                progress(f"{case.name}: {level.level or 'lost'} ({seconds:.1f} s): {level.detail}")
                if after is not None:
                    progress(f"    trained: {after.level or 'lost'}, {after.passed}: {after.detail}")
    return rows


def kept(row: dict[str, Any]) -> bool:
    """Whether probes and trainings together would keep it as identical or equivalent."""
    return row["level"] in ("identical", "equivalent") and row["passed"] is True and row["trained_passed"] is True


PRICED = (
    (quality_nets.tabular_16, 0.3),
    (quality_nets.tabular_16, 0.8),
    (quality_nets.tabular_4, 0.15),
    (quality_nets.tabular_4, 0.3),
    (quality_nets.tabular_4, 0.5),
)
"""Workloads, and noise over the length of a gradient."""
PRICE_SEEDS = 8
PRICE_STEPS = 500
AT_LOSS = 0.5
"""Of the fall of the baseline's loss: steps are counted to where the mean over seeds has come so far and farther."""


def price(progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Extra steps that noise of a known size costs: as predicted from its probes, and as measured over eight seeds."""
    plain = {build: _losses(build, 0.0) for build, _ in PRICED}
    rows = []
    for build, size in PRICED:
        case = quality_changes.Change("noisy", build, noisy(size), quality_changes.NUMERIC)
        with tempfile.TemporaryDirectory() as folder:
            one = Judged(build.__name__, (case,), Path(folder))
            before, after = one.gate.probes.pair(Plan(), Plan(changes=(Change(strategy="noisy"),)), one.facts)  # type: ignore[union-attr]
        pairs = zip(before.arrays.gradients, after.arrays.gradients, strict=True)
        found = [gradient_fidelity(before.arrays, left, right, quality_nets.STEPS) for left, right in pairs]
        worst = max(found, key=lambda point: point.penalty.value)
        ratio, low, high = _steps_ratio(plain[build], _losses(build, size))
        rows.append(
            {
                "workload": build.__name__,
                "noise": size,
                "gradient_error": worst.error,
                "predicted": worst.penalty.model_dump(),
                "measured": {"value": ratio, "low": low, "high": high, "seeds": PRICE_SEEDS},
            }
        )
        text = f"{worst.penalty.value:.3f} [{worst.penalty.low:.3f}, {worst.penalty.high:.3f}]"
        progress(
            f"{build.__name__}, error {worst.error:.2f}: predicted {text}, measured {ratio:.3f} [{low:.3f}, {high:.3f}]"
        )
    return rows


def _losses(build: Callable[[], Workload], size: float) -> Any:
    """Losses of trainings from eight seeds, (seeds, steps)."""
    case = quality_changes.Change("noisy", build, noisy(size), quality_changes.NUMERIC)
    here = Here(build.__name__, Registry([Source(case, "benchmark")]))
    plan = Plan(changes=(Change(strategy="noisy"),)) if size else Plan()

    def run(live: TrialContext) -> list[float]:
        return [float(live.training.step(live.training.next())) for _ in range(PRICE_STEPS)]

    return np.array([here._in_trial(plan, seed, run) for seed in range(PRICE_SEEDS)])


def _steps_ratio(before: Any, after: Any) -> tuple[float, float, float]:
    """Steps of the candidate over the baseline's to the same losses, with a bootstrap over seeds (95 %)."""
    draws = np.random.default_rng(0).integers(len(before), size=(1000, len(before)))
    found = [_ratio(before[one].mean(axis=0), after[one].mean(axis=0)) for one in draws]
    low, high = np.quantile(found, [0.025, 0.975])
    return _ratio(before.mean(axis=0), after.mean(axis=0)), float(low), float(high)


def _ratio(before: Any, after: Any) -> float:
    """The mean, over losses that both come to, of the ratio of steps at which the smoothed loss is there."""
    window = np.ones(20) / 20
    one, other = (np.minimum.accumulate(np.convolve(path, window, "valid")) for path in (before, after))
    start, end = one[0], max(one[-1], other[-1])
    goals = np.linspace(start - AT_LOSS * (start - end), end, 20)
    at = [[int(np.argmax(path <= goal)) + 10 for goal in goals] for path in (one, other)]
    return float(np.exp(np.mean(np.log(at[1]) - np.log(at[0]))))


def main() -> int:
    parser = parser_of("benchmarks.truth.quality_cases", __doc__, RESULTS / "quality.json")
    parser.add_argument("--only", choices=("broken", "honest", "price"), help="a part of it")
    parser.add_argument("--case", default="", help="comma-separated names; nothing is saved")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case:
        judged(tuple(c for c in (*BROKEN, *HONEST) if c.name in options.case.split(",")), print)
        return 0
    document, passed = load(options.out), True
    for part, cases in (("broken", BROKEN), ("honest", HONEST)):
        if options.only in (None, part):
            known, about = dict(document.get(part, {})), environment()

            def keep(rows: list[dict[str, Any]], part: str = part, known: Any = known, about: Any = about) -> None:
                found = {"kept": sum(map(kept, rows)), "of": len(rows), "cases": rows, "environment": about}
                document[part] = {**known, "latest" if "first" in known else "first": found}
                save(options.out, document)

            rows = judged(cases, lambda text: print(text, flush=True), keep)
            count = sum(map(kept, rows))
            passed &= count == 0 if part == "broken" else count >= 0.85 * len(rows)
            print(f"{part}: {count} of {len(rows)} kept as identical or equivalent")
    if options.only in (None, "price"):
        known = document.setdefault("price", {})
        pairs = price(lambda text: print(text, flush=True))
        known["latest" if "first" in known else "first"] = {"pairs": pairs, "environment": environment()}
        save(options.out, document)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
