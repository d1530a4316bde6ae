"""A candidate against a baseline, judged from outside: the whole of ``autoopt compare``."""

from __future__ import annotations

import contextlib
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autoopt
from autoopt.comparing import session as sessions
from autoopt.comparing.answer import answer_of, changed_sources, rate_of, step_seconds
from autoopt.comparing.ledger import answered, enter
from autoopt.comparing.measuring import Comparing
from autoopt.comparing.sides import Side, check_alike, side, workload_of
from autoopt.options import Options
from autoopt.records.comparing import Compared, ComparedSide, Requirement
from autoopt.running.baseline_spec import registry_of
from autoopt.running.document import now
from autoopt.script.command import Build, Script
from autoopt.search.compare.comparison import Comparison
from autoopt.storage.interrupts import handled
from autoopt.trial.parent import Launcher

DEFAULT_SECONDS = 300.0
"""Of a comparison whose user names no budget."""

Say = Callable[[str], None]


def compare_sides(
    baseline: str,
    candidate: str,
    workload: Build | Script | None,
    options: Options,
    *,
    requirement: Requirement | None = None,
    ledger: Path | None = None,
    session: Path | None = None,
    head: str | None = None,
    pythons: tuple[str | None, str | None] = (None, None),
    say: Say = lambda text: None,
) -> Compared:
    """Compares two sides.

    Args:
        baseline, candidate: see ``autoopt.comparing.sides``.
        workload: the function or the command that plans, patches, revisions and ``.`` are of.
        options: budget, device and further strategies.
        requirement: what must hold; without one the comparison goes on until its interval is narrow.
        ledger: the file that divides one alpha over all asks.
        session: the file by which an ask knows the baseline, and the ledger's head, from those before it.
        head: of the ledger, as the last answer reported it; None: the session's.
        pythons: interpreters of the two sides of a script, where they are not that of the command.
        say: progress, a line at a time.

    Raises:
        WorkloadError: the baseline cannot be built, or fails.
        UsageError: a side is none, or the two are a script and a function.
    """
    clock = time.monotonic
    registry, began, created = registry_of(options), clock(), now()
    workload = workload_of((baseline, candidate), workload)
    with contextlib.ExitStack() as stack:
        stack.enter_context(handled(_stopped))  # checkouts are removed from the user's repository in any case
        sides = {
            "baseline": stack.enter_context(side(baseline, workload, pythons[0])),
            "candidate": stack.enter_context(side(candidate, workload, pythons[1])),
        }
        check_alike(sides["baseline"], sides["candidate"])
        stack.enter_context(sides["baseline"].workload.alone())
        records = {name: _record(each) for name, each in sides.items()}
        seed = secrets.randbelow(2**31)  # neither side can have known it
        names = (_name(records["baseline"]), _name(records["candidate"]))
        before = sessions.read(session) if session else sessions.Session()
        entry = enter(ledger, baseline=names[0], candidate=names[1], after=head or before.head) if ledger else None
        known = before.baseline
        if known is not None and known.fingerprint != sessions.fingerprint_of(sides["baseline"], options.device):
            known = None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autoopt-compare-")))
        launcher = stack.enter_context(Launcher())
        comparing = Comparing(
            sides, options, registry, launcher, folder, seed, entry, requirement, clock, say, known, session is None
        )
        found = comparing.run(began + options.budget_seconds)
        changed = [changed_sources(name, records[name].sources, sides[name].sources) for name in sides]
        tampered = next(filter(None, changed), "")
    document = Compared(
        autoopt_version=autoopt.__version__,
        created=created,
        seconds=clock() - began,
        baseline=_measured(records["baseline"], comparing, "baseline", found),
        candidate=_measured(records["candidate"], comparing, "candidate", found),
        environment=comparing.environment,
        seed=seed,
        answer="undecided",
        reason="",
        throughput=found.estimate if found else None,
        whole=comparing.pairs.whole,
        control=comparing.control,
        planned_run=comparing.planned_run(found),
        planned_steps=comparing.facts.max_steps if comparing.facts else None,
        pairs=found.ratios if found else (),
        decision=found.decision if found else None,
        reused=known is not None,
        **_metric(comparing),
        learning=comparing.learning,
        requirement=requirement,
        ledger=entry.model_copy(update={"e_value": found.e_value if found else None}) if entry else None,
        warnings=tuple(comparing.warnings),
    )
    evaluated = comparing.judge.evaluating.tampered if comparing.judge else ""
    found_out = answer_of(document, found, comparing.failure, tampered or comparing.pairs.tampered or evaluated)
    if ledger is not None and found_out.ledger is not None:
        entry = answered(ledger, found_out.ledger, found_out.answer)
        found_out = found_out.model_copy(update={"ledger": entry})
    if session is not None:
        head = found_out.ledger.head if found_out.ledger else before.head
        sessions.write(session, sessions.Session(baseline=comparing.known, head=head))
    return found_out


def _stopped(number: int, frame: object) -> None:
    raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")


def _record(each: Side) -> ComparedSide:
    return ComparedSide(
        given=each.given,
        kind=each.kind,
        spec=each.workload.spec,
        plan=each.plan,
        commit=each.commit,
        sources=each.sources,
    )


def _name(record: ComparedSide) -> str:
    return f"{record.given} ({record.commit[:12]})" if record.commit else record.given


def _measured(record: ComparedSide, comparing: Comparing, name: str, found: Comparison | None) -> ComparedSide:
    stats = None if found is None else found.incumbent if name == "baseline" else found.candidate
    evaluating = comparing.judge.evaluating if comparing.judge else None
    return record.model_copy(
        update={
            "samples_per_second": rate_of(found, name),
            "samples_per_step": stats.samples_per_step if stats else None,
            "step_seconds": step_seconds(found, name) if found else None,
            "start_seconds": comparing.start_seconds(name),
            "metric": evaluating.value(name) if evaluating else None,
            "loss": evaluating.loss(name) if evaluating else None,
        }
    )


def _metric(comparing: Comparing) -> dict[str, Any]:
    """The metric's name, the difference between both sides, and how either was read."""
    evaluating = comparing.judge.evaluating if comparing.judge else None
    if evaluating is None:
        return {"metric": comparing.facts.metric if comparing.facts else None}
    one, two = evaluating.value("baseline"), evaluating.value("candidate")
    return {
        "metric": evaluating.metric,
        "metric_difference": two - one if one is not None and two is not None else None,
        "metric_note": evaluating.note,
        "loss_batches": evaluating.loss_batches or None,
    }
