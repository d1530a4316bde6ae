"""The scripts: where each is from, at which revision, how it is called, and which data stand in for its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import data

EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
MINGPT = ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
NANOGPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
DLRM = ("facebookresearch/dlrm", "090956ee2319ddd349a42232958aefccfe3f7b0a")
OURS = ("", "")
"""A script in ``wrappers/``, where the repository cannot be had."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One script, untouched.

    Attributes:
        blob: git's name of the script's content at the revision.
        folder: the working directory, below the repository.
        beside: files and folders of the repository that it needs; none: all of ``folder``.
        path: what is put on ``PYTHONPATH``, below the repository.
        metric: a pattern with one group, for the number that it prints at each evaluation.
        warm_up: steps before the judge counts.
        steps: steps that the judge counts.
        stand_in: what its data are here.
    """

    name: str
    kind: str
    source: tuple[str, str]
    blob: str
    folder: str
    script: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    stand_in: str
    warm_up: int
    steps: int
    beside: tuple[str, ...] = ()
    path: str | None = None
    metric: str | None = None
    needs: frozenset[str] = field(default_factory=frozenset)


def _nothing(_: Path) -> None:
    """Its own data are made by the script itself."""


_DIGITS = "scikit-learn's handwritten digits at 28 by 28, in MNIST's files"
_MADE_UP = "a made-up text"
_VISION = frozenset({"torchvision"})

WORKLOADS = {
    one.name: one
    for one in (
        Workload(
            "mnist_rnn",
            "recurrent",
            EXAMPLES,
            "550bd4948ff869a7815a1f1fac57c01a3591a3e8",
            "mnist_rnn",
            "main.py",
            (),
            lambda root: data.mnist(root / "data"),
            _DIGITS,
            warm_up=20,
            steps=350,
            metric=r"Average loss: ([0-9.]+)",
            needs=_VISION,
        ),
        Workload(
            "vae",
            "loader-bound",
            EXAMPLES,
            "63909658102e8f7e0ab7f2ee12d229841cc45e02",
            "vae",
            "main.py",
            (),
            lambda root: data.mnist(root / "data"),
            _DIGITS,
            warm_up=20,
            steps=350,
            metric=r"Test set loss: ([0-9.]+)",
            needs=_VISION,
        ),
        Workload(
            "dcgan",
            "convolution, two optimizers",
            EXAMPLES,
            "b150174ca228175d8bc97dba6dbdb3791d55e32b",
            "dcgan",
            "main.py",
            ("--dataset", "fake", "--imageSize", "64", "--batchSize", "16", "--manualSeed", "1"),
            _nothing,
            "none: its own fake data",
            warm_up=4,
            steps=20,
            needs=_VISION,
        ),
        Workload(
            "siamese_network",
            "convolution",
            EXAMPLES,
            "d2e8e09207bd99af794005631e9993a15f2fb963",
            "siamese_network",
            "main.py",
            (),
            lambda root: data.mnist(root / "data"),
            _DIGITS,
            warm_up=4,
            steps=24,
            metric=r"Average loss: ([0-9.]+)",
            needs=_VISION,
        ),
        Workload(
            "word_language_model",
            "recurrent, no DataLoader",
            EXAMPLES,
            "581b17cecd7d8008387c89f8e4b708dd33d88d01",
            "word_language_model",
            "main.py",
            ("--use-optimizer", "--lr", "0.001"),
            lambda root: data.corpus(root / "word_language_model" / "data" / "wikitext-2"),
            _MADE_UP,
            warm_up=10,
            steps=100,
            beside=tuple(f"word_language_model/{name}.py" for name in ("main", "model", "data")),
            metric=r"valid loss +([0-9.]+)",
        ),
        Workload(
            "imagenet",
            "convolution, large images",
            EXAMPLES,
            "42e5e9fa64f023f019689ab871332d5e3ffa2ab8",
            "imagenet",
            "main.py",
            ("--dummy", "-a", "resnet18", "-b", "8", "--seed", "1"),
            _nothing,
            "none: its own --dummy",
            warm_up=3,
            steps=12,
            needs=_VISION,
        ),
        Workload(
            "mingpt",
            "GPT with hand-written attention",
            MINGPT,
            "5de925b06f4d6062a289cb24fe945e0f8a2119db",
            ".",
            "projects/chargpt/chargpt.py",
            ("--model.model_type=gpt-micro",),
            lambda root: data.one_file(root / "input.txt", 60_000, "O God, O God!\n"),
            _MADE_UP,
            warm_up=10,
            steps=40,
            beside=("projects/chargpt", "mingpt"),
            path=".",
        ),
        Workload(
            "nanogpt",
            "GPT, no DataLoader, exec-configured",
            NANOGPT,
            "de5785051050d64bbda37a4964c2c079f0739b2b",
            ".",
            "train.py",
            (
                "--device=cpu",
                "--compile=False",
                "--dataset=shakespeare_char",
                "--eval_interval=250",
                "--eval_iters=5",
                "--block_size=64",
                "--batch_size=12",
                "--n_layer=4",
                "--n_head=4",
                "--n_embd=128",
                "--gradient_accumulation_steps=1",
                "--dtype=float32",
            ),
            lambda root: data.characters(root / "data" / "shakespeare_char"),
            _MADE_UP,
            warm_up=20,
            steps=200,
            beside=("train.py", "model.py", "configurator.py"),
            metric=r"val loss ([0-9.]+)",
        ),
        Workload(
            "lightning_transformer",
            "Lightning",
            LIGHTNING,
            "dbd990d7f27594bc732f8056114df3f14ed382a1",
            "examples/pytorch/basics",
            "transformer.py",
            (),
            lambda root: data.one_file(root / "examples/pytorch/basics/data/wikitext-2.txt", 260_000),
            _MADE_UP,
            warm_up=8,
            steps=60,
        ),
        Workload(
            "transformers_trainer",
            "transformers Trainer",
            OURS,
            "",
            ".",
            "transformers_trainer.py",
            (),
            lambda root: data.one_file(root / "input.txt", 40_000),
            _MADE_UP
            + "; a script of ours that does what its documentation shows, for its repository is too large to fetch",
            warm_up=6,
            steps=40,
        ),
        Workload(
            "accelerate_loop",
            "accelerate's own loop",
            OURS,
            "",
            ".",
            "accelerate_loop.py",
            (),
            _nothing,
            "scikit-learn's handwritten digits; a script of ours that does what its documentation shows, for its own "
            "examples want data that must be fetched",
            warm_up=10,
            steps=100,
            metric=r"eval accuracy ([0-9.]+)",
        ),
        Workload(
            "dlrm",
            "tabular, embeddings",
            DLRM,
            "e1b42b74662a96c8d320ae58e13c1da0272e432a",
            ".",
            "dlrm_s_pytorch.py",
            (
                "--arch-sparse-feature-size=16",
                "--arch-embedding-size=40000-20000-10000-5000-2000-1000-500-100",
                "--arch-mlp-bot=13-512-256-64-16",
                "--arch-mlp-top=512-256-1",
                "--data-generation=random",
                "--mini-batch-size=128",
                "--num-batches=20000",
                "--loss-function=bce",
                "--round-targets=True",
                "--learning-rate=0.1",
                "--print-freq=100",
            ),
            _nothing,
            "none: its own random data",
            warm_up=10,
            steps=150,
            beside=(
                *("dlrm_s_pytorch.py", "dlrm_data_pytorch.py", "data_utils.py", "data_loader_terabyte.py"),
                *("extend_distributed.py", "mlperf_logger.py", "optim", "tricks"),
            ),
        ),
    )
}
