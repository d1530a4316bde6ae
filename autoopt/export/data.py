"""The parts of the script that bring the data: loaders, their generators, the way to the device."""

from __future__ import annotations

from typing import Any

from autoopt.export import pieces
from autoopt.export.draft import Draft
from autoopt.export.inline import NotExportable
from autoopt.export.text import call, indented, literal

_WORKER_OPTIONS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_OF_VALIDATION = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context")
_SPECIAL_BATCH = "cannot"


def add_data(draft: Draft) -> None:
    """Adds the functions ``training_loader`` and ``validation_loader`` and what moves batches."""
    draft.use("torch")
    draft.use("torch.utils.data", "DataLoader")
    add_moving(draft)
    if draft.odd_loader:
        _add_engine_loaders(draft)
    else:
        if draft.own_loader is not False or draft.has_evaluate:
            add_loader_like(draft)
        draft.add(_training_loader(draft))
        if draft.has_evaluate:
            draft.add(_validation_loader(draft))


def add_moving(draft: Draft) -> None:
    """Adds ``to_device`` and ``moved``."""
    draft.use("collections.abc", "Mapping")
    plain = (
        all(item.path.startswith("[") and "]." not in item.path for item in draft.facts.batch) if draft.facts else True
    )
    blocking = ", non_blocking=True" if draft.setup.transfer.non_blocking else ""
    if plain:
        draft.add(pieces.TO_DEVICE.format(non_blocking=blocking))
    else:
        draft.inliner.want("autoopt.benchmark.transfer", "mapped")
        draft.add(
            "def to_device(batch, device):\n"
            '    """The batch with every tensor on the device."""\n'
            f"    return mapped(batch, lambda tensor: tensor.to(device{blocking}))"
        )
    if draft.setup.transfer.prefetch:
        draft.use("collections", "deque")
        draft.inliner.want("autoopt.benchmark.transfer", "tensors")
        draft.add(pieces.COPIED_AHEAD.format(ahead=draft.setup.transfer.prefetch))
    else:
        draft.add(pieces.MOVED)


def add_loader_like(draft: Draft) -> None:
    """Adds ``loader_like``: the user's own loader once more, with some options changed."""
    draft.use("torch.utils.data", "BatchSampler", "IterableDataset", "RandomSampler", "SequentialSampler")
    draft.use("torch.utils.data.dataloader", "default_convert")
    draft.add(pieces.LOADER_LIKE)


def loader_options(draft: Draft, *, validation: bool = False) -> dict[str, str]:
    """The plan's DataLoader options as Python, without those that torch refuses together."""
    options: dict[str, Any] = dict(draft.setup.loader)
    if validation:
        options = {name: value for name, value in options.items() if name in _OF_VALIDATION}
        options |= draft.setup.evaluation
    workers = options.get("num_workers")
    if workers is None and draft.facts is not None:
        workers = draft.facts.loader.num_workers
    if not workers:
        options = {name: value for name, value in options.items() if name not in _WORKER_OPTIONS}
    made = {}
    for name, value in options.items():
        try:
            made[name] = draft.inliner.expression(value)
        except NotExportable as problem:
            draft.notes.append(f"the DataLoader option {name} is missing here: {problem}")
    return made


def _dataset(draft: Draft, source: str) -> list[str]:
    lines = [f"dataset = {source}"]
    lines += [f"dataset = {call(made, ['dataset'])}" for made in draft.expressions(draft.setup.dataset, "dataset")]
    return lines


def _training_loader(draft: Draft) -> str:
    options = loader_options(draft)
    size = draft.setup.batch.size
    lines = [
        "def training_loader(workload):",
        '    """The loader that was measured, and the generators that every epoch seeds anew."""',
    ]
    theirs = _theirs(draft, {**({"batch_size": literal(size)} if size else {}), **options})
    plain = _from_dataset(draft, options, literal(size) if size else "workload.batch_size")
    if draft.own_loader:
        body = theirs
    elif draft.own_loader is False:
        body = plain
    else:
        body = ["if isinstance(workload.train_data, DataLoader):", *(indented(line) for line in theirs), *plain]
    return "\n".join([*lines, *(indented(line) for line in body)])


