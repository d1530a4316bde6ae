"""RAM disk: a dataset's files are copied to memory once, and read from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import PATIENCE, Setting, after_paying, gain, seconds_of
from autoopt_strategies.input.batches import dataset_of, equal
from autoopt_strategies.input.decoding import read_each_time, sample_of, spread
from autoopt_strategies.input.relocated import files_below, moved, opened_files, root_of

FOLDER = "/dev/shm"
ROOM = 0.25
"""Share of the free memory, and of what is free in the memory's own file system, that the files may take."""
LEAST_WAIT = 0.03
"""Of a step: files that are waited for less than this are in memory already, where the system keeps what was read."""


def deleted(folder: str, owner: int) -> None:
    """Deletes the copies, in the process that made them."""
    import os
    import shutil

    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class CopyToMemory:
    """``dataset -> dataset`` that reads copies of its files in memory; itself where it names none below ``root``."""

    root: str
    folder: str = FOLDER

    def __call__(self, dataset: Any) -> Any:
        import os
        import shutil
        import tempfile
        import weakref

        if moved(dataset, self.root, self.folder) is dataset:
            return dataset
        # by this name whoever ends a trial finds what a killed one has left
        target = tempfile.mkdtemp(prefix=f"autoopt-files-{os.getpid()}-", dir=self.folder)
        shutil.copytree(self.root, target, dirs_exist_ok=True)
        made = moved(dataset, self.root, target)
        weakref.finalize(made, deleted, target, os.getpid())
        return made


class RamDisk(Strategy):
    """Copies a dataset's files to memory before training, and reads them from there.

    What it does: copies the folder that the dataset names to ``/dev/shm``, and points the paths that the dataset holds
        (``root``, ``samples``, lists of files) to the copies, in every worker.
    When it helps: storage that is waited for in every epoch: a network or FUSE mount that keeps nothing in memory, a
        disk beside a system that has no room left for what was read.
    When it does not: a local disk whose files the system keeps in memory after the first epoch; files that a library
        opens without Python; a single epoch.
    What it costs: memory for all files, and reading them once, which is charged to the run. It is proven on real
        samples that they are the same, and read from the copies alone.
    Source: https://www.kernel.org/doc/html/latest/filesystems/tmpfs.html
    """

    name = "ram_disk"
    title = "files copied to memory"
    stages = frozenset({"storage"})
    risk = Risk.EXACT
    example = Example({"root": "/nowhere"}, inspected={"root": "/data", "bytes": 1 << 20, "room": 1 << 40})

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not (able := read_each_time(case)):
            return able
        if "root" not in found:
            return Applies.no(found.get("reason") or "which files the dataset reads is not known")
        room = min(found["room"], case.workload.available_ram_bytes or 0)
        if found["bytes"] > ROOM * room:
            return Applies.no(f"{found['bytes'] / 1e9:.2f} GB of files, and {room / 1e9:.2f} GB free in {FOLDER}")
        if case.pipeline is not None and seconds_of(case, "storage") < LEAST_WAIT * case.pipeline.step_seconds:
            return Applies.no("storage is hardly waited for: the system keeps the files in memory")
        copying = self._copying(case)
        if case.seconds_left is not None and copying is not None and copying > PATIENCE * case.seconds_left:
            return Applies.no(f"copying takes {copying:.0f} s of {case.seconds_left:.0f} s left for the search")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        step, copying = gain(case, {"storage": 0.0}), self._copying(case)
        return step if copying is None else after_paying(case, step, copying)

    def settings(self, case: Case) -> list[Setting]:
        return [{"root": case.inspected(self.name)["root"]}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_dataset(CopyToMemory(setting["root"]))

    def recipe(self, setting: Setting) -> Recipe:
        code = f'shutil.copytree("{setting["root"]}", "{FOLDER}/data", dirs_exist_ok=True)  # and name this folder'
        note = {"_note": f"copy {setting['root']} to {FOLDER} before training, and read from there"}
        return Recipe(pytorch=code, lightning=note, transformers=note, accelerate=note)

    def inspect(self, live: Any) -> Setting:
        """The folder that samples are read from, its size, and whether copies give the same samples."""
        return probe(dataset_of(live.workload))

    def _copying(self, case: Case) -> float | None:
        """Seconds to read all files once: as long as their samples are waited for."""
        if case.pipeline is None or not case.workload.batch_size:
            return None
        waiting = seconds_of(case, "storage") / case.workload.batch_size
        return waiting * (case.workload.train_samples or 0)


def probe(dataset: Any, folder: str = FOLDER) -> Setting:
    """``{"root", "bytes", "room": free in memory's file system}``, or ``{"reason": why not}``."""
    import os
    import shutil
    import tempfile

    indices = spread(dataset)
    if not indices or not os.path.isdir(folder):
        return {"reason": "samples cannot be read one by one" if not indices else f"there is no {folder}"}
    with opened_files() as opened:
        samples = [sample_of(dataset, index) for index in indices]
    if not opened:
        return {"reason": "samples are not read from files, or by a library that opens them without Python"}
    root = root_of(dataset, opened)
    if root is None or root in ("/", os.path.expanduser("~")):
        return {"reason": "the dataset names no folder that holds all of its files"}
    if root.startswith(folder):
        return {"reason": "the files are in memory already"}
    below = files_below(root)
    if below is None:
        return {"reason": f"{root} holds too many files to be copied"}
    with tempfile.TemporaryDirectory(dir=folder) as target:
        for file in set(opened):
            os.makedirs(os.path.dirname(target + file[len(root) :]), exist_ok=True)
            shutil.copyfile(file, target + file[len(root) :])
        other = moved(dataset, root, target)
        with opened_files() as again:
            try:
                same = all(equal(sample_of(other, i), sample) for i, sample in zip(indices, samples, strict=True))
            except OSError as error:
                return {"reason": f"samples cannot be read from copies: {type(error).__name__}: {error}"}
        if not same or not again or not all(file.startswith(target) for file in again):
            return {"reason": "with paths that point to copies, samples are others, or not read from these"}
    return {"root": root, "bytes": below[1], "room": shutil.disk_usage(folder).free}
