"""Tasks of a process that serves: it opens a variant, answers blocks of requests, and judges quality."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.benchmark.device import host_peak_bytes
from autoopt.benchmark.loader import training_loader, validation_loader
from autoopt.benchmark.trial_context import TrialContext
from autoopt.errors import DocumentError, TrialFailed, UsageError, WorkloadError
from autoopt.latency.quality import judged
from autoopt.latency.serving.requests import (
    Ask,
    Batcher,
    Request,
    asker,
    calls_of,
    cut_to,
    joined,
    mapped,
    measure,
    samples_of,
)
from autoopt.latency.serving.variants import Variant, load, prepare
from autoopt.loading import importing, validation
from autoopt.records import JsonDict
from autoopt.records.messages import Block

REQUESTS, CALIBRATION, WARM_UP = 256, 64, 10
"""Requests that come round; batches that quantization is calibrated on; requests until caches are filled."""


@dataclass
class Serving:
    predictor: Any
    ask: Ask
    requests: list[Request]
    variant: Variant
    asked: int = 0


def describe(
    live: TrialContext, weights: str, sizes: list[int], lengths: list[int | None], students: Sequence[str] = ()
) -> JsonDict:
    """Whether the workload can be served at all: its metric, samples, requests, layers. Students are there, too."""
    for spec in students:
        importing.load(spec, live.spec.search_path)
    model = users_model(live, "", weights)
    requests = requests_of(live, model, sizes, lengths)
    target = live.workload.target
    assert target is not None
    return {
        "metric": target.metric,
        "mode": target.direction,
        "requests": len(requests),
        "linear": any(isinstance(module, nn.Linear) for module in model.modules()),
        "convolutions": any(isinstance(module, nn.Conv2d) for module in model.modules()),
        "device": live.device.torch.type,
        "threads": torch.get_num_threads(),
    }


def users_model(live: TrialContext, spec: str, weights: str) -> nn.Module:
    """The workload's model, or that of another build, with weights from a file, in eval mode on its device."""
    workload = validation.build(importing.load(spec, live.spec.search_path)) if spec else live.workload
    model: nn.Module = workload.model
    if weights:
        load_weights(model, Path(weights))
    return model.eval().to(live.device.torch)


def validation_batches(live: TrialContext) -> list[Any]:
    """The validation data, on the host.

    Raises:
        WorkloadError: there is none, or no metric.
    """
    workload = live.workload
    given = {"valid_data": workload.valid_data, "evaluate": workload.evaluate, "target": workload.target}
    lacking = [name for name, value in given.items() if value is None]
    if lacking:
        raise WorkloadError(
            f"the workload has no {lacking[0]}, and quality cannot be judged without it",
            hint="give valid_data=, evaluate= and target=autoopt.Target('accuracy') to the Workload",
        )
    loader = validation_loader(workload, live.setup, live.seed)
    assert loader is not None
    batches = list(loader.loader)
    if not batches:
        raise WorkloadError("valid_data yields no batch", hint="requests are made of the validation data")
    return batches


def requests_of(
    live: TrialContext, model: Any, sizes: list[int], lengths: list[int | None], most: int = REQUESTS
) -> list[Request]:
    """Calls of the model as the user's evaluation makes them, on the host, of the sizes and lengths asked for."""
    batches, evaluate = validation_batches(live), live.workload.evaluate
    assert evaluate is not None
    parts = cut_to(batches, itertools.cycle(sizes), itertools.cycle(lengths))
    try:
        return calls_of(model, evaluate, itertools.islice(parts, most))
    except Exception as error:
        raise WorkloadError(
            f"evaluate fails on batches of {', '.join(map(str, sorted(set(sizes))))}: {type(error).__name__}: {error}",
            hint="a request is a small batch of the validation data; --batch sets its samples",
        ) from None


def make(live: TrialContext, variant: JsonDict, weights: str, folder: str) -> JsonDict:
    """Makes a variant's artefact: ``seconds``."""
    wanted = Variant(**variant)
    model = users_model(live, wanted.model, weights)
    began = perf_counter()
    few = requests_of(live, model, [2, 3], [None], most=8)
    # a dimension of one sample would be taken for fixed
    several = [request for request in few if samples_of(request) > 1] or [joined([few[0], few[0]])]
    calibration: list[Request] = []
    if wanted.precision == "int8_static":  # on training data, as the evaluation would: validation data stay unseen
        assert live.workload.evaluate is not None
        batches = itertools.islice(training_loader(live.workload, live.setup, live.seed).loader, CALIBRATION)
        parts = cut_to(batches, itertools.repeat(8), itertools.repeat(None))
        calibration = calls_of(model, live.workload.evaluate, itertools.islice(parts, CALIBRATION))
    if wanted.threads:
        torch.set_num_threads(wanted.threads)
    prepare(model, wanted, several, calibration, Path(folder))
    return {"seconds": perf_counter() - began}


