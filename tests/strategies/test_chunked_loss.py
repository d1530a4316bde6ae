"""Head and loss in chunks: the same loss and gradients, whatever the way from the logits to the loss."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from autoopt.benchmark.losses import loss_head
from autoopt.benchmark.trial_context import TrialContext
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.deferred_head import Logits, defer_head, head_of_loss
from tests.strategies.stand_ins import in_trial, promised, small_workload

REGISTRY = load_strategies()
WORDS = 301


class Speaker(nn.Module):
    def __init__(self, bias: bool = True, words: int = WORDS, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mix = nn.Embedding(words, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, words, bias=bias)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.table(ids))))  # type: ignore[no-any-return]


def batch() -> torch.Tensor:
    return torch.randint(0, WORDS, (4, 11), generator=torch.Generator().manual_seed(1))


def shifted(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1))


def viewed(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).view(-1, WORDS), ids.view(-1), ignore_index=7, label_smoothing=0.1)


def flattened(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.CrossEntropyLoss(reduction="sum")(model(ids).float().flatten(0, 1), ids.flatten())


def moved(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).transpose(1, 2), ids)


def ellipsis(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids)[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), ids[..., 1:].contiguous().view(-1))


def last(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids)[:, -1, :], ids[:, 0])


IN_CHUNKS = (shifted, viewed, flattened, moved, ellipsis, last)


def weighted(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), weight=torch.linspace(0.5, 1.5, WORDS))


def some_words(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids)[..., :100].flatten(0, 1), ids.flatten() % 100)


def penalized(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids)
    best = logits.argmax(-1)
    return (
        F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        + 1e-3 * logits.logsumexp(-1).square().mean()
        + 0 * best.sum()
    )


AS_BEFORE = (weighted, some_words, penalized)


def gradients(model: nn.Module, loss: Any, dtype: torch.dtype | None = None) -> tuple[float, dict[str, torch.Tensor]]:
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        value = loss(model, batch())
    value.backward()
    return float(value.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the chunks that were computed."""
    seen: list[int] = []
    plain = torch.autograd.grad

    def counted(loss: torch.Tensor, logits: torch.Tensor) -> Any:
        seen.append(logits.shape[0])
        return plain(loss, logits)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    return seen


@pytest.mark.parametrize("multiple", [1, 64])
@pytest.mark.parametrize("tied", [False, True], ids=["own", "tied"])
@pytest.mark.parametrize("loss", [*IN_CHUNKS, *AS_BEFORE], ids=lambda loss: loss.__name__)
def test_loss_and_gradients_are_the_same(loss: Any, tied: bool, multiple: int, chunks: list[int]) -> None:
    model = Speaker(bias=not tied, tied=tied)
    want, wanted = gradients(copy.deepcopy(model), loss)
    assert not chunks
    got, found = gradients(defer_head(copy.deepcopy(model), "head", 3, multiple), loss)
    assert bool(chunks) == (loss in IN_CHUNKS)
    assert max(chunks, default=0) <= 3
    assert got == pytest.approx(want, rel=1e-5)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", IN_CHUNKS, ids=lambda loss: loss.__name__)