def _theirs(draft: Draft, changes: dict[str, str]) -> list[str]:
    if "worker_init_fn" in changes:
        draft.inliner.want("autoopt.benchmark.loader", "InTurn")
        both = call("InTurn", ["workload.train_data.worker_init_fn", changes["worker_init_fn"]])
        changes = {**changes, "worker_init_fn": both}
    made = call("loader_like", ["workload.train_data", "dataset", "own"], changes, indent=11)
    return [*_dataset(draft, "workload.train_data.dataset"), "own = {}", f"return {made}, own"]


def _from_dataset(draft: Draft, options: dict[str, str], size: str) -> list[str]:
    lines = _dataset(draft, "workload.train_data")
    keywords = {"batch_size": size}
    if draft.map_style:
        draft.use("torch.utils.data", "RandomSampler")
        lines += [
            "# The order of samples has a generator of its own, so that it is the same for any",
            "# number of workers and whatever else draws random numbers.",
            'own = {"order": torch.Generator(), "workers": torch.Generator()}',
            'sampler = RandomSampler(dataset, generator=own["order"])',
        ]
        keywords["sampler"] = "sampler"
    else:
        lines.append('own = {"workers": torch.Generator()}')
    keywords["generator"] = 'own["workers"]'
    return [
        *lines,
        f"loader = {call('DataLoader', ['dataset'], {**keywords, **options}, indent=13)}",
        "return loader, own",
    ]


def _validation_loader(draft: Draft) -> str:
    options = loader_options(draft, validation=True)
    draft.use("torch.utils.data", "DataLoader")
    theirs = call("loader_like", ["workload.valid_data", "workload.valid_data.dataset", "own"], options, indent=15)
    size = "workload.batch_size or 32"
    if draft.own_loader is not False:
        size = 'getattr(workload.train_data, "batch_size", None) or workload.batch_size or 32'
    fresh = call(
        "DataLoader",
        ["workload.valid_data"],
        {"batch_size": size, "generator": 'own["workers"]', **options},
        indent=11,
    )
    return "\n".join(
        [
            "def validation_loader(workload):",
            '    """The same for the validation data, in its own order."""',
            "    own = {}",
            "    if isinstance(workload.valid_data, DataLoader):",
            indented(f"return {theirs}, own", 2),
            '    own["workers"] = torch.Generator()',
            indented(f"return {fresh}, own"),
        ]
    )


def _add_engine_loaders(draft: Draft) -> None:
    """A sampler of the user's own takes the long way: the code that a trial uses, printed."""
    want = draft.inliner.want
    want("autoopt.benchmark.loader", "rebuilt")
    want("autoopt.benchmark.loader", "_from_dataset")
    size = literal(draft.setup.batch.size) if draft.setup.batch.size else "None"
    options = "{" + ", ".join(f"{literal(k)}: {v}" for k, v in loader_options(draft).items()) + "}"
    checked = "{" + ", ".join(f"{literal(k)}: {v}" for k, v in loader_options(draft, validation=True).items()) + "}"
    lines = [
        "def training_loader(workload, seed):",
        '    """The loader that was measured; your own sampler is kept."""',
    ]
    lines += [indented(line) for line in _dataset(draft, "workload.train_data.dataset")]
    lines += [f"    options = {options}"]
    lines += [f'    return rebuilt(workload.train_data, dataset, options, {size}, seed, "train")']
    draft.add("\n".join(lines))
    if draft.has_evaluate:
        draft.add(
            "def validation_loader(workload, seed):\n"
            '    """The same for the validation data, in its own order."""\n'
            "    data = workload.valid_data\n"
            f"    options = {checked}\n"
            "    if isinstance(data, DataLoader):\n"
            '        return rebuilt(data, data.dataset, options, None, seed, "valid")\n'
            '    size = getattr(workload.train_data, "batch_size", None) or 32\n'
            "    return _from_dataset(data, options, size, seed, shuffle=False)"
        )
