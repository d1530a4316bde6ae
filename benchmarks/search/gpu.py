"""The six cases of ``benchmarks.gpu`` on a simulated device, searched for 8 and for 30 minutes.

``python -m benchmarks.search.gpu`` runs the whole loop; only its trials are simulated. A process takes 5 to 14 s from
its start to its first step, as on a machine with a device; a compilation takes up to 70 s more at its first start, and
a quarter of that later. Gains are assumed, in the region of published ones: none is a device's.

Each case is searched with the noise of a shared machine with two cores, as measured, and with that of a quiet one:
blocks scatter by 2 % and processes by 1 %.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

from autoopt.records import CurvePoint, JsonDict, Plan
from autoopt.records.messages import TrainingRun
from autoopt.testing.fakes import NoiseModel
from benchmarks.documents import RESULTS, parser_of, save
from benchmarks.search import minutes  # makes the tests' folder importable
from benchmarks.search.cases import SimulatedCase
from simulated import World, training_run

FILE = RESULTS / "simulated-gpu.json"
BUDGETS = (480.0, 1800.0)
PLAIN = {"pin_memory": 1.01, "device_prefetch": 1.01, "cudnn_benchmark": 1.0}
GRAPH = frozenset({"amp", "matmul_precision", "channels_last", "compile", "cuda_graphs", "flash_attention"})
NUMERIC = GRAPH | {"fused_optimizer", "cudnn_benchmark"}
EXCLUDES = {
    "matmul_precision": frozenset({"amp"}),
    "compile": frozenset({"cuda_graphs"}),
    "cuda_graphs": frozenset({"compile"}),
}
REPLACES = {"device_dataset": frozenset({"workers", "pin_memory", "device_prefetch"})}
"""Risk classes, and what the strategies of these names say of one another."""
NOISES = {"shared": minutes.SHARED, "quiet": NoiseModel("normal", block_sd=0.02, process_sd=0.01)}
"""Of a shared 2-core machine, as it was measured, and of a machine of one's own, as it is assumed."""
TARGET, EVALUATIONS, LOSSES = 0.9, 12, 2000


def _with(gains: dict[str, float], *dull: tuple[str, str]) -> Any:
    """Gains that multiply, but that the second of a pair brings nothing beside the first."""

    def together(names: frozenset[str]) -> float:
        lost = {second for first, second in dull if first in names}
        speed = 1.0
        for name in sorted(names - lost):  # the last digit of a product hangs on its order
            speed *= gains[name]
        return speed

    return together


def _case(name: str, gains: dict[str, float], *dull: tuple[str, str], **more: Any) -> SimulatedCase:
    gains = {**gains, **PLAIN}
    replaces = {one: others & gains.keys() for one, others in REPLACES.items()}
    said: dict[str, Any] = {"numeric": NUMERIC & gains.keys(), "excludes": EXCLUDES, "replaces": replaces}
    return SimulatedCase(name, gains, together=_with(gains, *dull), graph=GRAPH, **said, **more)


CASES = (
    _case(
        "resnet50",
        {"workers": 1.4, "amp": 1.4, "matmul_precision": 1.2, "channels_last": 1.15, "compile": 1.15},
        ("amp", "matmul_precision"),
        costs={"compile": 60.0},
        start_seconds=10.0,
        step_seconds=0.35,
        steps=20_000,
    ),
    _case(
        "bert",
        {"workers": 1.05, "amp": 1.6, "matmul_precision": 1.35, "fused_optimizer": 1.05, "compile": 1.15},
        ("amp", "matmul_precision"),
        costs={"compile": 45.0},
        start_seconds=9.0,
        step_seconds=0.15,
        steps=40_000,
    ),
    _case(
        "gpt2",
        {"amp": 1.6, "matmul_precision": 1.35, "fused_optimizer": 1.05, "compile": 1.3, "flash_attention": 1.25},
        ("amp", "matmul_precision"),
        costs={"compile": 50.0},
        start_seconds=9.0,
        step_seconds=0.25,
        steps=30_000,
    ),
    _case(
        "llm_fit",
        {"amp": 1.5, "matmul_precision": 1.3, "compile": 1.15, "flash_attention": 1.15},
        ("amp", "matmul_precision"),
        costs={"compile": 70.0},
        start_seconds=14.0,
        step_seconds=0.8,
        steps=8_000,
    ),
    _case(
        "cifar",
        {"workers": 1.5, "device_dataset": 1.6, "amp": 1.1, "channels_last": 1.1, "compile": 1.15},
        ("device_dataset", "workers"),
        costs={"compile": 40.0},
        start_seconds=6.0,
        step_seconds=0.02,
        steps=200_000,
    ),
    _case(
        "tiny",
        {"device_dataset": 1.2, "fused_optimizer": 1.3, "compile": 1.4, "cuda_graphs": 3.0},
        ("cuda_graphs", "compile"),
        ("cuda_graphs", "fused_optimizer"),
        costs={"compile": 15.0, "cuda_graphs": 1.0},
        start_seconds=5.0,
        step_seconds=0.002,
        steps=2_000_000,
    ),
)


def run(case: SimulatedCase, budget: float, seed: int = 0, noise: str = "shared") -> JsonDict:
    """One search of a case whose trainings go as far as their seconds reach."""

    def prepare(world: World) -> None:
        world.runner.facts = world.runner.facts.model_copy(update={"max_steps": case.steps, "target": None})
        world.runner.train = partial(trained, world.runner, case)  # type: ignore[method-assign]

    found = minutes.run(case, budget, seed, NOISES[noise], prepare)
    return {**found, "noise": noise, "start_seconds": case.start_seconds}


def trained(
    runner: Any,
    case: SimulatedCase,
    plan: Plan,
    *,
    seed: int,
    max_seconds: float,
    target: float | None,
    max_steps: int | None = None,
    **_: Any,
) -> TrainingRun:
    """A training to the target, or as far as its seconds reach; its metric rises in a straight line."""
    runner.trained.append((plan, seed))
    behaviour = runner.machine.behave(plan)
    wanted = math.ceil(case.steps * (1.0 if target is None else target / TARGET))
    able = max(1, int((max_seconds - behaviour.startup_seconds) / behaviour.step_seconds))
    able = able if max_steps is None else min(able, max_steps)
    end, reached = min(wanted, able), target is not None and wanted <= able
    places = sorted({math.ceil(end * part / EVALUATIONS) for part in range(1, EVALUATIONS + 1)})
    points = tuple(
        CurvePoint(step=step, seconds=step * behaviour.step_seconds, metric=TARGET * step / case.steps)
        for step in places
    )
    done = training_run(behaviour, seed, points, end, reached=reached, losses=LOSSES)
    runner.machine.clock.advance(done.seconds)
    return done


def main() -> None:
    parser = parser_of("benchmarks.search.gpu", __doc__, FILE)
    parser.add_argument("--budgets", type=float, nargs="+", default=list(BUDGETS))
    options = parser.parse_args()
    rows = []
    for case, budget, noise in product(CASES, options.budgets, NOISES):
        rows.append(run(case, budget, noise=noise))
        print(case.name, noise, f"{budget / 60:g} min:", " + ".join(rows[-1]["plan"]) or "the baseline", flush=True)
        save(options.out, rows)


if __name__ == "__main__":
    main()