def test_rows_without_a_label_get_no_logits(loss: Any, chunks: list[int]) -> None:
    def masked(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            plain = F.cross_entropy
            patch.setattr(F, "cross_entropy", lambda logits, labels, **more: plain(logits, few(labels, more), **more))
            return loss(model, ids)  # type: ignore[no-any-return]

    def few(labels: torch.Tensor, more: Any) -> torch.Tensor:
        return labels.masked_fill(labels > WORDS // 2, more.get("ignore_index", -100))

    model = Speaker()
    want, wanted = gradients(copy.deepcopy(model), masked)
    got, found = gradients(defer_head(copy.deepcopy(model), "head", 5, labelled=True), masked)
    assert 0 < sum(chunks) < 0.7 * batch().numel()
    assert got == pytest.approx(want, rel=1e-5)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_the_history_of_a_loss_tells_its_head_and_its_labels() -> None:
    model, ids = Speaker(tied=True), batch()
    for loss in IN_CHUNKS:
        head = loss_head(loss(model, ids))
        assert head.weight is model.head.weight
    head = loss_head(F.cross_entropy(model(ids).flatten(0, 1), ids.flatten().masked_fill(ids.flatten() > 99, -100)))
    assert (head.rows, head.labelled) == (44, int((ids <= 99).sum())) if head is not None else False
    twice = loss_head(viewed(model, ids) + moved(model, ids))
    assert twice is None, "logits of two losses are made once"
    assert loss_head(weighted(model, ids)) is None
    assert loss_head(some_words(model, ids)) is None
    assert loss_head(torch.ones(())) is None


def test_under_autocast_the_loss_is_float32_as_before(chunks: list[int]) -> None:
    model = Speaker()
    want, wanted = gradients(copy.deepcopy(model), shifted, torch.bfloat16)
    got, found = gradients(defer_head(copy.deepcopy(model), "head", 7), shifted, torch.bfloat16)
    assert chunks
    assert got == pytest.approx(want, rel=1e-3)
    for name, gradient in wanted.items():
        assert found[name].dtype is gradient.dtype
        torch.testing.assert_close(found[name], gradient, rtol=5e-2, atol=2e-3)


def test_evaluation_and_copies_are_what_they_were() -> None:
    plain, model = Speaker(), defer_head(Speaker(), "head", 3)
    assert isinstance(model(batch()), Logits)
    assert model(batch()).shape == (4, 11, WORDS)
    assert type(copy.deepcopy(model)(batch())) is Logits
    torch.testing.assert_close(model(batch()) + 0, plain(batch()))
    with torch.no_grad():
        assert type(model(batch())) is torch.Tensor
    assert type(model.eval()(batch())) is torch.Tensor
    assert model.state_dict().keys() == plain.state_dict().keys()


def live(loss: Any) -> TrialContext:
    ids = torch.randint(0, WORDS, (32, 11), generator=torch.Generator().manual_seed(2))
    given = small_workload(
        Speaker(), TensorDataset(ids), batch_size=4, loss=lambda model, batch: loss(model, batch[0]), max_steps=16
    )
    return in_trial(given)


@pytest.mark.parametrize("loss", IN_CHUNKS, ids=lambda loss: loss.__name__)
def test_the_head_is_found_by_what_goes_into_the_loss(loss: Any) -> None:
    found = head_of_loss(live(loss))
    assert found["path"] == "head"
    assert found["words"] == WORDS


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (penalized, "all of them at once"),
        (some_words, "no linear layer"),
        (weighted, "no linear layer"),
        pytest.param(lambda model, ids: model(ids).square().mean(), "no linear layer", id="no head"),
    ],
)
def test_a_head_that_is_used_otherwise_is_left_alone(loss: Any, reason: str) -> None:
    assert reason in head_of_loss(live(loss))["reason"]


def test_it_is_tried_where_the_logits_are_large() -> None:
    strategy = REGISTRY["chunked_loss"]
    small = sample_case(inspected={"chunked_loss": strategy.inspect(live(shifted))})
    assert "the logits are small" in strategy.applies(small).reason
    seconds = {"whole": 0.01, "256": 0.009, "1024": 0.007}
    found = {"path": "head", "rows": 4096, "words": 50257, "labelled": 4096, "seconds": seconds, "micro_batches": 1}
    case = sample_case(inspected={"chunked_loss": found})
    assert strategy.applies(case)
    first = next(iter(strategy.settings(case)))
    assert first == {"path": "head", "rows": 1024}
    predicted = promised(strategy, case, first)
    assert predicted.kind == "tried"
    cuda = sample_case("cuda:0", inspected={"chunked_loss": found})
    assert next(iter(strategy.settings(cuda)))["multiple"] == 64
    assert list(strategy.memory_savings(cuda)), "chunks save memory, too"


def _library_models() -> dict[str, Any]:
    """Models of transformers that make their loss themselves, small, with the path of the head."""
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 211, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    gpt2 = {"vocab_size": 211, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0}
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "eos_token_id": 0}
    bert = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
    t5 = {"vocab_size": 211, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return {
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config(**gpt2, **quiet), "lm_head"),
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**small, num_attention_heads=2), "lm_head"),
        "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**small, **bert), "cls.predictions.decoder"),
        "t5": (
            transformers.T5ForConditionalGeneration,
            transformers.T5Config(**t5, dropout_rate=0.0, decoder_start_token_id=0),
            "lm_head",
        ),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_models_that_make_their_loss_themselves(name: str, chunks: list[int]) -> None:
    kind, config, path = _library_models()[name]
    model = kind(config).train()
    ids = torch.randint(1, 211, (2, 12), generator=torch.Generator().manual_seed(0))

    def own(model: nn.Module, _: Any) -> torch.Tensor:
        return model(input_ids=ids, labels=ids).loss  # type: ignore[no-any-return]

    want, wanted = gradients(copy.deepcopy(model), own)
    got, found = gradients(defer_head(copy.deepcopy(model), path, 5), own)
    assert chunks
    assert got == pytest.approx(want, rel=1e-5)
    for parameter, gradient in wanted.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-5)
