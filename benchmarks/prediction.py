"""Is the right bottleneck named, is the simulated step the measured one, do predictions come true?

    python benchmarks/prediction.py [--planted] [--examples] [--json results/prediction.json]

Planted pipelines: each has one stage made the bottleneck by a known amount. Examples: the step simulated and
measured, then each change predicted on the baseline's graph and measured in interleaved blocks.
Run it on a machine that does nothing else; it says under what load it ran.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from planted import Plant, plants  # noqa: E402

from autoopt.benchmark.training import Training  # noqa: E402
from autoopt.measurements import Block  # noqa: E402
from autoopt.records import Peaks, Plan, Round  # noqa: E402
from autoopt.setup import Setup  # noqa: E402
from autoopt.simplify.analyse import analyse  # noqa: E402
from autoopt.simplify.ceilings import stage_ceilings, uncapped_ceiling_step  # noqa: E402
from autoopt.simplify.peaks import measured_peaks  # noqa: E402
from autoopt.simplify.pipeline import Pipeline  # noqa: E402
from autoopt.simplify.survey import Survey  # noqa: E402
from autoopt.simplify.tasks import survey  # noqa: E402

THREADS = torch.get_num_threads()
BLOCK_SECONDS = 0.5
EXAMPLES = {
    "photos": ((1, None), (2, None), (1, 1), (2, 1), (0, 1)),
    "stdlib_gpt": ((0, 1),),
    "digits": ((1, None), (0, 1)),
}


@dataclass
class Found:
    """One pipeline: what was named, and how far the simulation was off."""

    name: str
    bottleneck: str | None
    kind: str | None
    right: bool | None
    line: bool | None
    step: float
    simulated: float
    error: float
    violations: list[str]
    seconds: float


def block(training: Training, seconds: float, skip: int = 0) -> Block:
    """Steps for so many seconds, after some that are not counted."""
    for _ in range(skip):
        training.step(training.next())
    training.clock.start()
    steps = 0
    while steps < 5 or training.clock.elapsed() < seconds:
        training.step(training.next())
        steps += 1
    lap = training.clock.stop()
    return Block(
        steps=steps, samples=steps, seconds=lap.seconds, stage_seconds=lap.stages, step_seconds=tuple(lap.steps)
    )


def look(training: Training, peaks: Peaks, box: float) -> tuple[Round, Survey]:
    """Benchmark and simplify: blocks before and after the stubs, of which the faster is less disturbed."""
    before = block(training, BLOCK_SECONDS, skip=5)
    document = json.loads(json.dumps(survey(SimpleNamespace(training=training), seconds=box)))
    measured = Survey.model_validate(document)
    after = block(training, BLOCK_SECONDS, skip=2)
    fastest = min((before, after), key=lambda item: item.seconds / item.steps)
    return analyse(0, Plan(), measured, fastest, peaks), measured


def violations(round_: Round, measured: Survey, peaks: Peaks, best_step: float) -> list[str]:
    """Stages that were measured faster than the ceiling computed for them, and the step likewise."""
    ceilings = stage_ceilings(measured, peaks)
    seconds = {stage.name: stage.seconds for stage in round_.stages}
    if measured.backward is not None:  # a difference of two: where noise swallows it, its upper quartile speaks
        seconds["backward"] = measured.backward.high * measured.accumulation
    found = [
        f"{name}: {value:.3g} s under its ceiling {ceilings[name]:.3g} s"
        for name, value in seconds.items()
        if ceilings.get(name, 0.0) > value * 1.0001
    ]
    step = uncapped_ceiling_step(Pipeline(round_), measured, peaks)
    if step is not None and best_step < step:
        found.append(f"step: {best_step:.3g} s under its ceiling {step:.3g} s")
    return found


def examine_plant(plant: Plant, peaks: Peaks, box: float) -> Found:
    began = time.perf_counter()
    torch.set_num_threads(
        THREADS if plant.all_threads else 1
    )  # what was planted is not to drown in how threads wait for each other
    torch.manual_seed(0)
    training = Training(plant.build(), plant.setup, device="cpu")
    try:
        round_, measured = look(training, peaks, box)
    finally:
        training.close()
    right = round_.bottleneck in plant.bottleneck if plant.bottleneck else round_.bottleneck is None
    if plant.kind is not None:
        right = right and round_.bottleneck_class == plant.kind
    last = next((item for item in reversed(round_.deeper) if item.line is not None), None)
    line = None if plant.line is None else bool(last and last.line == plant.line)
    return found_of(plant.name, round_, right, line, violations(round_, measured, peaks, round_.step_seconds), began)


def found_of(name: str, round_: Round, right: bool | None, line: bool | None, wrong: list[str], began: float) -> Found:
    return Found(
        name=name,
        bottleneck=round_.bottleneck,
        kind=round_.bottleneck_class,
        right=right,
        line=line,
        step=round_.step_seconds,
        simulated=round_.predicted_step_seconds or 0.0,
        error=round_.simulation_error or 0.0,
        violations=wrong,
        seconds=time.perf_counter() - began,
    )


def load(path: Path) -> Callable[[], Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    build: Callable[[], Any] = module.build
    return build


def realized(build: Callable[[], Any], workers: int, threads: int | None, rounds: int = 6) -> tuple[float, float]:
    """The speedup of a change over the baseline, as the median over interleaved blocks, and its fastest step."""
    torch.manual_seed(0)
    base = Training(build(), Setup(), device="cpu")
    setup = Setup().with_loader(num_workers=workers, persistent_workers=True) if workers else Setup()
    changed = Training(build(), setup, device="cpu")
    ratios, steps = [], []
    try:
        for _ in range(rounds):
            torch.set_num_threads(THREADS)
            before = block(base, BLOCK_SECONDS, skip=2)
            torch.set_num_threads(threads or THREADS)
            after = block(changed, BLOCK_SECONDS, skip=2 + 3 * workers)  # the queue was filled meanwhile
            steps.append(after.seconds / after.steps)
            ratios.append(before.seconds / before.steps / steps[-1])
    finally:
        torch.set_num_threads(THREADS)
        base.close()
        changed.close()
    return statistics.median(ratios), min(steps)


def examine_example(name: str, peaks: Peaks, box: float) -> tuple[Found, list[dict[str, Any]]]:
    began = time.perf_counter()
    build = load(HERE.parent / "examples" / f"{name}.py")
    torch.manual_seed(0)
    training = Training(build(), Setup(), device="cpu")
    try:
        round_, measured = look(training, peaks, box)
    finally:
        training.close()
    pipeline, predictions, best = Pipeline(round_), [], round_.step_seconds
    for workers, threads in EXAMPLES[name]:
        predicted = pipeline.gain(workers=workers, threads=threads).value
        real, fastest = realized(build, workers, threads)
        best = min(best, fastest)
        predictions.append(
            {"example": name, "workers": workers, "threads": threads or THREADS, "predicted": predicted,
             "realized": real, "error": predicted / real - 1.0}
        )  # fmt: skip
    return found_of(name, round_, None, None, violations(round_, measured, peaks, best), began), predictions


def show(found: Found) -> None:
    marks = {True: "yes", False: "NO", None: "-"}
    print(
        f"{found.name:12s} {found.bottleneck or 'none':12s} {found.kind or '-':16s} right {marks[found.right]:3s} "
        f"line {marks[found.line]:3s} step {found.step * 1e3:8.2f} ms simulated {found.simulated * 1e3:8.2f} ms "
        f"{found.error:+6.1%}  {found.seconds:4.1f} s {'; '.join(found.violations)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true", help="the planted pipelines alone")
    parser.add_argument("--examples", action="store_true", help="the examples alone")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--box", type=float, default=4.0, help="seconds for the stubs of one pipeline")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    both = options.planted == options.examples
    only = set(filter(None, options.only.split(",")))
    load_before = os.getloadavg()[0]
    peaks = measured_peaks(torch.device("cpu"))
    found, predictions = [], []
    if both or options.planted:
        for plant in plants():
            if not only or plant.name in only:
                found.append(examine_plant(plant, peaks, options.box))
                show(found[-1])
    if both or options.examples:
        for name in EXAMPLES:
            if not only or name in only:
                item, more = examine_example(name, peaks, options.box)
                found.append(item)
                predictions += more
                show(item)
                for p in more:
                    print(f"    workers {p['workers']} threads {p['threads']}: predicted {p['predicted']:.2f}x "
                          f"realized {p['realized']:.2f}x {p['error']:+.0%}", flush=True)  # fmt: skip
    summary = summarize(found, predictions) | {
        "load_before": load_before,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
    print(json.dumps(summary, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"summary": summary, "pipelines": [asdict(item) for item in found], "predictions": predictions,
                    "peaks": peaks.model_dump()}  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def summarize(found: list[Found], predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the issue asks for."""
    errors = [abs(item.error) for item in found]
    missed = [abs(p["error"]) for p in predictions]
    judged = [item for item in found if item.right is not None]
    return {
        "named_right": f"{sum(bool(item.right) for item in judged)} of {len(judged)}",
        "line_found": f"{sum(bool(i.line) for i in judged)} of {sum(i.line is not None for i in judged)}",
        "step_error_median": statistics.median(errors) if errors else None,
        "step_error_worst": max(errors, default=None),
        "gain_error_median": statistics.median(missed) if missed else None,
        "gain_error_worst": max(missed, default=None),
        "ceilings_violated": sum(len(item.violations) for item in found),
    }


if __name__ == "__main__":
    main()
