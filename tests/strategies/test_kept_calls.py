"""Functions that make the same of the same arguments while a batch is made: found, kept, and decorated in a patch."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from autoopt.records import Change, Sites
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from autoopt_strategies.input.batches import equal
from autoopt_strategies.input.kept_calls import KeepCalls, repeated_calls
from autoopt_strategies.input.probes import spread
from scripted import REGISTRY, patched
from tests.strategies.stand_ins import promised

STRATEGY = REGISTRY["prepared_samples"]
TEXT = '''"""Sentences that are cut into numbers again in every epoch."""

import random

import torch
from torch.utils.data import Dataset

CALLS = []


def slow(text):
    for _ in range(20000):
        pass
    return [ord(letter) for letter in text]


def numbers(text, *, base: int = 0):
    # of each letter
    CALLS.append(text)
    return [number - base for number in slow(text)]


def table(size):
    for _ in range(20000):
        pass
    return torch.ones(size)


def noisy(text):
    numbers = slow(text)
    return [number + random.random() for number in numbers]


class Sentences(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return f"sentence {index:02d}"


held = (numbers,)


def collate(batch):
    return torch.stack([torch.tensor(held[0](text, base=3)) * table(11) for text in batch])


def collate_noisy(batch):
    return torch.tensor([noisy(text) for text in batch])


def collate_in_place(batch):
    made = [numbers(text) for text in batch]
    for each in made:
        each.append(0)
    return torch.tensor(made)


def collate_lists(batch):
    return torch.tensor([len(made_of([text])) for text in batch])


def made_of(texts):
    for _ in range(20000):
        pass
    return texts
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "sentences.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sentences", raising=False)
    return importlib.import_module("sentences")


def found_in(module: ModuleType, collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    dataset = module.Sentences()
    return dict(repeated_calls(dataset, collate, spread(dataset)))


def test_functions_are_found_that_make_the_same_of_the_same_arguments(module: ModuleType) -> None:
    found = found_in(module, module.collate)
    assert [each["function"] for each in found["functions"]] == ["numbers", "table"], "the outermost of each"
    assert found["functions"][0] == {"file": "sentences.py", "module": "sentences", "function": "numbers"}
    assert found["ratio"] < 0.5
    assert found["sample_bytes"] >= 11, "what differs from sample to sample takes room"
    assert [each["function"] for each in found["shared"]["functions"]] == ["table"], "the same for every sample"
    assert found["ratio"] <= found["shared"]["ratio"] <= 1.0
    before = len(module.CALLS)
    module.collate(["as it is written"[:11]] * 3)
    assert len(module.CALLS) == before + 3, "the functions are left as they were"


@pytest.mark.parametrize(
    ("collate", "reason"),
    [
        ("collate_lists", "simple arguments"),
        ("len", "simple arguments"),
    ],
    ids=["lists of texts", "none at all"],
)
def test_what_cannot_be_kept_says_why(module: ModuleType, collate: str, reason: str) -> None:
    assert reason in found_in(module, getattr(module, collate, len))["reason"]


@pytest.mark.parametrize("collate", ["collate_noisy", "collate_in_place"])
def test_a_function_that_draws_or_whose_result_is_changed_is_not_kept(module: ModuleType, collate: str) -> None:
    found = found_in(module, getattr(module, collate))
    assert [each["function"] for each in found["functions"]] == ["slow"], "what it calls is"


def test_whoever_holds_a_function_calls_it_once(module: ModuleType) -> None:
    batch = [module.Sentences()[index] for index in (3, 1, 3)]
    plain = module.collate(batch)
    module.CALLS.clear()
    dataset = module.Sentences()
    assert KeepCalls((("sentences", "numbers"),))(dataset) is dataset
    for _ in range(2):
        assert equal(module.collate(batch), plain)
    assert module.CALLS == ["sentence 03", "sentence 01"]
    with pytest.raises(TypeError, match="numbers"):
        module.numbers()


def test_the_patch_decorates_them(tmp_path: Path) -> None:
    text = TEXT + "\n\nprint(collate([Sentences()[3]]).sum())\n"
    (tmp_path / "train.py").write_text(text)
    functions = [{"file": "train.py", "module": "__main__", "function": name} for name in ("numbers", "table")]
    change = Change(
        strategy="prepared_samples",
        setting={"form": "calls", "where": "memory", "each": True, "functions": functions},
    )
    sites = Sites(command=("python", "train.py"), cwd=str(tmp_path))
    after, patch = patched(tmp_path, text, change, sites=sites)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes
    assert "@kept_by_arguments\ndef numbers(text, *, base: int = 0):\n    # of each letter\n" in after
    assert "@kept_by_arguments\ndef table(size):\n" in after
    assert "def kept_by_arguments(" in patch.diff
    removed = [line for line in patch.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert removed == []


def test_it_is_offered_with_the_workers_that_it_makes_needless() -> None:
    functions = [{"file": "train.py", "module": "__main__", "function": "numbers"}]
    probed = {"functions": functions, "ratio": 0.2, "sample_seconds": 0.01, "sample_bytes": 64.0}
    case = sample_case(inspected={"prepared_samples": {"calls": probed}})
    setting = next(each for each in STRATEGY.settings(case) if each["form"] == "calls")
    assert setting["each"]
    assert promised(STRATEGY, case, setting).value > 1.0
    assert STRATEGY.apply(Setup(), setting).dataset
    same = sample_case(
        inspected={"prepared_samples": {"calls": {**probed, "sample_seconds": 0.0, "sample_bytes": 0.0}}}
    )
    setting = next(each for each in STRATEGY.settings(same) if each["form"] == "calls")
    assert not setting["each"]
    assert STRATEGY.companions(same, setting) == []
    nothing = sample_case(inspected={"prepared_samples": {"calls": {"reason": "no function"}}})
    assert all(each["form"] != "calls" for each in STRATEGY.settings(nothing))


def test_what_is_the_same_for_every_sample_may_be_kept_alone() -> None:
    """Each worker makes it once; what differs from sample to sample would be read once more in each epoch."""
    functions = [{"file": "train.py", "module": "__main__", "function": name} for name in ("numbers", "table")]
    probed = {"functions": functions, "ratio": 0.2, "sample_seconds": 0.01, "sample_bytes": 64.0}
    probed["shared"] = {"functions": functions[1:], "ratio": 0.3}
    case = sample_case(inspected={"prepared_samples": {"calls": probed}})
    whole, shared = (each for each in STRATEGY.settings(case) if each["form"] == "calls")
    if whole["functions"] == functions[1:]:
        whole, shared = shared, whole
    assert (whole["each"], shared["each"], shared["functions"]) == (True, False, functions[1:])
    assert STRATEGY.once_seconds(case, shared) == 0.0 < STRATEGY.once_seconds(case, whole)
    assert STRATEGY.companions(case, shared) == []


def test_random_numbers_are_those_of_the_script(module: ModuleType) -> None:
    def collate(batch: list[str]) -> torch.Tensor:
        return module.collate(batch) + random.random()

    found = found_in(module, collate)
    assert [each["function"] for each in found["functions"]] == ["numbers", "table"]