def start(
    live: TrialContext, variant: JsonDict, weights: str, folder: str, sizes: list[int], lengths: list[int | None]
) -> JsonDict:
    """Opens a variant for blocks: its cold start, and the size of its weights."""
    wanted, artefact = Variant(**variant), Path(folder) if folder else None
    model = users_model(live, wanted.model, weights)
    with torch.no_grad():
        requests = requests_of(live, model, sizes, lengths)
    began = perf_counter()
    predictor = load(model, wanted, artefact).eval()
    ask = asker(predictor, str(live.device))
    loaded = perf_counter()
    ask(requests[0])
    answered = perf_counter()
    warm_up = requests[1 : 1 + WARM_UP]
    for request in warm_up:
        ask(request)
    warm = perf_counter()
    live.serving = Serving(predictor, ask, requests, wanted)
    return {
        "load_seconds": loaded - began,
        "first_seconds": answered - loaded,
        "warm_up_seconds": warm - answered,
        "warm_up_requests": len(warm_up),
        "model_bytes": _bytes(model)
        if not artefact
        else sum(path.stat().st_size for path in artefact.iterdir() if path.suffix in (".onnx", ".data", ".pt2")),
    }


def _bytes(model: nn.Module) -> int:
    """Bytes that a model's weights hold; of quantized ones, those of their parts."""

    def held(tensor: torch.Tensor) -> int:
        parts = getattr(tensor, "__tensor_flatten__", None)
        if type(tensor) in (torch.Tensor, nn.Parameter) or parts is None:
            return tensor.nelement() * tensor.element_size()
        return sum(held(getattr(tensor, name)) for name in parts()[0])

    return sum(held(tensor.data) for tensor in itertools.chain(model.parameters(), model.buffers()))


def block(
    live: TrialContext, seconds: float, min_steps: int, ramp_seconds: float, cycle: int, clients: int
) -> JsonDict:
    """Answers requests for some seconds, as a block of which each request is a step."""
    serving: Serving = live.serving
    with Batcher(serving.ask, serving.variant.batching) as batcher:
        ask = batcher.ask if serving.variant.batching > 1 and clients > 1 else serving.ask

        def answered(seconds: float, least: int) -> tuple[list[float], float]:
            found = measure(ask, serving.requests, clients=clients, seconds=seconds, least=least, first=serving.asked)
            serving.asked += len(found[0])
            return found

        if ramp_seconds:
            answered(ramp_seconds, 1)
        before = cpu_times(with_children=False)
        latencies, spent = answered(seconds, min_steps)
        after = cpu_times(with_children=False)
    return Block(
        steps=len(latencies),
        samples=len(latencies),
        seconds=spent,
        step_seconds=tuple(latencies),
        cpu_seconds=max(after.own - before.own, 0.0),
        foreign_cpu_seconds=foreign_seconds(before, after),
        peak_host_memory_bytes=host_peak_bytes(),
    ).model_dump()


def judge(live: TrialContext, seed: int) -> JsonDict:
    """The quality of what is served here: :class:`~autoopt.records.latency.Judged`."""
    serving: Serving = live.serving
    workload, device = live.workload, live.device.torch
    assert workload.evaluate is not None
    assert workload.target is not None
    batches = [mapped(batch, lambda tensor: tensor.to(device)) for batch in validation_batches(live)]
    try:
        found = judged(serving.predictor, workload.evaluate, batches, workload.target.metric, seed)
    except (WorkloadError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise TrialFailed("error", f"evaluating it: {type(error).__name__}: {error}") from None
    return found.model_dump()


PLACES = (("training", "model"), ("state_dict",), ("model_state_dict",), ("model",), ())
"""Where weights stand in checkpoints: autoopt train's, Lightning's, many a loop's, and a bare state_dict."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads weights into a model, all of them by name.

    Raises:
        UsageError: no such file.
        DocumentError: it cannot be read without executing code, or holds no weights of this model.
    """
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {path}", hint="such as autoopt-runs/train/checkpoint.pt")
    hint = "save it with torch.save(model.state_dict(), path)"
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch raise
        raise DocumentError(f"cannot read the checkpoint {path}: {_reason(error)}", hint=hint) from None
    for place in PLACES:
        given = found
        for key in place:
            given = given.get(key) if isinstance(given, Mapping) else None
        if isinstance(given, Mapping) and given and all(isinstance(v, torch.Tensor) for v in given.values()):
            break
    else:
        raise DocumentError(f"{path} holds no weights", hint=hint)
    state = {name.removeprefix("_orig_mod.").removeprefix("module."): value for name, value in given.items()}
    if not set(model.state_dict()) & set(state):  # Lightning's modules hold the model below a name of their own
        state = {name.partition(".")[2]: value for name, value in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise DocumentError(
            f"{path} holds weights of another model: {first}",
            hint="of a model that a plan has changed (pruning, LoRA, distillation): "
            "docs/how-to/change-the-model.md, Serve the new model",
        ) from None


def _reason(error: Exception) -> str:
    """Why torch does not read a file, in words; its own speak of its options, or are a byte."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
        return "it holds more than tensors, such as a pickled model, and reading that would execute code"
    return "it is not a whole file of torch.save"
