"""The command line of an exported script, its evaluations and its checkpoints."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch

from autoopt.export.printed.run import train


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=float, help="instead of your planned length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--checkpoint", help="file that is written along the way")
    parser.add_argument("--checkpoint-every", type=int, help="steps between checkpoints")
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--evaluate-every", type=int, help="steps between evaluations")
    parser.add_argument("--until-target", action="store_true", help="end at your target")
    parser.add_argument("--target", type=float, help="end where the metric of your target reaches this")
    return parser.parse_args(words)


def default_device() -> str:
    """The fastest that is there."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def main() -> None:
    """Trains, and tells each evaluation."""
    args = arguments()
    began = time.perf_counter()
    for step, loss, metrics in train(args):
        if metrics:
            shown = "  ".join(f"{name} {float(value):.4f}" for name, value in metrics.items())
            spent = time.perf_counter() - began
            print(f"step {step}  {spent:.1f} s  loss {loss.item():.4f}  {shown}", flush=True)
    print(f"{step} steps in {time.perf_counter() - began:.1f} s, last loss {loss.item():.4f}")
