"""A model in the form in which it is served: engine, precision, layout, threads.

``prepare`` does once what is paid once (export, quantization with calibration, compilation ahead of time) and leaves
an artefact in a folder; ``load`` makes the callable of it in every process that serves.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .requests import mapped, tensors_of

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ONNX, PACKAGE, ANSWER = "model.onnx", "model.pt2", "answer.json"


@dataclass(frozen=True)
class Variant:
    """A way of serving. The default is the model as it is.

    Args:
        engine: what runs it.
        precision: of its weights, and of its products: ``as_is``, ``bfloat16``, ``float16``, ``int8_dynamic``,
            ``int8_weight_only`` or ``int8_static``.
        channels_last: layout of convolutions.
        threads: within an operator; None: as torch has it.
        batching: requests that are answered together at most, where several wait; 1: each alone.
        model: import string of another model (a student); empty: the workload's.
    """

    engine: str = "eager"
    precision: str = "as_is"
    channels_last: bool = False
    threads: int | None = None
    batching: int = 1
    model: str = ""

    @property
    def name(self) -> str:
        parts = [self.model] if self.model else []
        parts += [self.engine] if self.engine != "eager" else []
        parts += [self.precision] if self.precision != "as_is" else []
        parts += ["channels_last"] if self.channels_last else []
        parts += [f"threads {self.threads}"] if self.threads else []
        parts += [f"batching {self.batching}"] if self.batching > 1 else []
        return " + ".join(parts) or "as it is"

    @property
    def artefact(self) -> str:
        """Variants that share it are made of the same files; empty where nothing is made beforehand."""
        if self.engine not in ("aotinductor", "onnxruntime"):
            return ""
        words = [self.engine, self.precision, *(["channels_last"] if self.channels_last else [])]
        words += [str(self.threads)] if self.engine == "aotinductor" and self.threads else []  # compiled for them
        return "-".join([*words, *(["student"] if self.model else [])])

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Answer(dict[str, Any]):
    """Named outputs, also as attributes and by position, as libraries' outputs are read."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)


def structure_of(answer: Any) -> dict[str, Any]:
    """How an answer is built, so that flat tensors can be given its form again.

    Raises:
        ValueError: it is nested.
    """
    if isinstance(answer, torch.Tensor):
        return {"kind": "tensor"}
    items = (
        answer.items()
        if isinstance(answer, Mapping)
        else enumerate(answer if isinstance(answer, (list, tuple)) else ())
    )
    named = [(key, value) for key, value in items if value is not None]
    if not named or not all(isinstance(value, torch.Tensor) for _, value in named):
        raise ValueError(f"the model returns {type(answer).__name__}, which is not one tensor or a flat set of tensors")
    if isinstance(answer, Mapping):
        return {"kind": "mapping", "keys": [str(key) for key, _ in named]}
    return {"kind": "sequence"}


def built(flat: list[torch.Tensor], structure: dict[str, Any]) -> Any:
    """Flat outputs in the form that the model itself returns."""
    if structure["kind"] == "tensor":
        return flat[0]
    if structure["kind"] == "mapping":
        return Answer(zip(structure["keys"], flat, strict=True))
    return tuple(flat)


class Flat(nn.Module):
    """A model as a function of tensors alone; what else it is called with is kept from an example.

    Args:
        model: in eval mode.
        example: ``(args, kwargs)`` of a call.
    """

    def __init__(self, model: nn.Module, example: tuple[Any, Any]) -> None:
        super().__init__()
        self.model = model
        self.example = example

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        each = iter(tensors)
        args, kwargs = mapped(self.example, lambda _: next(each))
        return tuple(tensors_of(self.model(*args, **kwargs)))


class Predictor(nn.Module):
    """Answers as the model does, whatever runs inside: inputs are cast, outputs are float32 again."""

    def __init__(self, run: Any, dtype: torch.dtype | None = None, channels_last: bool = False) -> None:
        super().__init__()
        self.run = run
        self.dtype = dtype
        self.channels_last = channels_last

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.dtype is not None or self.channels_last:
            args, kwargs = mapped((args, kwargs), self._cast)
        answer = self.run(*args, **kwargs)
        return answer if self.dtype is None else mapped(answer, lambda t: t.float() if t.is_floating_point() else t)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        if self.channels_last and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor


