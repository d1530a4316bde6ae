"""The built-in strategies, in the order in which they are tried."""

from __future__ import annotations

from autoopt import Strategy
from autoopt_strategies.batch.batch_size import BatchSize
from autoopt_strategies.compute.amp import Amp
from autoopt_strategies.compute.compile import CompileModel
from autoopt_strategies.compute.matmul_precision import MatmulPrecision
from autoopt_strategies.compute.threads import Threads
from autoopt_strategies.input.pin_memory import PinMemory
from autoopt_strategies.input.workers import Workers

BUILTIN: tuple[Strategy, ...] = (
    Workers(),
    PinMemory(),
    Amp(),
    MatmulPrecision(),
    CompileModel(),
    Threads(),
    BatchSize(),
)
