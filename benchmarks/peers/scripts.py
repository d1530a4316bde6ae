"""The scripts: where each is from, at which revision, how it is called, and which data stand in for its own."""

from __future__ import annotations

from typing import Any

from benchmarks.peers import data
from benchmarks.peers.fetching import HERE, OURS, SCRATCH, SITE, Origin, fetch
from benchmarks.whole_runs.cases import Case, Suite
from benchmarks.whole_runs.tools import RIVALS

EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
MINGPT = ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
NANOGPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
DLRM = ("facebookresearch/dlrm", "090956ee2319ddd349a42232958aefccfe3f7b0a")

_OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}
_VISION = {**_OFFLINE, "PYTHONPATH": str(SITE)}
_DIGITS = "scikit-learn's handwritten digits at 28 by 28, in MNIST's files"
_MADE_UP = "a made-up text"
_SHOWN = "; a script of ours that does what its documentation shows"


def _case(name: str, metric: str, tolerance: float, reason: str, words: tuple[str, ...], **more: Any) -> Case:
    below = more.pop("below", name)
    adapter = HERE / "loadtune" / f"{name}.py"
    options = {"script": "main.py", "variables": _OFFLINE, "higher": False, "watched": metric, **more}
    return Case(
        name=name,
        metric=metric,
        tolerance=tolerance,
        reason=reason,
        words=words,
        below=below,
        home=SCRATCH / "scripts",
        expert=None,
        loadtune=adapter if adapter.exists() else None,
        **options,
    )


_EPOCH = r"Train Epoch: 1 \[0/"
_SEED = ("--seed", "{seed}")
_AVERAGE = r"Average loss: ([0-9.]+)"

