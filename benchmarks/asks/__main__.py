"""Answers of ``autoopt compare`` to changes that do nothing, asked again and again, and to one that does something.

    python -m benchmarks.asks --simulated 20                # ledgers of 200 asks each, in simulated time
    python -m benchmarks.asks --live 20 --seconds 380       # placebos on this machine; call again to go on
    python -m benchmarks.asks --gains 20 --seconds 380      # true gains on this machine
    python -m benchmarks.asks --revisions 300               # an example in two revisions, with the comment's text
    python -m benchmarks.asks --loop 60                     # ten edits by a scripted agent, seconds of an answer
    python -m benchmarks.asks --power 20                    # true gains of 5, 10, 30 %, in simulated time

A live ask is ``autoopt compare --require faster`` of a commit with the commit before it. Nothing is left out and
nothing is asked twice: the ledger goes on where it stood.
"""

from __future__ import annotations

import time

from benchmarks.documents import RESULTS, environment, load, parser_of, record, save


def main() -> None:
    parser = parser_of("benchmarks.asks", __doc__, RESULTS / "asks.json")
    parser.add_argument("--simulated", type=int, default=0, metavar="LEDGERS", help="of 200 asks each")
    parser.add_argument("--kinds", default="normal,heavy,drifting,bimodal", help="of simulated noise")
    parser.add_argument("--live", type=int, default=0, metavar="ASKS", help="until so many have been answered")
    parser.add_argument("--gains", type=int, default=0, metavar="ASKS", help="the same of true gains")
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of a live ask")
    parser.add_argument("--revisions", type=float, metavar="SECONDS", help="compare two revisions of an example")
    parser.add_argument("--loop", type=float, metavar="SECONDS", help="judge ten edits of a scripted agent")
    parser.add_argument("--power", type=int, default=0, metavar="ASKS", help="of each true gain and noise")
    parser.add_argument("--seconds", type=float, default=380.0, help="start no live ask that would end later")
    options = parser.parse_args()
    for kind in options.kinds.split(","):
        from benchmarks.asks.simulated import ledgers, power

        if options.simulated:
            record(options.out, ledgers(kind, options.simulated), "simulated", kind)
        if options.power:
            record(options.out, power(kind, options.power), "power", kind)
    deadline = time.monotonic() + options.seconds
    for name, kind, count in (("live", "placebo", options.live), ("gains", "gain", options.gains)):
        if count:
            from benchmarks.asks.live import ask

            document = load(options.out)
            asks = document.setdefault(name, {"asks": []})["asks"]
            while len(asks) < count and time.monotonic() + options.budget < deadline:
                asks.append({**ask(kind, len(asks) + 1, options.budget), "environment": environment()})
                save(options.out, document)
                print(name, asks[-1]["answer"], asks[-1]["reason"], flush=True)
    if options.revisions:
        from benchmarks.asks.revisions import measure

        found, comment = measure(options.revisions)
        load_now = environment()["load"]
        save(options.out, {**load(options.out), "revisions": {**found, "load": load_now, "comment": comment}})
        print(comment)
    if options.loop:
        from benchmarks.asks.loop import loop

        record(options.out, loop(options.loop), "loop")


if __name__ == "__main__":
    main()
