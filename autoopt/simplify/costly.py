"""The most expensive lines of a whole run, and calls that hold a step up and are no part of training.

torch is not imported here."""

from __future__ import annotations

import functools
import linecache
import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from autoopt.benchmark.libraries import is_users
from autoopt.records import Advice, Plan, Round, Sites, WholeRun
from autoopt.records.facts import WorkloadFacts
from autoopt.simplify.stage_timings import INPUT

MOST = 5
"""Places that are named: a screen of them."""
LEAST = 0.03
"""Of the whole run: what takes less is not worth a user's time."""
WHOLE_TENSORS = (
    "operations on whole tensors in place of single elements; what depends on a sample alone belongs in the dataset, "
    "where it is made once, or by workers"
)
_SMALL = 64
"""Samples of a batch below which an evaluation's time is mostly what each batch costs once."""
Line = tuple[str, int]
Place = tuple[str | None, int | None]
PRODUCTS = 0.6
"""Share of products in a step's operators from which on other operators are no matter."""
LEAST_SHARE = 0.01
"""Of a step: what takes less is not worth a user's time."""
_TOLD = {
    "gc.collect": (
        "Garbage is collected by force in every step",
        "take the line out, or `if step % 100 == 0: gc.collect(1)`; `gc.freeze()` before the loop makes each one short",
    ),
    "torch.cuda.empty_cache": (
        "The allocator's cache is emptied in every step",
        "take the line out: what it gives back is asked for again in the next step, and each time the device waits",
    ),
    "torch.cuda.synchronize": (
        "The host waits for the device in every step",
        "take the line out, or do it where something is timed alone: work is issued while the device computes",
    ),
    "print": (
        "Something is printed in every step",
        "print every so many steps, `if step % 100 == 0:`, or keep the values and print them at each evaluation",
    ),
}
ANOMALIES = ("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly")
"""What switches it on; left out, it stays off."""
CALLS = tuple((name.rpartition(".")[0] or "builtins", name.rpartition(".")[2], name) for name in _TOLD)
"""Module, attribute and name of each."""
Found = dict[tuple[str, Line], list[float]]
"""Seconds of each call, by its name and the user's line that makes it."""


def costly_lines(
    round_: Round, facts: WorkloadFacts, sites: Sites | None = None, plan: Plan | None = None
) -> tuple[Advice, ...]:
    """The most expensive places of the planned run, the dearest first; empty where its length is not known.

    Args:
        round_: of the plan that is adopted: what it has shortened is reported with what is left of it.
        sites: of a script; None: the places of a ``build()`` are those that its objects tell.
        plan: that is adopted in the end, where that is a later one: its edits are made.
    """
    made = frozenset(round_.plan.names()) | frozenset(plan.names() if plan is not None else ())
    whole = round_.whole_run
    if whole is None or whole.seconds <= 0:
        return ()
    costs = [*_of_steps(round_, whole, facts, sites, made), *_between_steps(whole, facts, sites, made)]
    worth = [(seconds, cost) for cost in costs if (seconds := cost.seconds or 0.0) >= LEAST * whole.seconds]
    return tuple(cost for _, cost in sorted(worth, key=lambda item: -item[0])[:MOST])


def mistakes(sites: Sites) -> tuple[Advice, ...]:
    """Ways of evaluating that are no matter of seconds alone: in training mode."""
    seen = sites.run.evaluations if sites.run is not None else ()
    wrong = next((each for each in seen if each.training_mode), None)
    if wrong is None:
        return ()
    return (
        Advice(
            title="The evaluation calls the model in training mode",
            evidence="dropout draws and batch statistics move while the metric is computed",
            file=wrong.file,
            line=wrong.line,
            suggestion="model.eval() before the evaluation and model.train() after it",
        ),
    )


def anomaly_advice(place: Place = (None, None)) -> Advice:
    """Advice on anomaly detection that was left on, at the line that switches it on."""
    return Advice(
        title="Anomaly detection is on",
        evidence="forward passes keep a stack trace of each operator, and backward passes look at every gradient",
        file=place[0],
        line=place[1],
        suggestion="switch it on only to find an operator that makes NaN",
    )


