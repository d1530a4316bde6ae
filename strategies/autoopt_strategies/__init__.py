"""The built-in strategies, in the order in which they are tried."""

from __future__ import annotations

from autoopt import Strategy
from autoopt_strategies.batch.accumulation import Accumulation
from autoopt_strategies.batch.batch_size import BatchSize
from autoopt_strategies.compute.amp import Amp
from autoopt_strategies.compute.channels_last import ChannelsLast
from autoopt_strategies.compute.compile import CompileModel
from autoopt_strategies.compute.cuda_graphs import CudaGraphs
from autoopt_strategies.compute.cudnn_benchmark import CudnnBenchmark
from autoopt_strategies.compute.flash_attention import FlashAttention
from autoopt_strategies.compute.fused_optimizer import FusedOptimizer
from autoopt_strategies.compute.matmul_precision import MatmulPrecision
from autoopt_strategies.compute.threads import Threads
from autoopt_strategies.input.batch_fetch import BatchFetch
from autoopt_strategies.input.cache import Cache
from autoopt_strategies.input.device_dataset import DeviceDataset
from autoopt_strategies.input.device_prefetch import DevicePrefetch
from autoopt_strategies.input.pin_memory import PinMemory
from autoopt_strategies.input.threaded_loading import ThreadedLoading
from autoopt_strategies.input.workers import Workers
from autoopt_strategies.memory.checkpointing import Checkpointing
from autoopt_strategies.memory.expandable_segments import ExpandableSegments
from autoopt_strategies.memory.optimizer_in_backward import OptimizerInBackward
from autoopt_strategies.schedule.checkpoint_cadence import CheckpointCadence
from autoopt_strategies.schedule.evaluation_cadence import EvaluationCadence
from autoopt_strategies.schedule.one_cycle import OneCycle
from autoopt_strategies.schedule.warmup_cosine import WarmupCosine

BUILTIN: tuple[Strategy, ...] = (
    Workers(),
    BatchFetch(),
    Cache(),
    DeviceDataset(),
    ThreadedLoading(),
    PinMemory(),
    DevicePrefetch(),
    Amp(),
    MatmulPrecision(),
    ChannelsLast(),
    CudnnBenchmark(),
    FusedOptimizer(),
    CompileModel(),
    CudaGraphs(),
    Threads(),
    BatchSize(),
    Accumulation(),
    Checkpointing(),
    FlashAttention(),
    OptimizerInBackward(),
    ExpandableSegments(),
    EvaluationCadence(),
    CheckpointCadence(),
    WarmupCosine(),
    OneCycle(),
)
