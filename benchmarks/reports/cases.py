"""Kinds of reports, each with its workload and the strategy that answers it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """A kind of report.

    Attributes:
        kind: in a few words.
        build: of ``workloads``; None where it is not rebuilt here.
        strategy: that answers it, with its companions; None: nothing of autoopt's does yet.
        note: why it is not rebuilt, or who answers it.
    """

    kind: str
    build: str | None = None
    strategy: str | None = None
    note: str = ""

    @property
    def spec(self) -> str:
        return f"benchmarks/reports/workloads.py:{self.build}"


REPORTS = (
    Report("affinity lost at an import", "lost_affinity", "affinity"),
    Report("threads of OpenCV or BLAS in loader workers", "threads_in_workers", "worker_threads"),
    Report("compute threads and workers on the same cores", "no_workers", "workers"),
    Report("JPEG images decoded whole, then shrunk", "jpeg_decoding", "decoding"),
    Report("images decoded in every epoch again", "decoded_every_epoch", "prepared_samples"),
    Report("Hugging Face dataset without the torch format", "lists_of_numbers", "prepared_samples"),
    Report("samples on slow remote storage", "remote_storage", "prepared_samples"),
    Report("files that are read from the disk in every epoch", "files_on_disk", "prepared_samples"),
    Report("workers that start again in every epoch", "workers_every_epoch", "workers"),
    Report("garbage collection over many objects", "garbage", "garbage_collection"),
    Report("garbage collected by force in every step", "forced_collection", "garbage_collection"),
    Report("slow validation loader", note="validation_loader; decided by time to the target, not by steps"),
    Report("GPU decoding", note="needs a CUDA device"),
    Report("dynamic padding with recorded or compiled graphs", note="needs a CUDA device"),
    Report("sequences padded to the maximum length", "maximum_length", "trim_padding"),
    Report("short sequences in one batch with long ones", "mixed_lengths", "length_grouping"),
    Report("half-empty batches of a language model of transformers", "padded_texts", "packing"),
    Report("small images, transformed one by one", note="`batched_transforms`; needs torchvision"),
    Report("cross-entropy over a large vocabulary", "large_vocabulary", "chunked_loss"),
    Report("distributed flags", note="needs several processes"),
)
