"""Stand-ins for functions of OpenCV and torchvision where these are not installed, small workloads, predictions."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Estimate
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.planner import predict
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case, Strategy
from autoopt.workload import Workload

REDUCED = {16: 2, 32: 4, 64: 8}


def pixels(data: bytes, shrink: int = 1) -> Any:
    """By Pillow's plug-ins, without ``Image.open``, which is watched; what is cut off is grey, as OpenCV has it."""
    from PIL import Image, ImageFile, JpegImagePlugin, PngImagePlugin

    plugin: Any = JpegImagePlugin.JpegImageFile if data[:2] == b"\xff\xd8" else PngImagePlugin.PngImageFile
    image = plugin(io.BytesIO(data))
    if shrink > 1:
        image.draft(None, (image.width // shrink, image.height // shrink))
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
    try:
        return np.asarray(image.convert("RGB")), image.getexif().get(0x0112), Image
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def opencv(monkeypatch: pytest.MonkeyPatch, off: int = 0) -> Any:
    """Puts ``cv2`` in place: the real one, unless it is not installed or its pixels are to be ``off`` by so much."""
    if not off and ("cv2" in sys.modules or find_spec("cv2") is not None):
        import cv2

        for name in ("imread", "imdecode", "resize"):  # strategies wrap them
            monkeypatch.setattr(cv2, name, getattr(cv2, name))
        return cv2

    def imdecode(buffer: Any, flags: int = 1) -> Any:
        shrink = next((scale for flag, scale in REDUCED.items() if flags & flag), 1)
        array, turned, _ = pixels(bytes(buffer), shrink)
        if turned == 6 and not flags & 128:
            array = np.rot90(array, -1)
        return np.ascontiguousarray((array + off).astype(np.uint8)[..., :: 1 if flags & 256 else -1])

    def imread(path: str, flags: int = 1) -> Any:
        with open(path, "rb") as file:
            return imdecode(np.frombuffer(file.read(), np.uint8), flags)

    def resize(image: Any, size: Any) -> Any:
        from PIL import Image

        return np.array(Image.Image.resize(Image.fromarray(image), size))

    module: Any = ModuleType("cv2")
    vars(module).update(imdecode=imdecode, imread=imread, resize=resize)
    vars(module).update(IMREAD_COLOR=1, IMREAD_COLOR_RGB=256, IMREAD_IGNORE_ORIENTATION=128, IMREAD_UNCHANGED=-1)
    monkeypatch.setitem(sys.modules, "cv2", module)
    return module


def torchvision_io(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a ``torchvision.io`` in place that gives ``C x H x W``, and raises where a file is cut off."""

    def decode_image(data: torch.Tensor, mode: Any = None) -> torch.Tensor:
        whole = bytes(data.numpy())
        if not whole.rstrip(b"\0").endswith((b"\xff\xd9", b"\xaeB`\x82")):
            raise RuntimeError("Image is incomplete or truncated")
        return torch.from_numpy(np.array(pixels(whole)[0])).permute(2, 0, 1)

    package, module = ModuleType("torchvision"), ModuleType("torchvision.io")
    vars(module).update(decode_image=decode_image, ImageReadMode=SimpleNamespace(RGB="RGB"))
    vars(package)["io"] = module
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.io", module)


def cross_entropy(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def small_workload(model: nn.Module, data: Any, **more: Any) -> Workload:
    """A small one: pairs of inputs and classes in batches of 16, by SGD."""
    usual: dict[str, Any] = {"batch_size": 16, "loss": cross_entropy, "optimizer": partial(torch.optim.SGD, lr=0.1)}
    return Workload(model=model, train_data=data, **{**usual, "max_steps": 24, **more})


def promised(strategy: Strategy, case: Case, setting: dict[str, Any]) -> Estimate:
    """The prediction of a setting, where there is one."""
    found = predict(strategy, case, setting)
    assert found is not None
    return found


def with_stages(case: Case, **seconds: float) -> Case:
    """The same where these stages take so many seconds."""
    stages = [s.model_copy(update={"seconds": seconds.get(s.name, s.seconds)}) for s in case.pipeline.stages]
    return replace(case, pipeline=Pipeline(case.pipeline.round.model_copy(update={"stages": tuple(stages)})))


def in_trial(given: Workload) -> TrialContext:
    """A trial of a workload, in this process."""
    spec, training = TrialSpec(workload="tests:given", device="cpu"), Training(given, device="cpu")
    return TrialContext(spec, load_strategies(), training=(training, 0.0))
