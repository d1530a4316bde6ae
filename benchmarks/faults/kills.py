"""Kills ``autoopt optimize`` at random moments, resumes it each time, and counts what was lost and repeated.

``python -m benchmarks.faults.kills --kills 50`` goes on until so many kills have struck and every run has ended. A
step is lost when it was under way at a kill; it is repeated when it was measured although the journal held it.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.documents import parser_of
from benchmarks.faults.runs import STEPS, Command, optimize, records, result


@dataclass
class Tally:
    kills: int = 0
    runs: int = 0
    results: int = 0
    lost: int = 0
    most_lost_by_one_kill: int = 0
    repeated: int = 0
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    parser = parser_of("benchmarks.faults.kills", __doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--longest", type=float, default=14.0, help="seconds until a kill, at most")
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, tally = random.Random(options.seed), Tally()
    while tally.kills < options.kills:
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            one_run(Path(folder), options, rng, tally)
        print(json.dumps(tally.__dict__), flush=True)
    return 1 if tally.wrong or tally.left or tally.repeated or tally.most_lost_by_one_kill > 1 else 0


def one_run(folder: Path, options: argparse.Namespace, rng: random.Random, tally: Tally) -> None:
    """One run from its start to its result, killed on the way as long as kills are left."""
    out = folder / "run"
    command = optimize(folder, out, budget=options.budget)
    tally.runs += 1
    while True:
        left = rng.uniform(0.5, options.longest) if tally.kills < options.kills else float("inf")
        killed = killed_after(command, left)
        tally.kills += killed
        ran = command.end()
        tally.left += ran.left
        if not killed or ended(out):
            break
        if not records(out):  # killed before the run began: nothing to resume
            command = optimize(folder, out, budget=options.budget)
            continue
        command = Command("resume", str(out), "--quiet", folder=folder, TINY_SLOW=STEPS)
    if ran.code != 0 and not ended(out):
        tally.wrong.append(f"exit code {ran.code}: {ran.errors[-500:]}")
    tally.results += result(out) is not None
    count(out, tally)


def ended(out: Path) -> bool:
    """Whether the run came to its end."""
    return any(record["type"] == "finished" and record["complete"] for record in records(out))


def killed_after(command: Command, seconds: float) -> bool:
    """Kills it after so many seconds; False where it ended before."""
    deadline = time.monotonic() + seconds
    while command.process.poll() is None:
        if time.monotonic() >= deadline:
            command.signal(signal.SIGKILL)
            return True
        command.look()
        time.sleep(0.05)
    return False


def count(out: Path, tally: Tally) -> None:
    """Steps that were lost, and steps that were measured again, as the journal tells them."""
    under_way: dict[int, str] = {}
    recorded: Counter[str] = Counter()
    for record in records(out):
        if record["type"] == "start":
            under_way[record["step"]] = json.dumps([record["kind"], record["key"]], sort_keys=True)
        elif record["type"] in ("end", "failed"):
            recorded[under_way.pop(record["step"])] += 1
        elif record["type"] == "resumed":
            tally.lost += len(under_way)
            tally.most_lost_by_one_kill = max(tally.most_lost_by_one_kill, len(under_way))
            under_way.clear()
    tally.repeated += sum(number - 1 for number in recorded.values() if number > 1)


if __name__ == "__main__":
    sys.exit(main())
