"""Answers of ``autoopt compare`` to changes that do nothing, asked again and again, and to one that does something.

    python -m benchmarks.asks --simulated 20                # ledgers of 200 asks each, in simulated time
    python -m benchmarks.asks --live 20 --seconds 380       # placebos on this machine; call again to go on
    python -m benchmarks.asks --gains 20 --seconds 380      # true gains on this machine
    python -m benchmarks.asks --revisions 300               # an example in two revisions, with the comment's text
    python -m benchmarks.asks --loop 60                     # ten edits by a scripted agent, seconds of an answer
    python -m benchmarks.asks --power 20                    # true gains of 5, 10, 30 %, in simulated time
    python -m benchmarks.asks --table                       # what was measured so far

A live ask is ``autoopt compare --require faster`` of a commit with the commit before it. Nothing is left out and
nothing is asked twice: the ledger goes on where it stood.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS, environment, load, save


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.asks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated", type=int, default=0, metavar="LEDGERS", help="of 200 asks each")
    parser.add_argument("--kinds", default="normal,heavy,drifting,bimodal", help="of simulated noise")
    parser.add_argument("--live", type=int, default=0, metavar="ASKS", help="until so many have been answered")
    parser.add_argument("--gains", type=int, default=0, metavar="ASKS", help="the same of true gains")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of a live ask")
    parser.add_argument("--revisions", type=float, metavar="SECONDS", help="compare two revisions of an example")
    parser.add_argument("--loop", type=float, metavar="SECONDS", help="judge ten edits of a scripted agent")
    parser.add_argument("--power", type=int, default=0, metavar="ASKS", help="of each true gain and noise")
    parser.add_argument("--seconds", type=float, default=380.0, help="start no live ask that would end later")
    parser.add_argument("--out", type=Path, default=RESULTS / "asks.json")
    parser.add_argument("--table", action="store_true", help="only print what is there")
    options = parser.parse_args()
    document = load(options.out)
    if options.simulated:
        from benchmarks.asks.simulated import ledgers

        for kind in options.kinds.split(","):
            found = {**ledgers(kind, options.simulated), "environment": environment()}
            document.setdefault("simulated", {})[kind] = found
            save(options.out, document)
    deadline = time.monotonic() + options.seconds
    for name, kind, count in (("live", "placebo", options.live), ("gains", "gain", options.gains)):
        if count:
            from benchmarks.asks.live import ask

            asks = document.setdefault(name, {"asks": []})["asks"]
            while len(asks) < count and time.monotonic() + options.budget < deadline:
                asks.append({**ask(kind, len(asks) + 1, options.budget), "environment": environment()})
                save(options.out, document)
    if options.revisions:
        from benchmarks.asks.revisions import measure

        found, comment = measure(options.revisions)
        document["revisions"] = {**found, "load": environment()["load"], "comment": comment}
        save(options.out, document)
        sys.stdout.write(comment)
    if options.power:
        from benchmarks.asks.simulated import power

        for kind in options.kinds.split(","):
            document.setdefault("power", {})[kind] = power(kind, options.power)
            save(options.out, document)
    if options.loop:
        from benchmarks.asks.loop import loop

        document["loop"] = {**loop(options.loop), "environment": environment()}
        save(options.out, document)
    sys.stdout.write(table(document))


def table(document: dict[str, Any]) -> str:
    """The measurements in a few lines."""
    lines = []
    for kind, found in document.get("simulated", {}).items():
        asks = found["ledgers"] * found["asks_each"]
        lines.append(
            f"simulated, {kind} noise: {found['ledgers_with_a_keep']} of {found['ledgers']} ledgers of "
            f"{found['asks_each']} placebo asks with any called faster, {found['keeps']} of {asks} asks"
        )
    for name, what in (("live", "placebo commits"), ("gains", "true gains")):
        asks = document.get(name, {}).get("asks", [])
        if asks:
            answers = [each["answer"] for each in asks]
            counts = ", ".join(f"{answers.count(answer)} {answer}" for answer in sorted(set(answers)))
            lines.append(f"live: {len(asks)} {what} under one ledger: {counts}")
            lines.append(_measured(asks))
    for kind, found in document.get("power", {}).items():
        for row in found["rows"]:
            lines.append(
                f"{kind} noise, a true {row['gain']:.0%} as ask {row['ask']}: found in {row['found']} of "
                f"{row['asks']}, median {row['median_seconds']} s"
            )
    for each in document.get("loop", {}).get("asks", []):
        lines.append(f"{each['kind']}: {each['edit']}: {each['verdict']}")
    if document.get("revisions"):
        found = document["revisions"]
        lines.append(f"two revisions: {found['answer']}: {found['reason']}")
    return "\n".join(lines) + "\n"


def _measured(asks: list[dict[str, Any]]) -> str:
    """How much those on this machine could have told."""
    reported = sum(each.get("ratio") is not None for each in asks)
    values = [each["e_value"] for each in asks if each.get("e_value") is not None]
    budgets = sorted({f"{each['budget_seconds']:g} s" for each in asks if "budget_seconds" in each})
    loads = [each["environment"]["load"][0] for each in asks if "environment" in each]
    parts = [f"{reported} of them came to an interval in their time" + (f" ({', '.join(budgets)})" if budgets else "")]
    parts += [f"the largest e-value {max(values):.2g}"] if values else []
    parts += [f"load {min(loads):.1f} to {max(loads):.1f} on {asks[-1]['environment']['cores']} cores"] if loads else []
    return "; ".join(parts)


if __name__ == "__main__":
    main()
