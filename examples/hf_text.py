"""Which module of Python's library is this piece of source from? A small BERT, made from its configuration."""

import importlib.util
import re
import zlib
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

MODULES = ["argparse", "ast", "decimal", "difflib", "doctest", "inspect", "pickle", "statistics", "tarfile", "typing"]
WORDS, VOCABULARY = 48, 4096


class Pieces(Dataset):
    """Pieces of source, one token a word; every fifth is for validation."""

    def __init__(self, train):
        self.samples = []
        for label, name in enumerate(MODULES):
            words = re.findall(rb"\w+|[^\w\s]", source_file(name).read_bytes())
            tokens = [zlib.crc32(word) % VOCABULARY for word in words]
            pieces = [tokens[at : at + WORDS] for at in range(0, min(len(tokens), 9_000) - WORDS, WORDS)]
            self.samples += [(piece, label) for at, piece in enumerate(pieces) if (at % 5 != 0) == train]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        tokens, label = self.samples[index]
        tokens = torch.tensor(tokens)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": label}


def source_file(name):
    return Path(importlib.util.find_spec(name).origin)


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
        learning_rate=5e-4,
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
