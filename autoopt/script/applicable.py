"""What follows from the sites of a script: setups that can be put on it from outside, advice, and where the sites are
once its files have other lines. torch is not imported here."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from autoopt.records import Advice, Place, Site, Sites
from autoopt.setup import Batch, Distributed, Setup
from autoopt.simplify.costly import ANOMALIES, anomaly_advice, forced_advice, mistakes

P = TypeVar("P", bound=Place)
WRAPPER = "DistributedDataParallel"
READ_BY = ("collate_fn", "num_workers", "pin_memory")
"""Options of a loader that go with a dataset that is wrapped: what is wrapped alike for evaluation is read alike."""
_OFTEN = 0.5
"""Times a training step from which on a wait is worth a word."""


def in_lines(setup: Setup) -> bool:
    """Whether nothing but a script's own lines can say a setup: micro-batches, and gradients that are scaled."""
    return setup.batch.accumulation is not None or setup.precision.loss_scaling


def inapplicable(setup: Setup, sites: Sites, *, patched: bool = False) -> str | None:
    """Why a setup cannot be put on a script from outside; None where it can.

    Args:
        patched: its lines are changed where nothing else says it.
    """
    if in_lines(setup) and not patched:
        return "micro-batches and scaled gradients are said by its lines: autoopt apply writes them"
    loader = sites.of("loader_training")
    reason = without_loader(setup, sites)
    if reason:
        return reason
    if len(loader) > 1 and (setup.dataset or setup.collate or setup.sampler):
        return "several lines make training loaders, each with data of its own: it needs build()"
    if setup.evaluation and not sites.of("loader_validation"):
        return "the script was not seen to evaluate with a DataLoader"
    if setup.precision.dtype is not None and any(site.options.get("enabled") for site in sites.of("autocast")):
        return "the script trains under autocast already"
    if setup.compile is not None and sites.of("compile"):
        return "the script compiles already"
    if setup.transfer.prefetch:
        return "batches are moved by the script's own lines: it needs build()"
    how = setup.distributed
    if how.processes > 1:
        return "a script is started in several processes by a launcher (torchrun), or needs build()"
    if how.quiet_accumulation or how.sharded_optimizer or how.fully_sharded or how.own_cores:
        return "what its processes share out is said by the script's own lines: it needs build()"
    if how != Distributed() and not any(site.call == WRAPPER for site in sites.of("model")):
        return f"the script was not seen to make a {WRAPPER}"
    wrapped = {
        "loss": setup.loss,
        "training step": setup.step,
        "schedule": setup.scheduler,
        "cadence of evaluations and checkpoints": setup.cadence != Setup().cadence,
    }
    for what, changed in wrapped.items():
        if changed:
            return f"the {what} is the script's own: it needs build()"
    batch = setup.batch
    if batch.warmup_steps:
        return "a warm-up needs lines of its own in the script: it needs build()"
    in_its_lines = batch.accumulation is not None and batch.learning_rate_factor == 1.0  # the same batch
    if batch == Batch() or in_its_lines:
        return None
    if len(loader) != 1 or not loader[0].options.get("batch_size"):
        return "no single DataLoader of the script makes its batches: it needs build()"
    if sites.of("scheduler"):
        return "the script's schedule counts steps of the batch that it has: it needs build()"
    return None


def own_setup(sites: Sites | None) -> Setup:
    """What a script does by itself, as far as it decides what else may be done."""
    if sites is None or not any(site.options.get("compiled") for site in sites.of("model")):
        return Setup()
    options = next((site.options for site in sites.of("compile")), {})
    return Setup().with_compile(mode=options.get("mode"), dynamic=options.get("dynamic"))