def _of_steps(
    round_: Round, whole: WholeRun, facts: WorkloadFacts, sites: Sites | None, adopted: AbstractSet[str]
) -> Iterator[Advice]:
    """What steps are made of, by what each stage adds to them."""
    exposed = {stage.name: stage.exposed_seconds or 0.0 for stage in round_.stages}
    deepest = next((link for link in reversed(round_.deeper) if link.file and link.line is not None), None)

    def cost(what: str, stages: tuple[str, ...], edit: str, place: Place, others: float = 0.0) -> Advice:
        each = max(sum(exposed.get(name, 0.0) for name in stages) - others, 0.0)
        if deepest is not None and round_.bottleneck in stages:
            place = deepest.file, deepest.line
        return in_steps(what, each, edit, place)

    def in_steps(what: str, each: float, edit: str, place: Place) -> Advice:
        times = f"{time_text(each)} of each of {whole.steps:.0f} steps"
        return _cost(whole, what, each * whole.steps, edit, place, times)

    data, model = facts.dataset, facts.model
    loader = _place(sites, "loader_training")
    made = loader if loader[0] else _place(sites, "batch_without_loader")
    own = (data.file, data.line) if data.file else made
    prepare = (
        "make what is the same in every epoch once: all samples as tensors before the first epoch, where memory holds "
        "them, and index these"
    )
    if "prepared_samples" not in adopted or "prepared_samples" in round_.plan.names():  # else what is left is not known
        yield cost("Making batches", INPUT, prepare, own)
    lighter, fused = "fewer and larger operators: one product for several, no loop in Python", False
    if round_.operators:
        names = " ".join(operator.name for operator in round_.operators)
        fused = "_fused_" in names
        products = sum(one.seconds for one in round_.operators if one.kind == "matmul")
        share = products / max(sum(one.seconds for one in round_.operators), 1e-12)
        if share >= PRODUCTS:
            lighter = f"{share:.0%} of it are products and convolutions: a smaller model or input, or a faster device"
        if "softmax" in names and "bmm" in names and "scaled_dot_product" not in names:
            lighter += ", scaled_dot_product_attention in place of attention from single operators"
        cells = (kind for kind in ("LSTM", "GRU", "RNN") if any(f"({kind}Cell)" in link.name for link in round_.deeper))
        lighter += "".join(f", nn.{kind} for whole sequences in place of a loop of nn.{kind}Cell" for kind in cells)
        dearest = max(round_.operators, key=lambda operator: operator.seconds)
        lighter += f"; {dearest.name} takes most ({time_text(dearest.seconds)} of a step)"
    called = _place(sites, "model")
    place = (model.file, model.line) if model.file else called
    yield cost("The model", ("forward", "backward"), lighter, place, sum(one.seconds for one in round_.own))
    for one in round_.own:
        yield in_steps(one.name, one.seconds, WHOLE_TENSORS, (one.file, one.line))
    if not fused and "fused_optimizer" not in adopted:
        kind = facts.optimizer
        kernel = "one kernel for all parameters: fused=True"
        if not kind.module.startswith("torch.optim"):
            kernel = "one kernel for all parameters: an optimizer of torch.optim with fused=True"
        elif kind.options and "fused" not in kind.options:
            kernel = f"{kind.type} has no fused kernel; AdamW and SGD have one, which train otherwise"
        yield cost("The optimizer's step", ("optimizer",), kernel, _place(sites, "optimizer"))
    yield cost("Moving batches", ("pin", "copy"), "pinned memory and .to(..., non_blocking=True)", loader)


