"""Facts of a workload that the loop knows without holding it: plain data, sent by a trial's process.

The parent never builds the user's model; strategies decide on these facts.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records import JsonDict, Record, RunParts, WorkloadSummary


class TensorFacts(Record):
    """One tensor of a batch. ``shape`` includes the batch dimension; ``path`` like ``[0]`` or ``['image']``."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


class DatasetFacts(Record):
    """The training dataset. ``deterministic``: the same index twice gave the same sample (None: not known).

    ``changes``: the script puts other contents into it before it is read, as for each epoch's negative samples.
    """

    type: str
    map_style: bool
    samples: int | None = None
    deterministic: bool | None = None
    changes: bool = False
    sample_bytes: int | None = None
    has_getitems: bool = False
    file: str | None = None
    line: int | None = None


class LoaderFacts(Record):
    """The user's own loader options, and what it was made of. ``own_class``: its name where it is none of torch's.

    ``samples``: of an epoch, by its sampler; None where it has none, or where that does not tell.
    """

    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    multiprocessing_context: str | None = None
    drop_last: bool = False
    shuffle: bool | None = None
    custom_sampler: bool = False
    custom_batch_sampler: bool = False
    custom_collate: bool = False
    samples: int | None = None
    own_loader: bool = False
    own_class: str = ""


class ModelFacts(Record):
    """The model. ``modules``: class name to how many; ``repeated_blocks``: dotted names of a repeated container."""

    type: str
    parameters: int
    trainable_parameters: int
    parameter_bytes: int
    modules: dict[str, int] = field(default_factory=dict)
    repeated_blocks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    has_conv2d: bool = False
    has_batchnorm: bool = False
    file: str | None = None
    line: int | None = None

    @property
    def draws(self) -> bool:
        """Whether layers of it draw random numbers in training, by their names; functions may as well."""
        return any("Dropout" in kind or "DropPath" in kind for kind in self.modules)


class OptimizerFacts(Record):
    """The optimizer as the user made it. ``options``: scalar defaults such as lr, fused, foreach."""

    type: str
    module: str
    options: JsonDict = field(default_factory=dict)
    groups: int = 1
    has_scheduler: bool = False


class WorkloadFacts(WorkloadSummary):
    """All that strategies may know of a workload. Sizes in bytes; counts are counts.

    ``run``: the parts of a whole run of the baseline, as far as a script was watched, or a first profile has shown.
    ``unpinned``, ``unmoved``: the type of an object in the batch whose tensors the loader cannot pin, and autoopt
    cannot put on a device; "" where they reach all. ``beside_tensors``: the type of something else that the batch
    holds. ``wrapped``: options of the ``DistributedDataParallel`` that a script makes by itself; None where it
    makes none.
    """

    dataset: DatasetFacts
    loader: LoaderFacts
    model: ModelFacts
    optimizer: OptimizerFacts
    batch: tuple[TensorFacts, ...] = ()
    batch_bytes: int = 0
    unpinned: str = ""
    unmoved: str = ""
    beside_tensors: str = ""
    static_shapes: bool | None = None
    accumulation: int = 1
    valid_samples: int | None = None
    evaluate_every: int | None = None
    loss_is_closure: bool = True
    has_evaluate: bool = False
    metric: str | None = None
    mode: Literal["max", "min"] = "max"
    target: float | None = None
    precision: str | None = None
    clip_grad_norm: float | None = None
    adapter: str | None = None
    available_ram_bytes: int | None = None
    wrapped: JsonDict | None = None
    inspected: dict[str, JsonDict] = field(default_factory=dict)
    run: RunParts | None = None
    warnings: tuple[str, ...] = ()
