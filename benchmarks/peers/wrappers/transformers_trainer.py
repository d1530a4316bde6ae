"""A small GPT-2 from a configuration, trained by transformers' Trainer, in the way of its documentation."""

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Characters(Dataset):
    """Blocks of a text, character by character."""

    def __init__(self, file, block=64):
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
        number = {letter: place for place, letter in enumerate(sorted(set(text)))}
        self.size = len(number)
        self.ids = torch.tensor([number[letter] for letter in text])
        self.block = block

    def __len__(self):
        return len(self.ids) // self.block - 1

    def __getitem__(self, index):
        ids = self.ids[index * self.block : (index + 1) * self.block]
        return {"input_ids": ids, "labels": ids.clone()}


def main():
    train_dataset = Characters("input.txt")
    config = GPT2Config(vocab_size=train_dataset.size, n_positions=64, n_embd=192, n_layer=4, n_head=4)
    model = GPT2LMHeadModel(config)
    training_args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=16,
        num_train_epochs=1,
        seed=int(sys.argv[1]),
        learning_rate=5e-4,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=train_dataset)
    trainer.train()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