def added_up(size: int | None, accumulation: int, sites: Sites) -> int:
    """Batches of the script as it is that an optimizer's step adds up.

    Args:
        size, accumulation: another micro-batch, and how many of them make the same step.
        sites: of the script. What they have seen is a mean, with the rest of an epoch in it.
    """
    sizes = {site.options.get("batch_size") for site in sites.of("loader_training")}
    own = sizes.pop() if len(sizes) == 1 else None
    return round(sites.accumulation) if not own or not size else max(size * accumulation // own, 1)


def marks_steps(setup: Setup, sites: Sites) -> bool:
    """Whether a setup replays CUDA graphs that hold the gradients of several micro-batches, so that its steps must be
    distinguished."""
    several = (setup.batch.accumulation or round(sites.accumulation)) > 1
    return several and setup.compile is not None and setup.compile.replays_graphs


def without_loader(setup: Setup, sites: Sites) -> str | None:
    """Why a setup of how data are read cannot be put on a script without a DataLoader, and what makes its batches.

    None where the script has one, or the setup changes nothing of it.
    """
    reads = setup.loader or setup.dataset or setup.collate or setup.sampler or setup.transfer.non_blocking
    if not reads or sites.of("loader_training"):
        return None
    called = next(iter(sites.of("batch_without_loader")), None)
    if called is None:
        return "the script has no DataLoader: its own lines make the batches"
    place = f"{called.file}:{called.line}"
    return f"the script has no DataLoader: its own lines make the batches that the model is called with ({place})"


def advice_of(sites: Sites, left_out: Sequence[str] = ()) -> tuple[Advice, ...]:
    """Calls of every step that a user may leave out, or make less often.

    Waits for a device make the host stand still until it has done all it was given. Garbage collected by force, caches
    emptied and prints have the share of a step that they were seen to take.

    Args:
        left_out: calls that the adopted plan leaves out, as its flag names them.
    """
    calls = [site for site in sites.of("forced") if f"{site.file}:{site.line} {site.call}" not in left_out]
    forced = (
        forced_advice(site.call, (site.file, site.line), site.per_step or 0.0, site.seconds_per_step or 0.0, step)
        for site in calls
        if site.call not in ANOMALIES and (site.per_step or 0.0) >= _OFTEN and (step := sites.step_seconds or 0.0)
    )
    waits = (
        Advice(
            title=f".{site.call}() waits for the device in each step",
            evidence=f"{site.per_step:.1f} times a training step, in {site.function}",
            file=site.file,
            line=site.line,
            suggestion="read it every so many steps, or keep the tensor and read all of them at once",
        )
        for site in sites.of("device_wait")
        if site.options.get("device") != "cpu" and (site.per_step or 0.0) >= _OFTEN
    )
    anomalies = (anomaly_advice((site.file, site.line)) for site in calls if site.call in ANOMALIES)
    return (*mistakes(sites), *anomalies, *waits, *(item for item in forced if item is not None))


def moved(sites: Sites, texts: Mapping[str, str]) -> Sites:
    """The same sites where their lines are in these texts.

    Args:
        sites: of the files as they are.
        texts: of some of the files in place of what they hold, by path.
    """
    lines: dict[str, Callable[[int], tuple[int, bool]]] = {}
    for path, text in texts.items():
        if os.path.exists(path):
            before = Path(path).read_bytes().decode()
            lines[os.path.relpath(path, sites.cwd)] = _lines(before.splitlines(), text.splitlines())

    def place(there: P) -> P:
        if there.file not in lines:
            return there
        (line, _), (end, same) = lines[there.file](there.line), lines[there.file](there.end_line)
        column = {"end_column": None} if isinstance(there, Site) and not same else {}
        return there.model_copy(update={"line": line, "end_line": end, **column})

    def site(there: Site) -> Site:
        used = tuple(map(place, there.used))
        callers = tuple(tuple(map(place, way)) for way in there.callers)
        return place(there).model_copy(update={"used": used, "callers": callers})

    return sites.model_copy(update={"sites": tuple(map(site, sites.sites))})


def _lines(before: list[str], after: list[str]) -> Callable[[int], tuple[int, bool]]:
    """From a line's number to its number afterwards, and whether it is the same there."""
    found: dict[int, tuple[int, bool]] = {}
    for kind, first, last, begin, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for index in range(first, last):
            place = min(begin + index - first, max(end - 1, begin))
            found[index + 1] = place + 1, kind == "equal"
    return lambda line: found.get(line, (line, False))
