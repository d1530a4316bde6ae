"""One small workload for each kind of report; each is slow for the reason that its report found."""

from __future__ import annotations

import gc
import io
import os
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import autoopt


def workload(data: Any, model: nn.Module, batch_size: int | None = 16, loss: Any = F.cross_entropy) -> autoopt.Workload:
    """Classification of batches ``(x, label)``, where no other loss is given."""
    optimizer = partial(torch.optim.SGD, lr=0.01)
    return autoopt.Workload(
        model=model, train_data=data, batch_size=batch_size, loss=loss, optimizer=optimizer, max_steps=2000
    )


def small_net(width: int, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes))


def lost_affinity() -> autoopt.Workload:
    """An import binds the process to one core, as some builds of BLAS and OpenCV do."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    data = TensorDataset(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,)))
    convolutions = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
    return workload(data, nn.Sequential(convolutions, nn.AdaptiveAvgPool2d(4), small_net(512)), 32)


class Products(Dataset[Any]):
    """A sample is a product of matrices, as in resizing and colour spaces: BLAS takes a thread for each core."""

    def __init__(self) -> None:
        self.factor = np.random.default_rng(0).standard_normal((192, 192)).astype("float32")

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> Any:
        made = self.factor
        for _ in range(2):
            made = np.tanh(self.factor @ made / 14)
        return torch.from_numpy(made[:8, :8].copy()), index % 10


def threads_in_workers() -> autoopt.Workload:
    """Loader workers whose library starts a thread for every core."""
    return workload(DataLoader(Products(), batch_size=8, num_workers=2, persistent_workers=True), small_net(64), None)


class Photographs(Dataset[Any]):
    """JPEG photographs of 1536 x 1024 pixels, decoded by Pillow and shrunk to 64 x 64."""

    def __init__(self, count: int = 24) -> None:
        from PIL import Image

        x, y = np.meshgrid(np.linspace(0, 9, 1536), np.linspace(0, 6, 1024))
        self.files = []
        for number in range(count):
            bands = [127 + 120 * np.sin((band + 1) * x + number + y * band) for band in range(3)]
            file = io.BytesIO()
            Image.fromarray(np.stack(bands, -1).astype("uint8")).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 8 * len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.asarray(image, dtype="float32") / 255), index % 10


def jpeg_decoding() -> autoopt.Workload:
    """Large photographs decoded whole and then shrunk."""
    return workload(Photographs(), small_net(64 * 64 * 3), 8)


def decoded_every_epoch() -> autoopt.Workload:
    """The same images decoded in every epoch again, though they would fit into memory."""
    return workload(Photographs(12), small_net(64 * 64 * 3), 8)


def _tokens(rows: list[Any]) -> Any:
    return torch.stack([torch.as_tensor(row["ids"]) for row in rows]), torch.tensor([int(row["label"]) for row in rows])


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(1000, 16), nn.Linear(16, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


def lists_of_numbers() -> autoopt.Workload:
    """A Hugging Face dataset without a format: token ids become Python lists, and tensors again."""
    import datasets

    ids = np.random.default_rng(0).integers(0, 1000, (1024, 2048))
    data = datasets.Dataset.from_dict({"ids": ids.tolist(), "label": (ids[:, 0] % 10).tolist()})
    return workload(DataLoader(data, batch_size=16, shuffle=True, collate_fn=_tokens), Embedding(), None)


class Remote(Dataset[Any]):
    """A sample waits for its storage."""

    def __init__(self, seconds: float = 0.004) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 2048

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.full((8, 8), float(index % 7)), index % 10


def remote_storage() -> autoopt.Workload:
    """Samples on slow remote storage, read one after the other."""
    return workload(Remote(), small_net(64))


FOLDER = "/var/tmp/autoopt-reported-files"
"""On a disk, under the same name in every process; 32 MiB that stay there."""


class Files(Dataset[Any]):
    """Samples in files of half a megabyte, of which the system keeps nothing in memory, as on some mounts."""

    def __init__(self, count: int = 64) -> None:
        self.root = FOLDER
        if not os.path.isdir(self.root):
            os.makedirs(self.root)
            for number in range(count):
                np.full((1 << 17,), number, dtype="float32").tofile(f"{self.root}/{number}.bin")
            os.sync()
        self.files = [f"{self.root}/{number}.bin" for number in range(count)]

    def __len__(self) -> int:
        return 8 * len(self.files)

    def __getitem__(self, index: int) -> Any:
        with open(self.files[index % len(self.files)], "rb", buffering=0) as file:
            values = np.frombuffer(file.read(), dtype="float32")
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return torch.from_numpy(values[:64].reshape(8, 8).copy()), index % 10


def files_on_disk() -> autoopt.Workload:
    """A dataset of files that are read from the disk each time."""
    return workload(Files(), small_net(64))


class Prepared(Dataset[Any]):
    """A sample takes a few milliseconds of Python."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        total = sum(i * index % 7 for i in range(30_000))
        return torch.full((8, 8), float(total % 5)), index % 10


