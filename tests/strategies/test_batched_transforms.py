"""Transforms on whole batches: what they may make of an image is what the dataset's own make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import Subset, default_collate

from autoopt.records import Change
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from autoopt_strategies.input.batched_transforms import applied, ending, outcomes, probe, untransformed
from autoopt_strategies.input.prepared import KeptHeads
from scripted import PLAIN, changed_lines, patched, put, sites_in

Image = pytest.importorskip("PIL.Image")
STRATEGY = load_strategies()["batched_transforms"]


class RandomCrop:
    """As torchvision's, of Pillow's images."""

    def __init__(self, size: int, padding: int) -> None:
        self.size, self.padding, self.fill, self.padding_mode = (size, size), padding, 0, "constant"

    def __call__(self, image: Any) -> Any:
        side = image.size[0] + 2 * self.padding
        wide = Image.new("RGB", (side, side))
        wide.paste(image, (self.padding, self.padding))
        left, top = (int(torch.randint(side - self.size[0] + 1, ())) for _ in range(2))
        return wide.crop((left, top, left + self.size[0], top + self.size[0]))


class RandomHorizontalFlip:
    p = 0.5

    def __call__(self, image: Any) -> Any:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(()) < self.p else image


class ToTensor:
    def __call__(self, image: Any) -> Any:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)


class Normalize:
    def __init__(self) -> None:
        self.mean, self.std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.2)

    def __call__(self, image: Any) -> Any:
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return (image - mean) / std


class Mirrored(RandomHorizontalFlip):
    """Turns images instead of flipping them."""

    def __call__(self, image: Any) -> Any:
        return image.rotate(90)


class FlipOfTensors(RandomHorizontalFlip):
    def __call__(self, image: Any) -> Any:
        return image.flip(2) if torch.rand(()) < self.p else image


Mirrored.__name__ = FlipOfTensors.__name__ = "RandomHorizontalFlip"
for _kind in (RandomCrop, RandomHorizontalFlip, ToTensor, Normalize, Mirrored, FlipOfTensors):
    _kind.__module__ = "torchvision.transforms.transforms"


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Pictures:
    def __init__(self, *transforms: Any) -> None:
        self.transform = Compose(*transforms)
        self.pixels = np.random.default_rng(0).integers(0, 255, (40, 12, 12, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.pixels[index])), index % 3


def usual() -> list[Any]:
    return [RandomCrop(12, 2), RandomHorizontalFlip(), ToTensor(), Normalize()]


def larger(image: Any) -> Any:
    return image.resize((16, 16))


def batch_of(dataset: Any, prefix: int, operations: Any) -> Any:
    setting = {"prefix": prefix, "operations": operations, "where": "collate"}
    setup = STRATEGY.apply(Setup(), setting)
    (left,), (around,) = setup.dataset, setup.collate
    changed = left(dataset)
    return around(default_collate)([changed[index] for index in range(8)])


def test_the_chain_s_end_is_found_and_proven() -> None:
    found = probe(Pictures(*usual()), 8)
    assert [each["op"] for each in found["operations"]] == ["crop", "hflip", "scale", "normalize"]
    assert found["prefix"] == 0
    assert probe(Pictures(larger, *usual()), 8)["prefix"] == 1


@pytest.mark.parametrize("wrapped", [False, True], ids=["dataset", "subset"])
def test_each_image_is_one_of_what_the_dataset_s_own_may_give(wrapped: bool) -> None:
    plain = Pictures(*usual())
    dataset: Any = Subset(plain, list(range(20))) if wrapped else plain  # type: ignore[type-var,arg-type]
    prefix, operations = ending(plain.transform.transforms)
    torch.manual_seed(1)
    images, labels = batch_of(dataset, prefix, operations)
    assert labels.tolist() == [index % 3 for index in range(8)]
    crop, flip, scale, normal = operations
    for image, raw in zip(images, plain.pixels, strict=False):
        whole = torch.from_numpy(raw).permute(2, 0, 1)
        may_be = [
            next(iter(outcomes(next(iter(outcomes(flipped, scale))), normal)))
            for cropped in outcomes(whole, crop)
            for flipped in outcomes(cropped, flip)
        ]
        assert any(torch.allclose(image, each, atol=1e-6) for each in may_be)


def test_images_of_a_batch_draw_apart_and_as_often_as_they_should() -> None:
    images = torch.arange(4).to(torch.uint8).repeat(400, 1, 4, 1)
    torch.manual_seed(0)
    flipped = applied(images, ({"op": "hflip", "p": 0.25},))
    share = float((flipped[:, 0, 0, 0] == 3).float().mean())
    assert 0.18 < share < 0.32
    cropped = applied(images, ({"op": "crop", "size": [2, 2], "padding": [0, 0, 0, 0]},))
    assert torch.bincount(cropped[:, 0, 0, 0].long(), minlength=3).min() > 90  # three places, each about as often


def test_what_a_cache_has_done_already_is_not_done_again() -> None:
    chain = [ToTensor(), Normalize(), FlipOfTensors()]
    dataset = Pictures(*chain)
    prefix, operations = ending(chain)
    torch.manual_seed(0)
    images, _ = batch_of(KeptHeads(dataset, 2), prefix, operations)
    plain = torch.stack([Normalize()(ToTensor()(Image.fromarray(raw))) for raw in dataset.pixels[:8]])
    same = [
        torch.equal(one, other) or torch.equal(one, other.flip(2)) for one, other in zip(images, plain, strict=True)
    ]
    assert all(same)


def test_a_cache_goes_on_with_the_transforms_before_the_end() -> None:
    dataset = Pictures(larger, *usual())
    kept = KeptHeads(dataset, 1)
    assert untransformed(kept, 1)[0][0].shape == (3, 16, 16)
    assert untransformed(kept, 2)[0][0].shape == (3, 12, 12), "the crop is still the dataset's"
    assert kept[0][0].dtype == torch.float32, "the cache itself is as it was"


def test_what_does_otherwise_than_its_name_says_is_left_alone() -> None:
    assert "none of the outcomes" in probe(Pictures(Mirrored(), ToTensor()), 8)["reason"]
    assert "ends with function" in probe(Pictures(*usual(), larger), 8)["reason"]


def test_on_a_device_batches_of_whole_numbers_alone_are_transformed() -> None:
    setup = STRATEGY.apply(Setup(), {"prefix": 0, "operations": [{"op": "scale"}], "where": "device"})
    (around,) = setup.loss
    loss = around(lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    images = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)
    zeros = torch.zeros(2, 3, 4, 4)
    weight = torch.ones((), requires_grad=True)
    found = loss(lambda x: x * weight, [images, zeros])
    assert found.item() == 1.0
    assert found.requires_grad
    assert loss(lambda x: x, [zeros, zeros]).item() == 0.0


def test_a_device_gets_the_transforms_first() -> None:
    found = {"prefix": 0, "operations": [{"op": "scale"}], "ratio": 0.3}
    first, *_ = STRATEGY.settings(sample_case("cuda:0", inspected={"batched_transforms": found}))
    assert first["where"] == "device"
    assert [each["where"] for each in STRATEGY.settings(sample_case(inspected={"batched_transforms": found}))] == [
        "collate"
    ]


def test_a_script_s_patch_holds_the_transforms_for_training_alone(tmp_path: Path) -> None:
    valid = "    valid = DataLoader(Pictures(), batch_size=64)\n"
    evaluating = PLAIN.replace("    model = nn.Linear", f"{valid}    model = nn.Linear")
    sites = sites_in(tmp_path, evaluating, loader_validation="DataLoader(Pictures(), batch_size=64")
    setting = {"prefix": 1, "operations": [{"op": "hflip", "p": 0.5}, {"op": "scale"}], "where": "collate"}
    change = Change(strategy="batched_transforms", setting=setting)
    _, patch = patched(tmp_path, evaluating, change, sites=sites)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes[0].reason
    lines = changed_lines(patch.diff)
    assert "+def untransformed(dataset, prefix):" in lines
    (call,) = [line for line in lines if "untransformed(Pictures(), prefix=1)" in line]
    assert "batch_size=64" not in call, "evaluation reads as before"
    made: dict[str, Any] = {}
    texts = put(sites, change).texts
    (text,) = [text for name, text in texts.items() if "prepared" in name]
    exec(compile(text, "prepared.py", "exec"), made)
    batches = made["TransformedBatches"](default_collate, setting["operations"])
    images, labels = batches([(torch.full((3, 4, 4), 255, dtype=torch.uint8), 1)] * 2)
    assert images.tolist() == torch.ones(2, 3, 4, 4).tolist()
    assert labels.tolist() == [1, 1]
