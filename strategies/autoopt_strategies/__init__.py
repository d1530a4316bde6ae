"""The built-in strategies."""

from __future__ import annotations

BUILTIN: tuple[str, ...] = (
    "input.workers:Workers",
    "input.worker_threads:WorkerThreads",
    "input.batch_fetch:BatchFetch",
    "input.torch_format:TorchFormat",
    "input.reduced_decoding:ReducedDecoding",
    "input.cache:Cache",
    "input.memory_map:MemoryMap",
    "input.device_dataset:DeviceDataset",
    "input.threaded_loading:ThreadedLoading",
    "input.pin_memory:PinMemory",
    "input.device_prefetch:DevicePrefetch",
    "compute.amp:Amp",
    "compute.matmul_precision:MatmulPrecision",
    "compute.channels_last:ChannelsLast",
    "compute.cudnn_benchmark:CudnnBenchmark",
    "compute.fused_optimizer:FusedOptimizer",
    "compute.compile:CompileModel",
    "compute.cuda_graphs:CudaGraphs",
    "compute.threads:Threads",
    "compute.affinity:Affinity",
    "compute.garbage_collection:GarbageCollection",
    "training.batch_size:BatchSize",
    "training.accumulation:Accumulation",
    "memory.checkpointing:Checkpointing",
    "compute.flash_attention:FlashAttention",
    "memory.optimizer_in_backward:OptimizerInBackward",
    "memory.expandable_segments:ExpandableSegments",
    "training.validation_loader:ValidationLoader",
    "training.evaluation_cadence:EvaluationCadence",
    "training.checkpoint_cadence:CheckpointCadence",
    "training.warmup_cosine:WarmupCosine",
    "training.one_cycle:OneCycle",
)
"""Module and class of each, in the order in which they are tried: the one place where a new strategy is entered."""
