"""For each example what a user would do: optimize, export, run the script, verify, and their own Trainer.

    python -m benchmarks.adoption digits                      # all stages of one example, those done before left out
    python -m benchmarks.adoption hf_text --stages own_trainer

Every stage is saved in one JSON document as soon as it is done, with the environment it was measured in, so that a
run can be cut anywhere and taken up again. Numbers are worth what the machine's quiet was: stop everything else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from autoopt.export.script import script
from autoopt.records.facts import WorkloadFacts
from autoopt.records.reading import read_result
from autoopt.registry import load_strategies
from autoopt.storage.journal import read_journal
from benchmarks.adoption import in_turns
from benchmarks.documents import RESULTS, dumped, load, parser_of, record

STAGES = ("optimize", "script", "verify", "own_trainer")
EXAMPLES: dict[str, dict[str, Any]] = {
    "photos": {},
    "digits": {},
    "stdlib_gpt": {},
    "lightning_digits": {"to": "lightning"},
    "hf_text": {"to": "transformers", "options": ["--target", "0.75"]},
}


def main() -> None:
    parser = parser_of("benchmarks.adoption", __doc__, RESULTS / "adoption.json")
    parser.add_argument("examples", nargs="+", choices=EXAMPLES)
    parser.add_argument("--stages", default=",".join(STAGES), help="of " + ", ".join(STAGES))
    parser.add_argument("--budget", default="4m", help="of optimize")
    parser.add_argument("--seconds", type=float, default=150.0, help="of each comparison of steps")
    parser.add_argument("--pairs", type=int, default=3, help="of whole trainings")
    parser.add_argument("--again", action="store_true", help="also stages that are done")
    parser.add_argument("--runs", type=Path, default=Path("autoopt-runs/adoption"), help="where the run directories go")
    options = parser.parse_args()
    measure = {"optimize": optimize, "script": scripts, "verify": verify, "own_trainer": own}
    for name in options.examples:
        for stage in options.stages.split(","):
            done = stage in load(options.out).get("examples", {}).get(name, {})
            found = measure[stage](name, options) if options.again or not done else None
            if found is not None:
                record(options.out, found, "examples", name, stage)
                print(name, stage, json.dumps(found), flush=True)


def _run(*words: str, code: tuple[int, ...] = (0,)) -> str:
    """What an interpreter prints with these words."""
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in code:
        raise SystemExit(f"python {' '.join(words)} ended with {done.returncode}")
    return done.stdout


def _directory(name: str, options: argparse.Namespace) -> Path:
    path: Path = options.runs / name
    return path


def optimize(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A search from nothing; what it kept and what it says that brings."""
    where = _directory(name, options)
    if where.exists():  # an earlier one is kept
        number = next(n for n in range(1, 1000) if not where.with_name(f"{name}-{n}").exists())
        where.rename(where.with_name(f"{name}-{number}"))
    words = ["--budget", options.budget, "--out", str(where), "--json", *EXAMPLES[name].get("options", [])]
    _run("-m", "autoopt", "optimize", f"examples/{name}.py:build", *words)
    result = read_result(where)
    return {
        "budget": options.budget,
        "plan": [change.model_dump() for change in result.best.plan.changes],
        "seconds": result.seconds,
        "throughput": dumped(result.speedup.throughput),
        "time_to_target": dumped(result.speedup.time_to_target),
        "end_to_end_verified": result.speedup.end_to_end_verified,
        "noise": result.noise.model_dump(),
        "torch": result.environment.torch,
        "cpu": result.environment.cpu,
        "cores": result.environment.cores,
    }


def scripts(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The exported script to the target, beside the same script with an empty plan; fresh processes, in turns."""
    result = read_result(_directory(name, options))
    registry = load_strategies(result.reproduce.strategies)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain_train.py"
        text = script(result.workload.spec, result.baseline.plan, registry, facts=_facts(_directory(name, options)))
        plain.write_text(text, encoding="utf-8")
        sides = {"plain": plain, "optimized": _directory(name, options) / "optimized_train.py"}
        return in_turns(options.pairs, lambda side, seed: _trained(sides[side], seed, result.objective.target))


def _facts(directory: Path) -> WorkloadFacts:
    """Facts that the run found of the workload, as its own script was written with."""
    records = read_journal(directory / "journal.jsonl")
    step = next(r["step"] for r in records if r["type"] == "start" and r["kind"] == "inspect")
    document = next(r["document"] for r in records if r["type"] == "end" and r["step"] == step)
    return WorkloadFacts.model_validate(document["facts"])


def _trained(path: Path, seed: int, target: float | None) -> dict[str, Any]:
    """One run of a script; the last lines that it prints are what it came to."""
    words = [str(path), "--seed", str(seed), *(["--target", str(target)] if target is not None else [])]
    lines = _run(*words).strip().splitlines()
    reported = lines[-1].split()  # "120 steps in 4.5 s, last loss 0.2"
    return {
        "steps": int(reported[0]),
        "seconds": float(reported[3]),
        "evaluated": lines[-2] if len(lines) > 1 else None,
    }


def verify(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """``autoopt verify``: the script's steps against the baseline's, beside what was reported."""
    words = ["verify", str(_directory(name, options)), "--budget", f"{options.seconds:.0f}s", "--json"]
    found: dict[str, Any] = json.loads(_run("-m", "autoopt", *words, code=(0, 1)))
    return found


def own(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """The user's own Trainer with what was exported for it; None where the example has none."""
    target = EXAMPLES[name].get("to")
    if target is None:
        return None
    words = [str(_directory(name, options)), "--to", target, "--seconds", str(options.seconds)]
    found: dict[str, Any] = json.loads(
        _run("-m", "benchmarks.adoption.own_trainer", *words, "--whole", str(options.pairs))
    )
    return found


if __name__ == "__main__":
    main()