def prepare(
    model: nn.Module,
    variant: Variant,
    requests: list[tuple[Any, Any]],
    calibration: list[tuple[Any, Any]],
    folder: Path,
) -> None:
    """Writes the variant's artefact; does nothing where it has none.

    Args:
        model: in eval mode, on its device; it is not changed.
        requests: calls of the model, ``(args, kwargs)``, of two samples or more each; dimensions in which they differ
            are free in what is written.
        calibration: calls for static quantization, of training data.
    """
    if not variant.artefact:
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = converted(copy.deepcopy(model), variant)
    cast = Predictor(model, HALVES.get(variant.precision), variant.channels_last)
    flat = Flat(cast, requests[0]).eval()
    with torch.no_grad():
        answer = cast(*requests[0][0], **requests[0][1])
    (folder / ANSWER).write_text(json.dumps(structure_of(answer)), encoding="utf-8")
    tensors = tuple(tensors_of(requests[0]))
    shapes = {"tensors": tuple(free_dimensions([tensors_of(request) for request in requests]))}
    if variant.engine == "aotinductor":
        with torch.no_grad():
            program = torch.export.export(flat, tensors, dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / PACKAGE))
        return
    with torch.no_grad():
        exported = torch.onnx.export(flat, tensors, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert exported is not None
    exported.save(str(folder / ONNX))
    if variant.precision.startswith("int8"):
        _quantize_onnx(folder, variant, calibration)


def free_dimensions(calls: list[list[torch.Tensor]]) -> list[dict[int, Any]]:
    """For each input the dimensions that stay free: the batch, and those in which calls differ."""
    found = []
    batch = next((tensor.shape[0] for tensor in calls[0] if tensor.dim()), None)
    for place, tensor in enumerate(calls[0]):
        others = [call[place].shape for call in calls if call[place].dim() == tensor.dim()]
        free = [
            d for d in range(tensor.dim())
            if (d == 0 and tensor.shape[0] == batch) or any(shape[d] != tensor.shape[d] for shape in others)
        ]  # fmt: skip
        found.append(dict.fromkeys(free, torch.export.Dim.DYNAMIC))
    return found


def _quantize_onnx(folder: Path, variant: Variant, calibration: list[tuple[Any, Any]]) -> None:
    """Weights keep seven bits: where a processor adds two products in 16 bits, those of eight bits overflow."""
    from onnxruntime import quantization as q  # type: ignore[import-untyped]

    source, part = folder / ONNX, folder / "quantized.onnx"
    if variant.precision == "int8_static":
        names = [entry.name for entry in _session(source, None).get_inputs()]
        feeds = (
            {name: t.cpu().numpy() for name, t in zip(names, tensors_of(call), strict=True)} for call in calibration
        )
        reader: Any = SimpleNamespace(get_next=lambda: next(feeds, None))
        q.quantize_static(source, part, reader, quant_format=q.QuantFormat.QDQ, per_channel=True, reduce_range=True)
    else:
        kind = q.QuantType.QInt8
        q.quantize_dynamic(source, part, op_types_to_quantize=["MatMul", "Gemm"], weight_type=kind, reduce_range=True)
    part.replace(source)


def converted(model: nn.Module, variant: Variant) -> nn.Module:
    """The module itself in the variant's precision and layout, in place."""
    if variant.precision in HALVES:
        model = model.to(HALVES[variant.precision])
    elif variant.precision.startswith("int8") and variant.engine != "onnxruntime":
        from torchao import quantization as q  # type: ignore[import-untyped]

        kind = {
            "int8_dynamic": q.Int8DynamicActivationInt8WeightConfig,
            "int8_weight_only": q.Int8WeightOnlyConfig,
        }[variant.precision]
        q.quantize_(model, kind())
    if variant.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _session(path: Path, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def load(model: nn.Module | None, variant: Variant, folder: Path | None = None) -> nn.Module:
    """A predictor: it answers requests.

    Args:
        model: in eval mode, on its device; it is changed in place. None where the artefact holds all of it.
        folder: of the artefact, where the variant has one.
    """
    if variant.threads:
        torch.set_num_threads(variant.threads)
    if variant.artefact:
        assert folder is not None
        structure = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        if variant.engine == "onnxruntime":
            session = _session(folder / ONNX, variant.threads)
            names = [entry.name for entry in session.get_inputs()]

            def run(*args: Any, **kwargs: Any) -> Any:
                given = [tensor.cpu().numpy() for tensor in tensors_of((args, kwargs))]
                answers = session.run(None, dict(zip(names, given, strict=True)))
                return built([torch.from_numpy(answer) for answer in answers], structure)

            return Predictor(run)
        package = torch._inductor.aoti_load_package(str(folder / PACKAGE))
        return Predictor(lambda *args, **kwargs: built(list(package(*tensors_of((args, kwargs)))), structure))
    assert model is not None
    model = converted(model.eval(), variant)
    if variant.engine == "compile":
        model.compile()
    return Predictor(model, HALVES.get(variant.precision), variant.channels_last)