class Sentences(Dataset[Any]):
    """Token ids of 8 to 120 places, most of them short; padded to a width by the dataset, or not at all."""

    def __init__(self, width: int | None) -> None:
        random = np.random.default_rng(0)
        lengths = np.clip(8 * np.exp(random.exponential(0.8, 2048)), 8, 120).astype(int)
        self.rows = [torch.from_numpy(random.integers(1, 1000, length)) for length in lengths]
        self.width = width

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        ids = self.rows[index]
        padded = ids if self.width is None else F.pad(ids, (0, self.width - len(ids)))
        return padded, int(ids.sum() % 10)


class Encoder(nn.Module):
    """A small transformer that leaves padding out."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(1000, width, padding_idx=0), nn.Linear(width, 10)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        empty = ids == 0
        found = self.layers(self.table(ids), src_key_padding_mask=empty).masked_fill(empty.unsqueeze(-1), 0.0)
        return self.head(found.sum(1) / (~empty).sum(1, keepdim=True))


def maximum_length() -> autoopt.Workload:
    """Every sequence padded to the longest that there may be."""
    return workload(DataLoader(Sentences(128), batch_size=16, shuffle=True), Encoder(), None)


def _padded(samples: list[Any]) -> Any:
    ids = nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return ids, torch.tensor([label for _, label in samples])


def mixed_lengths() -> autoopt.Workload:
    """Batches padded to their longest, in which short sequences meet long ones."""
    return workload(DataLoader(Sentences(None), batch_size=16, shuffle=True, collate_fn=_padded), Encoder(), None)


class Texts(Dataset[Any]):
    """Token ids with mask and labels, most of them short, padded to the longest of all."""

    def __init__(self, width: int = 128) -> None:
        self.rows, self.width = Sentences(None).rows, width

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        ids, missing = self.rows[index], (0, self.width - len(self.rows[index]))
        mask, labels = F.pad(torch.ones_like(ids), missing), F.pad(ids, missing, value=-100)
        return {"input_ids": F.pad(ids, missing), "attention_mask": mask, "labels": labels}


def _language_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss  # type: ignore[no-any-return]


def padded_texts() -> autoopt.Workload:
    """A causal model of transformers, fine-tuned on texts of very different lengths."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256,
    )  # fmt: skip
    return workload(Texts(), LlamaForCausalLM(config), 16, loss=_language_loss)


class Speaker(nn.Module):
    """A small model with the vocabulary of a large one."""

    def __init__(self, words: int = 32_000, width: int = 64) -> None:
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(words, width), nn.Linear(width, width), nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.table(ids)))).transpose(1, 2)


def large_vocabulary() -> autoopt.Workload:
    """Logits of a large vocabulary, which exist as a whole, with their gradient and their softmax."""
    ids = torch.randint(0, 32_000, (256, 129))
    return workload(TensorDataset(ids[:, :-1].clone(), ids[:, 1:].clone()), Speaker(), 8)


def no_workers() -> autoopt.Workload:
    """Samples prepared in Python in the training process."""
    return workload(Prepared(), small_net(64))


def workers_every_epoch() -> autoopt.Workload:
    """Workers that start again in every short epoch."""
    return workload(DataLoader(Remote(0.001), batch_size=256, num_workers=1), small_net(64), None)


class Records(Dataset[Any]):
    """Hundreds of thousands of Python objects in memory, and samples that make many more."""

    def __init__(self) -> None:
        self.records = [{"box": [i, i + 1], "label": i % 10} for i in range(300_000)]

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        made = [{"box": list(self.records[index + k]["box"])} for k in range(600)]
        return torch.full((8, 8), float(len(made) % 3)), self.records[index]["label"]


def garbage() -> autoopt.Workload:
    """A dataset of many Python objects, all of which a full collection visits."""
    return workload(Records(), small_net(64))


def _collecting(rows: list[Any]) -> Any:
    gc.collect()
    return torch.utils.data.default_collate(rows)


def forced_collection() -> autoopt.Workload:
    """``gc.collect()`` called for every batch."""
    data = TensorDataset(torch.randn(512, 8, 8), torch.randint(0, 10, (512,)))
    return workload(DataLoader(data, batch_size=16, collate_fn=_collecting), small_net(64), None)
