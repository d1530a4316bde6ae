"""A setting of every built-in strategy that trains anywhere: what its tests are driven by, here and in other rooms."""

from __future__ import annotations

from typing import Any

CALL = {"x": {"shape": [2, 12, 16], "dtype": "float32"}}
"""How ``blocks.*`` of a workload with attention are called."""

SETTINGS: dict[str, dict[str, Any]] = {
    "workers": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
    "batch_fetch": {"index": "tensor"},
    "cache": {"prefix": None, "workers": 0},
    "device_dataset": {"device": "cpu"},
    "threaded_loading": {"threads": 2},
    "pin_memory": {"pin_memory": False, "non_blocking": True},
    "device_prefetch": {"prefetch": 2},
    "amp": {"dtype": "bfloat16"},
    "matmul_precision": {"precision": "medium"},
    "channels_last": {},
    "cudnn_benchmark": {"enabled": True},
    "fused_optimizer": {"implementation": "fused"},
    "compile": {"mode": "default"},
    "cuda_graphs": {},
    "threads": {"threads": 1},
    "batch_size": {"size": 32, "learning_rate_factor": 1.4142, "warmup_steps": 2},
    "accumulation": {"size": 8, "accumulation": 2},
    "checkpointing": {"every": 1, "selective": True},
    "flash_attention": {"modules": ["blocks.*"], "calls": [CALL]},
    "optimizer_in_backward": {},
    "expandable_segments": {"enabled": True},
    "evaluation_cadence": {"evaluate_every": 500},
    "checkpoint_cadence": {"checkpoint_every": 500},
    "warmup_cosine": {"warmup": 0.1, "peak": 2.0, "end": 0.01},
    "one_cycle": {"peak": 2.0, "rise": 0.3},
}