SCRIPTS: tuple[tuple[Case, Origin], ...] = (
    (
        _case("mnist_rnn", _AVERAGE, 0.1, "its epochs differ so", _SEED, first=_EPOCH, variables=_VISION),
        Origin(EXAMPLES, "550bd4948ff869a7815a1f1fac57c01a3591a3e8", lambda root: data.mnist(root / "data"), _DIGITS),
    ),
    (
        _case(
            "vae",
            r"Test set loss: ([0-9.]+)",
            1.0,
            "1 % of the bound",
            ("--epochs", "20", *_SEED),
            first=_EPOCH,
            variables=_VISION,
        ),
        Origin(EXAMPLES, "63909658102e8f7e0ab7f2ee12d229841cc45e02", lambda root: data.mnist(root / "data"), _DIGITS),
    ),
    (
        _case(
            "dcgan",
            r"Loss_D: ([0-9.]+)",
            0.5,
            "the last batch's loss of a game; its data are noise",
            ("--dataset", "fake", "--imageSize", "64", "--batchSize", "16", "--niter", "2", "--manualSeed", "{seed}"),
            first=r"\[0/2\]\[0/",
            variables=_VISION,
        ),
        Origin(EXAMPLES, "b150174ca228175d8bc97dba6dbdb3791d55e32b", lambda root: None, "none: its own fake data"),
    ),
    (
        _case(
            "siamese_network",
            _AVERAGE,
            0.05,
            "one epoch is far from its end",
            ("--epochs", "1", *_SEED),
            first=_EPOCH,
            variables=_VISION,
        ),
        Origin(EXAMPLES, "d2e8e09207bd99af794005631e9993a15f2fb963", lambda root: data.mnist(root / "data"), _DIGITS),
    ),
    (
        _case(
            "word_language_model",
            r"test loss +([0-9.]+)",
            0.05,
            "1 % of the loss",
            ("--use-optimizer", "--lr", "0.001", "--epochs", "5", *_SEED),
            watched=r"valid loss +([0-9.]+)",
        ),
        Origin(
            EXAMPLES,
            "581b17cecd7d8008387c89f8e4b708dd33d88d01",
            lambda root: data.corpus(root / "word_language_model" / "data" / "wikitext-2"),
            _MADE_UP,
            tuple(f"word_language_model/{name}.py" for name in ("main", "model", "data")),
        ),
    ),
    (
        _case(
            "imagenet",
            r"Acc@1 +([0-9.]+) Acc@5",
            20.0,
            "one epoch of 480 pictures; 80 to evaluate",
            ("data", "-a", "resnet18", "-b", "8", "--lr", "0.01", "--epochs", "1", *_SEED),
            higher=True,
            first=r"Epoch: \[0\]\[",
            variables=_VISION,
        ),
        Origin(
            EXAMPLES,
            "42e5e9fa64f023f019689ab871332d5e3ffa2ab8",
            lambda root: data.pictures(root / "imagenet" / "data"),
            "JPEG pieces of photographs that scikit-learn brings",
        ),
    ),
    (
        _case(
            "mingpt",
            r"train loss ([0-9.]+)",
            0.1,
            "the loss of one batch",
            ("--model.model_type=gpt-micro", "--trainer.max_iters=50", "--system.seed={seed}"),
            below=".",
            script="projects/chargpt/chargpt.py",
            first=r"iter 0:",
            variables={**_OFFLINE, "PYTHONPATH": "{tree}"},
        ),
        Origin(
            MINGPT,
            "5de925b06f4d6062a289cb24fe945e0f8a2119db",
            lambda root: data.one_file(root / "input.txt", 60_000, "O God, O God!\n"),
            _MADE_UP,
            ("projects/chargpt", "mingpt"),
        ),
    ),
    (
        _case(
            "nanogpt",
            r"val loss ([0-9.]+)",
            0.05,
            "2 % of the loss; it has no option for a seed",
            (
                *("--device=cpu", "--compile=False", "--dataset=shakespeare_char", "--eval_interval=250"),
                *("--eval_iters=5", "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128"),
                *("--gradient_accumulation_steps=1", "--dtype=float32", "--max_iters=500"),
            ),
            below=".",
            script="train.py",
            first=r"^iter 0:",
        ),
        Origin(
            NANOGPT,
            "de5785051050d64bbda37a4964c2c079f0739b2b",
            lambda root: data.characters(root / "data" / "shakespeare_char"),
            _MADE_UP,
            ("train.py", "model.py", "configurator.py"),
        ),
    ),
    (
        _case(
            "lightning_transformer",
            r"test_loss\D+([0-9.]+)",
            0.1,
            "1 % of the loss; its seed stands in the script",
            (),
            below="examples/pytorch/basics",
            script="transformer.py",
            watched="val_loss",
        ),
        Origin(
            LIGHTNING,
            "dbd990d7f27594bc732f8056114df3f14ed382a1",
            lambda root: data.one_file(root / "examples/pytorch/basics/data/wikitext-2.txt", 154_000),
            _MADE_UP,
        ),
    ),
    (
        _case(
            "transformers_trainer",
            r"'train_loss': '?([0-9.]+)",
            0.05,
            "2 % of the loss",
            ("{seed}",),
            below=".",
            script="transformers_trainer.py",
            watched="",
        ),
        Origin(OURS, "", lambda root: data.one_file(root / "input.txt", 40_000), _MADE_UP + _SHOWN),
    ),
    (
        _case(
            "accelerate_loop",
            r"eval accuracy ([0-9.]+)",
            0.02,
            "six of 297 pictures",
            ("{seed}",),
            below=".",
            script="accelerate_loop.py",
            higher=True,
        ),
        Origin(OURS, "", lambda root: None, "scikit-learn's handwritten digits" + _SHOWN),
    ),
    (
        _case(
            "dlrm",
            r"loss ([0-9.]+)",
            0.02,
            "its data are noise",
            (
                *("--arch-sparse-feature-size=16", "--arch-embedding-size=40000-20000-10000-5000-2000-1000-500-100"),
                *("--arch-mlp-bot=13-512-256-64-16", "--arch-mlp-top=512-256-1", "--data-generation=random"),
                *("--mini-batch-size=128", "--num-batches=1500", "--loss-function=bce", "--round-targets=True"),
                *("--learning-rate=0.1", "--print-freq=100", "--numpy-rand-seed={seed}"),
            ),
            below=".",
            script="dlrm_s_pytorch.py",
        ),
        Origin(
            DLRM,
            "e1b42b74662a96c8d320ae58e13c1da0272e432a",
            lambda root: None,
            "none: its own random data",
            (
                *("dlrm_s_pytorch.py", "dlrm_data_pytorch.py", "data_utils.py", "data_loader_terabyte.py"),
                *("extend_distributed.py", "mlperf_logger.py", "optim", "tricks"),
            ),
        ),
    ),
)
ORIGINS = {case.name: origin for case, origin in SCRIPTS}
PEERS = Suite(
    "peers",
    {case.name: case for case, _ in SCRIPTS},
    SCRATCH / "scripts",
    tools=("autoopt", *RIVALS),
    freezes=False,
    fetch=lambda case: fetch(case, ORIGINS[case.name]),
)