def _between_steps(
    whole: WholeRun, facts: WorkloadFacts, sites: Sites | None, made: AbstractSet[str]
) -> Iterator[Advice]:
    workers = "persistent_workers=True, or fewer workers: each epoch starts them anew and waits for their first batch"
    for name, what, kind, edit in (
        ("checkpoints", "Checkpoints", "checkpoint", "save less often, or the best and the last one only"),
        ("later epochs' starts", "Starting an epoch", "loader_training", workers),
    ):
        part = whole.part(name)
        if part is not None:
            times = f"{time_text(part.each)}, {part.count:.0f} times"
            yield _cost(whole, what, part.seconds, edit, _place(sites, kind), times)
    for site in sites.of("import") if sites is not None else ():
        smaller = "import it where it is used, if this run uses it; else a smaller part of it, or leave it out"
        where = site.file, site.line
        yield _cost(whole, f"Importing {site.call}", site.options["seconds"], smaller, where, "at each start")
    build = whole.part("build")
    if build is not None:
        once = "keep what is made from files at each start (decoded, tokenized) in one file"
        file, _ = _place(sites, "model")
        yield _cost(whole, "The start, before the first batch", build.seconds, once, (file, None), "after the imports")
    run = facts.run
    if run is not None and run.passed_over:
        begin = "have a sampler begin where the run stood, so that nothing before it is read"
        times, loop = f"{run.passed_over} batches before the first step", _place(sites, "loader_training")
        yield _cost(whole, "Batches that are read and passed over", run.passed_over_seconds, begin, loop, times)
    part = whole.part("evaluations")
    if part is None:
        return
    seen = facts.run.evaluations if facts.run is not None else ()
    pass_over = [each for each in seen if each.training_data_seconds]
    on_training = 0.0
    if pass_over:
        latest = pass_over[-1]
        on_training = min((latest.training_data_seconds or 0.0) * part.count, part.seconds)
        yield _cost(
            whole,
            "Passes over the training data that nothing is learnt from",
            on_training,
            "add up the metric of the training's own batches as they are trained on, or evaluate a sample of them",
            (latest.file, latest.line),
            f"{time_text(latest.training_data_seconds or 0.0)}, {part.count:.0f} times",
        )
    places = [(each.training_data, each.file, each.line) for each in reversed(seen) if each.file]
    place = min(places, key=lambda item: item[0], default=(False, None, None))[1:]
    edits = []
    times = f"{time_text(part.each)}, {part.count:.0f} times"
    busiest = [(each.busiest, each.busiest_share or 0.0) for each in seen if each.busiest and each.busiest != place]
    if busiest and busiest[-1][1] > 0.5:
        place, share = busiest[-1]
        times += f", {share:.0%} of it at this line"
        edits.append("operations on whole arrays in place of single elements there, or once for all evaluations")
    if any(each.gradients for each in seen):
        edits.append("with torch.no_grad(): around it, since it keeps what gradients would need")
    one_by_one = [each for each in seen if (each.calls or 0) > max(2 * (each.batches or 0), _SMALL)]
    if one_by_one:
        edits.append(f"one call of the model for many samples, in place of {one_by_one[-1].calls} calls")
    small = [each for each in seen if each.batches and each.samples and each.samples / each.batches < _SMALL]
    if small and "validation_loader" not in made:
        size = round((small[-1].samples or 0) / (small[-1].batches or 1))
        edits.append(f"a larger batch_size of its loader (the mean is {size}), since nothing is stored for gradients")
    edits.append("evaluate less often, or on a part of the samples until the end")
    yield _cost(whole, "Evaluation", part.seconds - on_training, "; ".join(edits), place, times)


def _place(sites: Sites | None, kind: str) -> Place:
    site = next((each for each in sites.sites if each.kind == kind), None) if sites is not None else None
    return (site.file, site.line) if site is not None else (None, None)


def _cost(whole: WholeRun, what: str, seconds: float, edit: str, place: Place, each: str) -> Advice:
    """A part of the run with its place. ``each``: how often and how long, in words."""
    file, line = place
    return Advice(
        title=f"{what}: {time_text(seconds)} of the run ({seconds / whole.seconds:.0%})",
        evidence=with_source(f"{each}, of a run of {time_text(whole.seconds)} by its parts", place),
        seconds=seconds,
        file=file,
        line=line,
        suggestion=edit,
    )


def with_source(evidence: str, place: Place) -> str:
    """The evidence with the line of source that it speaks of, where that is known."""
    file, line = place
    text = linecache.getline(file, line).strip() if file and line else ""
    return f"{evidence} — {text[:120]}" if text else evidence


def time_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{1e3 * seconds:.3g} ms"


@contextmanager
def watched_calls() -> Iterator[Found]:
    """Seconds of such calls by the user's own lines, while it lasts; a library's own are none of them."""

    found: Found = {}

    def timed(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            frame, began = sys._getframe(1), time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                if is_users(frame.f_code.co_filename):
                    line = (frame.f_code.co_filename, frame.f_lineno)
                    found.setdefault((name, line), []).append(time.perf_counter() - began)

        return run

    with ExitStack() as stack:
        for module, attribute, name in CALLS:
            owner = import_module(module)
            call = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, call)
            setattr(owner, attribute, timed(call, name))
        yield found


def forced_advice(name: str, line: Line, count: float, seconds: float, step: float) -> Advice | None:
    """Advice on a call that is made so often, for so long, in each step; None where it takes next to nothing."""
    share = min(1.0, seconds / step) if step > 0 else 0.0
    if share < LEAST_SHARE:
        return None
    title, suggestion = _TOLD[name]
    evidence = f"{name}() {count:.3g} times in a step, {seconds * 1e3:.3g} ms, {share:.0%} of it, measured"
    return Advice(title=title, evidence=evidence, share=share, file=line[0], line=line[1], suggestion=suggestion)


def advice_of_calls(found: Found, step: float, batches: int = 1) -> list[Advice]:
    """Advice on the calls that were seen in one step, of so many micro-batches for each of what was watched."""
    calls = (
        forced_advice(name, line, len(times) * batches, sum(times) * batches, step)
        for (name, line), times in sorted(found.items())
    )
    return [item for item in calls if item is not None]
