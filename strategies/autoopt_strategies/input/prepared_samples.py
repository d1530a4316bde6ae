"""Prepared samples: what every epoch prepares again is prepared once, or a whole batch at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from autoopt import Applies, Case, Change, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.rewriting.source import edits_of
from autoopt_strategies.input import batches, probes
from autoopt_strategies.input.kept_calls import KeepCalls, decorated, repeated_calls, repeated_in_steps
from autoopt_strategies.input.unaugmented import KeepUnaugmented, statements
from autoopt_strategies.input.workers import NONE, WORKER_START, most_workers, so_many, waits
from autoopt_strategies.predictions import (
    LEAST_SAVING,
    PATIENCE,
    READING,
    after_paying,
    gain,
    sample_seconds,
    seconds_of,
)
from autoopt_strategies.trying import Setting, Settings, climb, first_line, kept

PREPARED = "autoopt_strategies.input.prepared"
"""The module that a patch takes its code from; it imports torch."""
KEPT = {"samples": "kept", "heads": "kept", "unaugmented": "unaugmented", "calls": "calls"}
"""Forms that keep samples or what they are made of, and the probe that has seen it."""
WRAPPERS = {
    "rows": ("Rows",),
    "samples": ("KeptSamples", "MappedSamples"),
    "heads": ("KeptHeads", "MappedHeads"),
    "files": ("FilesInMemory",),
    "batches": ("IndexedBatches",),
    "threads": ("ThreadedSamples",),
}
"""The class around the dataset, and the one that keeps its samples on the disk, by form."""
READ_BY = {"samples": ("threads", "threads"), "rows": ("batches", "index")}
"""Forms whose samples may be read in another one, and the option that says so."""
FREE = {"memory": 0.5, "disk": 0.8, "rows": 0.25, "files": 0.25}
"""Share of the room there that samples may take: others need some, and rows exist twice while they are made."""


class PreparedSamples(Strategy):
    """Prepares once what every epoch prepares again, or reads a whole batch at a time.

    What it does: wraps the dataset. ``form``: ``rows`` (all samples collated once, by one index where
        the dataset takes that; a batch is rows of tensors),
        ``samples`` (each as it is), ``heads`` (what the transforms before the first random one make), ``unaugmented``
        (what ``__getitem__`` makes before its first random draw; a patch divides it there), ``calls`` (what functions
        of the user's make of the same arguments for the dataset or for ``collate_fn``, or in the steps of a script
        without a loader; a patch decorates them),
        ``files`` (the encoded files), ``batches`` (the dataset is asked for a whole batch by one index), ``tensors``
        (Hugging Face's torch format), ``threads`` (the samples of a batch are read at the same time). ``where``: in
        ``memory``, on the ``device``, on ``disk`` where they do not fit into memory, or in the ``dataset`` itself,
        which keeps nothing. Processes or threads read what is kept, whichever is sooner; threads where a probe saw
        the same samples.
    When it helps: reading, decoding, Python and collating take the time, and several epochs are planned. Kept samples
        make workers needless, so that both are tried together.
    When it does not: augmentation is random from the start, samples are slices of memory already, a single epoch.
    What it costs: room for the samples, and one reading of the dataset before the first step, charged to the run.
        Refused where they take too much of the room. It is tried on real samples that they are the same to the bit.
    Source: https://docs.pytorch.org/docs/stable/data.html (``__getitems__``); Leclerc et al., "FFCV", CVPR 2023;
        Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024, section 2
    """

    name = "prepared_samples"
    title = "samples prepared once"
    stages = frozenset({"storage", "preparation", "collate", "pin", "copy"})
    risk = Risk.EXACT
    after = frozenset({"workers", "pin_memory", "decoding"})
    example = Example({"form": "samples", "where": "memory"}, inspected={"kept": {"deterministic": True}})

    def applies(self, case: Case) -> Applies:
        facts, before = case.workload, case.plan.setting(self.name) or {}
        if before.get("form") in (*KEPT, "rows"):  # what is measured by now is without what other forms would save
            return Applies.no("what it prepares is kept already")
        if not _own_lines(case):
            if not facts.dataset.map_style:
                return Applies.no(f"{facts.dataset.type} is an IterableDataset, whose samples have no index")
            if not facts.batch_size:
                return Applies.no("the loader does not batch, so that training might change a kept sample in place")
        found = list(_forms(case))
        if any(isinstance(each, dict) for _, each in found):
            return Applies.yes()
        reasons = {reason: form for form, reason in reversed(found) if isinstance(reason, str)}
        return Applies.no("; ".join(f"{form}: {reason}" for reason, form in reversed(reasons.items())))

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """The stages that are left; less what is paid once, half of it where the first epoch would read as much."""
        left = _left(case, setting)
        if left is None:
            return None
        left |= _evaluation_left(case, left)
        with_it = {change.strategy: change.setting for change in self.companions(case, setting)}
        step = gain(
            case,
            left,
            workers=0 if setting["form"] == "rows" else with_it.get("workers", {}).get("num_workers"),
            threads=with_it.get("threads", {}).get("threads"),
        )
        if step is not None and setting["form"] in ("batches", "tensors", "calls"):
            step = step.as_kind("tried")
        once = self.once_seconds(case, setting) or 0.0
        return after_paying(case, step, once, least=once / 2) if once else step

    def once_seconds(self, case: Case, setting: Setting) -> float | None:
        """All samples read once, by so many processes; unknown before that was measured."""
        form, count = setting["form"], case.workload.train_samples or 0
        if setting.get("loop"):
            return float(_found(case, "steps")["seconds"] * _epoch(case))
        if form in KEPT:
            return reading_seconds(_kept(case, setting), count, setting)
        stages = {"rows": READING, "files": ("storage",)}.get(form, ())
        if case.pipeline is None:
            return None
        seconds = sum((seconds_of(case, stage) for stage in stages), 0.0)
        ratio = _found(case, "batches").get("ratio", 1.0) if "index" in setting else 1.0
        return ratio * seconds * count / (case.workload.batch_size or 1)

    def settings(self, case: Case) -> Settings:
        """The form that promises most first, until one is kept."""
        possible = [each for _, each in _forms(case) if isinstance(each, dict)]
        promised = {id(each): self.predict(case, each) for each in possible}
        for setting in sorted(possible, key=lambda each: -getattr(promised[id(each)], "value", 0.0)):
            if setting["form"] == "threads":
                most = min(32, case.workload.batch_size or 4)
                if (yield from climb(4, 2, most, lambda number: {**setting, "threads": number})):  # noqa: B023
                    return
            elif kept((yield setting)):
                return

    def companions(self, case: Case, setting: Setting) -> list[Change]:
        """No workers next to what is prepared, which rows have none of by themselves; some next to transforms that are
        left, where the bottleneck moves to these."""
        there = case.loader_option("num_workers")
        varied = setting["form"] == "calls" and setting["each"]
        if varied or setting["form"] in ("samples", "unaugmented", "batches"):
            return [Change(strategy="workers", setting=dict(NONE))] if there else []
        if setting["form"] != "heads" or there:
            return []
        number, cores = max(1, (case.environment.cores or 2) // 2), case.environment.cores or 1
        threads, left = cores - number if case.device == "cpu" else 0, _left(case, setting) or {}
        found = [Change(strategy="workers", setting=so_many(case, number))]
        found += [Change(strategy="threads", setting={"threads": threads})] if threads else []
        alone, fed = gain(case, left), gain(case, left, workers=number, threads=threads or None)
        return found if alone is None or fed is None or fed.value > alone.value else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        form, where = setting["form"], setting["where"]
        if form == "tensors":
            return setup.with_dataset(batches.as_tensors)
        if form == "unaugmented":
            return setup.with_dataset(KeepUnaugmented(setting["split"]["line"], setting.get("threads", 0)))
        if form == "calls":
            kept_calls = KeepCalls(tuple((each["module"], each["function"]) for each in setting["functions"]))
            return setup.with_model(kept_calls) if setting.get("loop") else setup.with_dataset(kept_calls)
        options = {name: value for name, value in setting.items() if name not in ("form", "where") and value}
        inner, option = READ_BY.get(form, ("", ""))
        if option in options:
            setup = setup.with_dataset(Wrap(f"{PREPARED}:{WRAPPERS[inner][0]}", ((option, options.pop(option)),)))
        made = setup.with_dataset(Wrap(f"{PREPARED}:{WRAPPERS[form][where == 'disk']}", tuple(options.items())))
        if form == "rows":  # tensors must not be handed from process to process, nor pinned
            return made.with_loader(collate_fn=batches.collate_whole, num_workers=0, pin_memory=False)
        return made.with_loader(collate_fn=batches.collate_whole) if form == "batches" else made

    def recipe(self, setting: Setting) -> Recipe:
        form = setting["form"]
        if form == "tensors":
            code = 'dataset = dataset.with_format("torch")'
            edits: tuple[Edit, ...] = (Edit("dataset", ('{dataset}.with_format("torch")',)),)
        elif form == "unaugmented":
            threads = {"threads": setting["threads"]} if "threads" in setting else {}
            named = (batches.kept_by_index, batches.read_by_threads)[: 2 if threads else 1]
            code = "def __getitem__(self, index): return augment(*self.unaugmented(index))  # which keeps by index"
            edits = edits_of([{**setting["split"], **threads}], statements, *named)
        elif form == "calls":
            code = f"@functools.cache  # of {', '.join(each['function'] for each in setting['functions'])}"
            edits = edits_of(setting["functions"], decorated, batches.kept_by_arguments)
        else:
            code, edits = _CODE[form].format(**{"device": "cpu", **setting}), ()
        return Recipe.noted(code, f"of the dataset, once before training: {code}", edits=edits)

    def inspect(self, live: Any) -> Setting:
        """What each form finds on real samples, and free space for temporary files."""
        dataset, loader = batches.dataset_of(live.workload), live.training.loader
        if getattr(dataset, "empty", False):  # the script's own lines make its batches
            return {}
        tries: dict[str, Callable[[], Setting | None]] = {
            "kept": lambda: probes.kept(dataset),
            "unaugmented": lambda: probes.unaugmented(dataset),
            "calls": lambda: repeated_calls(dataset, loader.loader.collate_fn, probes.spread(dataset)),
            "files": lambda: probes.files(dataset),
            "batches": lambda: probes.batches(dataset, loader.batch_size or probes.SIZE),
            "tensors": lambda: probes.tensors(dataset, loader.loader.collate_fn),
        }
        found: Setting = {"free_disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free}
        for form, probe in tries.items():
            try:
                found[form] = probe()
            except Exception as error:  # a form that fails says nothing of the others
                found[form] = {"reason": first_line(error)}
        return found

    def inspect_steps(self, live: Any) -> Setting:
        """What the lines of a script without a loader make again in every epoch."""
        empty = getattr(batches.dataset_of(live.workload), "empty", False)
        return {"steps": repeated_in_steps(live.training)} if empty else {}


_CODE = {
    "rows": "rows = [column.to('{device}') for column in default_collate(list(dataset))]  # a batch: column[indices]",
    "samples": "samples = [dataset[i] for i in range(len(dataset))]",
    "heads": "samples = [dataset[i] for i in range(len(dataset))]  # with its first {first} transforms alone",
    "files": 'shutil.copytree("{root}", "/dev/shm/data", dirs_exist_ok=True)  # and name this folder',
    "batches": "def __getitems__(self, indices): return self[indices]  # as {index}; collate_fn=lambda batch: batch",
    "threads": "def __getitems__(self, indices): return list(pool.map(self.__getitem__, indices))  # of {threads}",
}


def no_whole_batches(case: Case) -> str:
    """Why batches cannot come out of the dataset whole; empty where they can."""
    facts = case.workload
    if not facts.dataset.map_style:
        return f"{facts.dataset.type} is an IterableDataset, which is not indexed"
    if facts.loader.custom_collate:
        return "the loader collates in a way of its own"
    if not facts.batch_size:
        return "the loader does not batch"
    if facts.dataset.has_getitems and facts.dataset.type != "TensorDataset":
        return "the dataset fetches whole batches already"
    return ""


def _found(case: Case, form: str) -> Setting:
    if form in KEPT.values() and case.workload.dataset.changes:
        return {"reason": "the script puts other contents into its dataset, which kept samples would not show"}
    return dict(case.inspected("prepared_samples").get(form) or {})


def _kept(case: Case, setting: Setting) -> Setting:
    """What was found of samples that a setting keeps; of functions, of those that it has."""
    found = _found(case, KEPT[setting["form"]])
    alone = setting["form"] == "calls" and not setting["each"]
    return found.get("shared", found) if alone else found


def samples_repeat(case: Case) -> bool:
    """Whether samples are known to be the same every time."""
    found = _found(case, "kept")
    return found.get("deterministic", False) if found else case.workload.dataset.deterministic is True


def _forms(case: Case) -> Iterator[tuple[str, Setting | str]]:
    """Each form with its setting, or why it is none here."""
    if _own_lines(case):
        yield "calls", _steps(case)
        return
    yield "samples", _samples(case)
    yield "rows", _rows(case)
    yield "unaugmented", _unaugmented(case)
    yield from (("calls", each) for each in _calls(case))
    found, unknown = _found(case, "batches"), "the dataset does not take many indices at once"
    indexed = {"form": "batches", "where": "dataset", "index": found["index"]} if "index" in found else None
    yield "batches", no_whole_batches(case) or indexed or found.get("reason") or unknown
    found = _found(case, "tensors")
    tensors = {"form": "tensors", "where": "dataset"} if "ratio" in found else None
    yield "tensors", tensors or found.get("reason") or "the dataset is none of Hugging Face's"
    yield "files", _files(case)
    yield "threads", _threads(case)


def _samples(case: Case) -> Setting | str:
    found = _found(case, "kept")
    if found.get("prefix"):
        return _of_training(case, found, "heads", first=found["prefix"])
    if not samples_repeat(case):
        return found.get("reason") or "samples are not known to be the same every time"
    return _of_training(case, found, "samples")


def reading_seconds(found: Setting, count: int, setting: Setting) -> float:
    """Seconds in which so many processes read all samples once and hand them over, or threads at the same time."""
    seconds, handing = found.get("sample_seconds") or 0.0, found.get("handing_seconds") or 0.0
    if workers := setting.get("workers"):
        return float(count * (seconds / workers + handing) + workers * WORKER_START)
    if setting.get("threads"):
        return float(count * seconds * (found.get("threads") or 1.0) + WORKER_START)  # less is not worth its lines
    return float(count * seconds)


def _unaugmented(case: Case) -> Setting | str:
    found, kept = _found(case, "unaugmented"), _found(case, "kept")
    if "where" not in found:
        return found.get("reason") or "where samples draw their first random numbers is not known"
    if samples_repeat(case) or kept.get("prefix"):
        return "samples are kept as they are, or as their transforms make them"
    return _of_training(case, found, "unaugmented", split=found["where"])


def _calls(case: Case) -> Iterator[Setting | str]:
    """All functions; and those alone that make the same for every sample, which take no room, and may have workers."""
    found = _found(case, "calls")
    if "functions" not in found:
        yield found.get("reason") or "which functions make the same of the same arguments is not known"
        return
    if found["sample_bytes"]:
        yield _of_training(case, found, "calls", each=True, functions=found["functions"])
    shared = found.get("shared") if found["sample_bytes"] else found
    if shared:
        yield {"form": "calls", "where": "memory", "each": False, "functions": shared["functions"]}


def _own_lines(case: Case) -> bool:
    """Whether a script's own lines make its batches, and no loader."""
    return case.sites is not None and not case.sites.of("loader_training")


def _steps(case: Case) -> Setting | str:
    """Functions that the lines of a script without a loader call for the same in every epoch."""
    found, free = _found(case, "steps"), case.workload.available_ram_bytes or 0
    if "functions" not in found:
        return found.get("reason") or "which functions make the same of the same arguments is not known"
    size = found["bytes"] * (case.planned_steps or _epoch(case))  # as if none came twice: nobody knows how many do
    if size > FREE["memory"] * free:
        return f"what they make would take {size / 1e9:.1f} GB of {free / 1e9:.1f} GB free memory"
    return {"form": "calls", "where": "memory", "each": True, "loop": True, "functions": found["functions"]}


def _epoch(case: Case) -> float:
    """Steps until the same data come again, as far as that is known; 0 where it is not."""
    run = case.workload.run
    return float(case.workload.steps_per_epoch or (run.evaluate_every if run is not None else None) or 0)


def _of_training(case: Case, found: Setting, form: str, **rest: Any) -> Setting | str:
    """How the training's samples are kept in a form, with the rest of its setting; or why they cannot be."""
    where = with_room(case, found, case.workload.train_samples or 0, alone=form in ("unaugmented", "calls"))
    return where if isinstance(where, str) else {"form": form, **where, **rest}


def with_room(case: Case, found: Setting, count: int, *, alone: bool = False) -> Setting | str:
    """Where samples fit, and the processes or threads that read them once; or why they cannot be kept.

    Args:
        found: of the samples by :func:`probes.kept`.
        count: of them.
        alone: what a patch edits in the source is read by the training's process alone, and kept in its memory.
    """
    facts = case.workload
    size = (found.get("sample_bytes") or facts.dataset.sample_bytes or 0) * count
    free = {"memory": facts.available_ram_bytes, "disk": case.inspected("prepared_samples").get("free_disk_bytes")}
    if not size or free["memory"] is None:
        return "how much memory the samples would take is not known"
    spawned = facts.loader.multiprocessing_context in ("spawn", "forkserver")  # each worker would get a copy of them
    fitting = [where for where in ("memory", "disk")[: 1 if alone else 2] if size <= FREE[where] * (free[where] or 0)]
    if spawned and "memory" in fitting:
        fitting.remove("memory")
    if not fitting:
        return f"they would take {size / 1e9:.1f} GB of {free['memory'] / 1e9:.1f} GB free memory, and of the disk"
    cores = case.environment.cores or 1
    many = {most_workers(case, cores)} if waits(case) else set[int]()
    possible: list[Setting] = [{}] if alone else [{"workers": number} for number in {0, min(cores, 8), *many}]
    if found.get("threads"):
        possible.append({**({} if alone else {"workers": 0}), "threads": min(32, facts.batch_size or 4)})
    taken = [reading_seconds(found, count, how) for how in possible]
    filling = min(taken)
    if case.seconds_left is not None and filling > PATIENCE * case.seconds_left:
        return f"reading them takes {filling:.0f} s of {case.seconds_left:.0f} s left for the search"
    return {"where": fitting[0], **possible[taken.index(filling)]}


def _rows(case: Case) -> Setting | str:
    facts = case.workload
    if refused := no_whole_batches(case):
        return refused
    if not samples_repeat(case):
        return "samples are random, or not known to be the same every time"
    if not facts.batch_bytes:
        return "batches hold no tensors"
    if facts.beside_tensors:
        return f"batches hold more than tensors, which cannot be put into one ({facts.beside_tensors})"
    if facts.static_shapes is False:
        return "samples differ in shape, so that they do not fit into one tensor"
    size = (facts.dataset.sample_bytes or facts.batch_bytes // (facts.batch_size or 1)) * (facts.train_samples or 0)
    room = facts.available_ram_bytes if case.device == "cpu" else case.environment.device_memory_bytes
    if not size or not room:
        return "the size of the data, or of the memory, is not known"
    if size > FREE["rows"] * room:
        return f"the data takes {size / 1e9:.1f} GB, more than a quarter of {room / 1e9:.1f} GB"
    where = {"where": "memory"} if case.device == "cpu" else {"where": "device", "device": case.environment.device}
    found = _found(case, "batches")
    index = found.get("index") or found.get("whole")
    return {"form": "rows", **where, **({"index": index} if index else {})}


def _files(case: Case) -> Setting | str:
    found = _found(case, "files")
    if "root" not in found:
        return found.get("reason") or "which files the dataset reads is not known"
    room = min(found["room"], case.workload.available_ram_bytes or 0)
    if found["bytes"] > FREE["files"] * room:
        return f"{found['bytes'] / 1e9:.2f} GB of files, and {room / 1e9:.2f} GB free in memory"
    waiting = seconds_of(case, "storage")
    if case.pipeline is not None and waiting < LEAST_SAVING * case.pipeline.step_seconds:
        return "storage is hardly waited for: the system keeps the files in memory"
    copying = waiting * (case.workload.train_samples or 0) / (case.workload.batch_size or 1)
    if case.seconds_left is not None and copying > PATIENCE * case.seconds_left:
        return f"copying takes {copying:.0f} s of {case.seconds_left:.0f} s left for the search"
    return {"form": "files", "where": "memory", "root": found["root"]}


def _threads(case: Case) -> Setting | str:
    if case.workload.dataset.has_getitems:
        return "the dataset gives whole batches already"
    if not samples_repeat(case):
        return "samples draw random numbers, which threads would draw in another order in every run"
    if case.plan.setting("prepared_samples") is not None:
        return "samples are prepared already"
    seen = _found(case, "kept")
    if "threads" in seen and seen["threads"] is None:
        return "threads would get other samples: the dataset has one position, or a handle of one thread"
    if seen.get("threads", 0.0) > 1.0 - LEAST_SAVING:
        return f"threads take {seen['threads']:.2g} times as long to read samples"
    return {"form": "threads", "where": "dataset", "threads": 4}


def _evaluation_left(case: Case, left: dict[str, float]) -> dict[str, float]:
    """Seconds of a script's evaluations per step, whose samples of the training's class are read as that reads them."""
    run, each, others = case.workload.run, sample_seconds(case), evaluated_alike(case)
    if run is None or not run.evaluate_every or not each or not others:
        return {}
    workers = max(1, *(site.options.get("num_workers") or 0 for site in others))
    now = seconds_of(case, "evaluate")
    before = sum(seconds_of(case, name) for name in READING)
    after = sum(left.get(name, seconds_of(case, name)) for name in READING)
    reading = min(each * run.samples_per_evaluation / workers / run.evaluate_every, now)
    return {"evaluate": now - reading * max(1.0 - after / before, 0.0)} if before else {}


def evaluated_alike(case: Case) -> tuple[Any, ...]:
    """The loaders of a script's evaluations, where these read samples of the training's class, as that reads them."""
    if case.sites is None:
        return ()
    found = case.sites.of("loader_training"), case.sites.of("loader_validation")
    kinds = [{site.options.get("dataset") for site in sites} for sites in found]
    return found[1] if kinds[0] & kinds[1] - {None} else ()


def evaluation_reads(case: Case) -> float:
    """Share of the seconds of a sample that an evaluation still takes next to what the plan keeps for the training."""
    setting = case.plan.setting("prepared_samples") or {}
    if setting.get("form") not in (*KEPT, "rows") or not evaluated_alike(case):
        return 1.0
    return float(_kept(case, setting).get("hit", 0.0)) if setting["form"] in KEPT else 0.0


def _left(case: Case, setting: Setting) -> dict[str, float] | None:
    """Seconds of the stages that a form changes; None where nobody knows."""
    form, peaks = setting["form"], case.environment.peaks
    if form == "rows":  # copied at memory speed, and one launch for each tensor
        if not peaks.memory_bytes_per_second:
            return None
        rows = 2 * case.workload.batch_bytes / peaks.memory_bytes_per_second
        rows += (peaks.launch_seconds or 0.0) * (2 * len(case.workload.batch) + 4)
        return dict.fromkeys(("storage", "preparation", "pin", "copy"), 0.0) | {"collate": rows}
    if setting.get("loop"):
        making = seconds_of(case, "preparation")
        return {"preparation": max(making - _found(case, "steps")["seconds"], 0.0)}
    if form == "calls":
        return {name: seconds_of(case, name) * _kept(case, setting)["ratio"] for name in READING}
    if form in KEPT:
        found, speed = _kept(case, setting), peaks.storage_bytes_per_second
        reading = case.workload.batch_bytes / speed if speed and setting["where"] == "disk" else 0.0
        return {"storage": reading, "preparation": seconds_of(case, "preparation") * found.get("hit", 0.0)}
    if form == "files":
        return {"storage": 0.0}
    if form == "threads":  # waiting is shared out among them; Python holds the GIL and is not
        ratio, stages = _found(case, "kept").get("threads"), ("storage", "preparation")
    else:
        ratio, stages = _found(case, form).get("ratio"), ("preparation", "collate")
    return None if ratio is None else {name: seconds_of(case, name) * ratio for name in stages}
