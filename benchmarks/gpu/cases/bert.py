"""BERT-base fine-tuning as in a first script: sequence 128, batch 32, fp32, 2 workers; made from its configuration.

The weights are random, as there is no network to fetch any. Sentences are generated: each of four
subjects prefers its own words. The dataset splits, looks up and pads each sentence when it is asked for it.
"""

import random
import zlib

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

import autoopt

SUBJECTS = 4
FULL = {"samples": 32_000, "length": 128, "batch": 32, "config": {}, "evaluate_every": 250, "lr": 2e-5}
TOY = {
    "samples": 96, "length": 16, "batch": 8, "evaluate_every": 5, "lr": 1e-3,
    "config": {
        "vocab_size": 512, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 16,
    },
}  # fmt: skip
METRIC = "accuracy"
FIRST_WORD, CLS, SEP = 200, 101, 102
OWN = [[f"s{subject}w{number}" for number in range(40)] for subject in range(SUBJECTS)]
NOBODYS = [f"w{number}" for number in range(8000)]


def sentence(number, length):
    """Words as text: about one in four belongs to the subject, the rest to nobody."""
    rng = random.Random(number)
    count = rng.randint(length // 2, length)
    words = rng.choices(OWN[number % SUBJECTS], k=count // 4) + rng.choices(NOBODYS, k=count - count // 4)
    rng.shuffle(words)
    return " ".join(words)


class Sentences(Dataset):
    """Every tenth sentence is for validation."""

    def __init__(self, size, train):
        self.length, self.vocabulary = size["length"], size["config"].get("vocab_size", 30522)
        chosen = [n for n in range(size["samples"]) if ((n // SUBJECTS) % 10 != 0) == train]
        self.samples = [(sentence(number, self.length), number % SUBJECTS) for number in chosen]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        text, label = self.samples[index]
        words = [FIRST_WORD + zlib.crc32(word.encode()) % (self.vocabulary - FIRST_WORD) for word in text.split()]
        tokens = [CLS, *words[: self.length - 2], SEP]
        padding = [0] * (self.length - len(tokens))
        return {
            "input_ids": torch.tensor(tokens + padding),
            "attention_mask": torch.tensor([1] * len(tokens) + padding),
            "labels": torch.tensor(label),
        }


def loss(model, batch):
    return model(**batch).loss


def evaluate(model, batches):
    hits = total = 0
    for batch in batches:
        guess = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
        hits += (guess == batch["labels"]).sum().item()
        total += len(guess)
    return {"accuracy": hits / total}


def build(size=FULL):
    def optimizer(params, **options):
        return torch.optim.AdamW(params, lr=size["lr"], **options)

    train, valid = Sentences(size, True), Sentences(size, False)
    return autoopt.Workload(
        model=BertForSequenceClassification(BertConfig(num_labels=SUBJECTS, **size["config"])),
        train_data=DataLoader(train, batch_size=size["batch"], shuffle=True, num_workers=2 if size is FULL else 0),
        loss=loss,
        optimizer=optimizer,
        valid_data=DataLoader(valid, batch_size=size["batch"]),
        evaluate=evaluate,
        target=autoopt.Target("accuracy"),
        max_epochs=3,
        evaluate_every=size["evaluate_every"],
    )


def build_toy():
    return build(TOY)
