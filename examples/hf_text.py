"""Which module of Python's library is this piece of source from? A small BERT, made from its configuration.

As in many a first script, the file is read and cut into words whenever a sample is asked for: input bound.
"""

import importlib.util
import re
import zlib
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

MODULES = ["argparse", "ast", "difflib", "doctest", "inspect", "pickle", "statistics", "tarfile", "typing", "zipfile"]
WORDS, BYTES, VOCABULARY = 48, 50_000, 4096


def words(name):
    """The beginning of a module's source as words and signs."""
    source = Path(importlib.util.find_spec(name).origin).read_bytes()[:BYTES]
    return re.findall(rb"\w+|[^\w\s]", source)


class Pieces(Dataset):
    """Pieces of source, one token a word; every fifth is for validation."""

    def __init__(self, train):
        self.places = []
        for label, name in enumerate(MODULES):
            starts = range(0, len(words(name)) - WORDS, WORDS)
            self.places += [(label, at) for number, at in enumerate(starts) if (number % 5 != 0) == train]

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        label, at = self.places[index]
        piece = words(MODULES[label])[at : at + WORDS]
        tokens = torch.tensor([zlib.crc32(word) % VOCABULARY for word in piece])
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": label}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def build():
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=WORDS,
        num_labels=len(MODULES),
    )
    arguments = TrainingArguments(
        output_dir="autoopt-runs/hf_text",
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        learning_rate=2e-3,
        num_train_epochs=6,
        warmup_steps=50,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    return Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Pieces(train=True),
        eval_dataset=Pieces(train=False),
        compute_metrics=accuracy,
    )


if __name__ == "__main__":
    trainer = build()
    trainer.train()
    print(trainer.evaluate())
