"""Memory map: prepared samples written once to files of arrays, from which every epoch reads rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import PATIENCE, Setting, after_paying, gain, seconds_of
from autoopt_strategies.input.batches import split
from autoopt_strategies.input.cache import FREE, LEFT
from autoopt_strategies.input.rows import Rows

ROOM = 0.8
"""Share of the free disk space that the arrays may take."""


@dataclass(frozen=True)
class MapSamples:
    """``dataset -> dataset`` whose samples are rows of files.

    Args:
        prefix: how many transforms of the dataset's ``transform`` are written; None: whole samples.
        workers: processes that prepare them, once.
        directory: where the files are made; None: the system's folder for temporary files.
        ragged: parts of samples differ in shape.
    """

    prefix: int | None = None
    workers: int = 0
    directory: str | None = None
    ragged: bool = False

    def __call__(self, dataset: Any) -> Rows:
        source, tail = (dataset, ()) if self.prefix is None else split(dataset, self.prefix)
        return Rows(dataset, source, tail, self.workers, self.directory, self.ragged)


class MemoryMap(Strategy):
    """Writes prepared samples once to memory-mapped arrays on disk, and reads rows of them.

    What it does: converts the dataset before the first step, to one ``.npy`` file for each part of a sample;
        where the first transforms are the same every time and the rest is random, what the first ones make. Parts that
        differ in shape, as texts and photographs do, stand end to end in one file, beside where each begins.
    When it helps: decoding takes the time, several epochs are planned, and the samples do not fit into memory; or
        workers are spawned, so that each would get a copy of a cache. The system keeps what it has room for in memory.
    When it does not: few epochs; samples that differ in their number of axes or types; a disk slower than the decoder.
    What it costs: disk space for prepared samples, and preparing all of them once, which is charged to the run.
    Source: https://numpy.org/doc/stable/reference/generated/numpy.memmap.html; Leclerc et al., "FFCV", CVPR 2023
    """

    name = "memory_map"
    title = "samples in memory-mapped files"
    stages = frozenset({"storage", "preparation"})
    risk = Risk.EXACT
    after = frozenset({"cache"})
    excludes = frozenset({"cache", "reduced_decoding", "turbo_decoding", "torch_format", "ram_disk"})
    example = Example(
        {"prefix": None, "workers": 0, "directory": None, "ragged": False},
        facts={"available_ram_bytes": 1 << 29},
        inspected={"free_disk_bytes": 1 << 40, "deterministic": True, "static": True, "sample_seconds": 1e-3},
    )

    def applies(self, case: Case) -> Applies:
        facts, found = case.workload, self._found(case)
        if not facts.dataset.map_style or not facts.batch_size:
            return Applies.no("samples are not read by their index and batched")
        if not found.get("deterministic") and not found.get("prefix"):
            return Applies.no(found.get("reason") or "samples are not known to be the same every time")
        size = (found.get("sample_bytes") or facts.dataset.sample_bytes or 0) * (facts.train_samples or 0)
        if not size or size > ROOM * found.get("free_disk_bytes", 0):
            return Applies.no(f"{size / 1e9:.1f} GB of samples do not fit on the disk, or their size is not known")
        spawned = facts.loader.multiprocessing_context in ("spawn", "forkserver")
        if size <= FREE * (facts.available_ram_bytes or 0) and not spawned:
            return Applies.no("the samples fit into memory: a cache there is faster")
        return self._pays(case)

    def _pays(self, case: Case) -> Applies:
        """Whether writing them is paid back in the planned run, and within the search."""
        filling, saved = self._filling(case), self._saved(case)
        if filling is None or not case.workload.steps_per_epoch or not saved:
            return Applies.yes()
        epochs = filling / (saved * case.workload.steps_per_epoch)
        planned = (case.planned_steps or 0) / case.workload.steps_per_epoch
        if planned and epochs > planned:
            pays = f"it pays after {epochs:.1f} epochs, and {planned:.1f} are planned"
            return Applies.no(f"writing the samples takes {filling:.0f} s: {pays}")
        if case.seconds_left is not None and filling > PATIENCE * case.seconds_left:
            return Applies.no(f"writing takes {filling:.0f} s of {case.seconds_left:.0f} s left for the search")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        found, bandwidth = self._found(case), case.environment.peaks.storage_bytes_per_second
        reading = case.workload.batch_bytes / bandwidth if bandwidth else 0.0
        left = found.get("hit", max(1.0 - found.get("share", 1.0), LEFT))
        step = gain(case, {"storage": reading, "preparation": seconds_of(case, "preparation") * left})
        filling = self._filling(case)
        return step if filling is None else after_paying(case, step, filling, least=filling / 2)

    def once_seconds(self, case: Case, setting: Setting) -> float | None:
        """All samples read and written once."""
        return self._filling(case)

    def settings(self, case: Case) -> list[Setting]:
        found = self._found(case)
        prefix = None if found.get("deterministic") else found.get("prefix")
        ragged = not found.get("static")
        return [{"prefix": prefix, "workers": self._workers(case), "directory": None, "ragged": ragged}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(MapSamples(**setting))

    def recipe(self, setting: Setting) -> Recipe:
        if setting.get("ragged"):
            code = (
                "values = np.concatenate([dataset[i][0].ravel() for i in range(len(dataset))])  # once; np.save it\n"
                'values = np.load("values.npy", mmap_mode="r")  # offsets and shapes beside it\n'
                "sample = values[offsets[index] : offsets[index + 1]].reshape(shapes[index])  # in __getitem__"
            )
        else:
            code = (
                'rows = np.lib.format.open_memmap("samples.npy", "w+", dtype, (len(dataset), *shape))\n'
                "for i in range(len(dataset)):  # once\n    rows[i] = dataset[i][0]\n"
                'samples = np.load("samples.npy", mmap_mode="r")  # in __getitem__: samples[index]'
            )
        note = {"_note": "write prepared samples once with numpy.lib.format.open_memmap, and read rows of it"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """Free space for temporary files; what can be kept of samples, the cache's ``inspect`` finds."""
        import shutil
        import tempfile

        return {"free_disk_bytes": shutil.disk_usage(tempfile.gettempdir()).free}

    def _found(self, case: Case) -> Setting:
        return {**case.inspected("cache"), **case.inspected(self.name)}

    def _workers(self, case: Case) -> int:
        return min(case.environment.cores or 1, 8)

    def _filling(self, case: Case) -> float | None:
        seconds = self._found(case).get("sample_seconds")
        return None if seconds is None else seconds * (case.workload.train_samples or 0) / self._workers(case)

    def _saved(self, case: Case) -> float:
        """Seconds of preparation that a step needs no more."""
        found = self._found(case)
        left = found.get("hit", max(1.0 - found.get("share", 1.0), LEFT))
        return float(seconds_of(case, "storage") + seconds_of(case, "preparation") * (1 - left))
