"""Does the exported plan pay in the user's own Trainer? Lightning's or transformers', plain against optimized.

    python -m benchmarks.adoption.own_trainer autoopt-runs/lightning_digits --to lightning --seconds 200
    python -m benchmarks.adoption.own_trainer autoopt-runs/hf_text --to transformers --seconds 200 --whole 3

Both sides are the user's own ``build()`` and the Trainer's own ``fit()`` or ``train()``; the optimized one gets what
``autoopt export --to ... --code ...`` wrote, as a person would put it in: arguments to the constructor, the
callback to the Trainer, the function around it. Steps are compared in interleaved blocks of replicated processes,
as in every comparison of autoopt; ``--whole`` compares whole trainings, evaluations and all, in pairs of fresh
processes with the order turned each time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from autoopt.export import export
from autoopt.export.targets import trainer_code
from autoopt.records import Plan, Result
from autoopt.records.protocol import TrialSpec
from autoopt.records.reading import read_result
from autoopt.registry import load_strategies
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.trial.parent import Launcher
from benchmarks.adoption import in_turns
from benchmarks.documents import ROOT, parser_of
from benchmarks.sides import SideArm

HERE = Path(__file__).resolve().parent
SIDE = "benchmarks.adoption.own_trainer_side"
START_SECONDS = 300.0


def main() -> None:
    parser = parser_of("benchmarks.adoption.own_trainer", __doc__)
    parser.add_argument("run", type=Path, help="directory of a finished run")
    parser.add_argument("--to", choices=["lightning", "transformers"], required=True)
    parser.add_argument("--seconds", type=float, default=180.0, help="for the comparison of steps; 0 leaves it out")
    parser.add_argument("--whole", type=int, default=0, help="pairs of whole trainings")
    options = parser.parse_args()
    result = read_result(options.run)
    with tempfile.TemporaryDirectory() as folder:
        exported(result, options.to, Path(folder))
        found: dict[str, Any] = {}
        if options.seconds > 0:
            found["steps"] = steps(result, options.seconds, options.run / "logs")
        if options.whole > 0:
            found["whole"] = whole(result, options.whole)
    print(json.dumps(found, indent=1))


def exported(result: Result, target: str, folder: Path) -> None:
    """The export of ``autoopt export RUN --to TARGET --code optimized_trainer.py``, where a side finds it."""
    code = trainer_code(result, target, load_strategies(result.reproduce.strategies))
    text, notes = export(result, target, code=code, module="optimized_trainer")
    if notes:
        raise SystemExit(f"a part of the plan has to be done by hand, so that this cannot measure it: {notes}")
    (folder / "optimized_trainer.py").write_text(code.text, encoding="utf-8")
    (folder / "arguments").write_text(text, encoding="utf-8")
    os.environ["OWN_TRAINER"] = json.dumps({"folder": str(folder), "target": target})


def steps(result: Result, seconds: float, logs: Path) -> dict[str, Any]:
    """The ratio of steps per second, with its interval and how much it rests on."""
    sys.path.insert(0, str(ROOT))
    with Launcher(live=f"{SIDE}:Side") as launcher:
        count = 0

        def start(plan: Plan, label: str) -> Any:
            nonlocal count
            count += 1
            spec = TrialSpec(
                workload=result.workload.spec,
                plan=plan,
                strategies=result.reproduce.strategies,
                device=result.environment.device,
                seed=result.reproduce.seed,
                directory=os.getcwd(),
                search_path=(os.getcwd(), str(ROOT)),
            )
            log = logs / f"own-trainer-{count:03d}-{label}.log"
            return SideArm(launcher.start(spec, log=log, timeout=START_SECONDS), plan)

        rule = Rule(max_seconds=seconds, until_error=0.03, warm_up_seconds=min(30.0, seconds / 6))
        rng = np.random.default_rng(result.reproduce.seed)
        found = compare(start, Plan(), result.best.plan, rule, clock=time.monotonic, noise=result.noise, rng=rng)
    if found.estimate is None:
        raise SystemExit(f"nothing could be measured: {found.reason}")
    return {
        "speedup": found.estimate.model_dump(),
        "processes": 2 * len(found.pairs),
        "seconds": found.seconds,
        "disturbed_share": found.disturbed_share,
    }


def whole(result: Result, pairs: int) -> dict[str, Any]:
    """Whole trainings by the Trainer's own loop to its own end, in pairs of fresh processes."""

    def run(side: str, seed: int) -> dict[str, Any]:
        words = [sys.executable, str(HERE / "own_trainer_side.py"), result.workload.spec, side, str(seed)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the {side} training failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return in_turns(pairs, run)


if __name__ == "__main__":
    main()
