"""Chunked loss: the logits of a large vocabulary are made and used some rows at a time."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy
from autoopt_strategies.common import Setting, Settings, tried_gain, while_kept

LEAST_BYTES = 4 << 20
"""Logits that are smaller than this stay in the caches anyway."""
ROWS = (256, 1024)
CUDA_ROWS = (2048, 8192)
TILE = 64
"""Words at a multiple of which tensor cores read whole tiles."""
EXTRA = 0.05
"""Share of a step that small chunks may cost where they save memory: products of fewer rows."""


class ChunkedLoss(Strategy):
    """Computes head and cross-entropy together, some rows at a time, so that the logits never exist as a whole.

    What it does: the last linear layer leaves its logits to ``cross_entropy``, which makes loss and gradients chunk by
        chunk; on CUDA the vocabulary is padded to a multiple of 64 inside, with words that have no share in the loss.
        Whatever else is done with the logits makes them as before; evaluation is untouched.
    When it helps: vocabularies of tens of thousands of words: less memory, fewer passes over it, larger batches.
    When it does not: small vocabularies; losses other than cross-entropy of hard labels; a model that is compiled
        whole, whose head is compiled with it.
    What it costs: sums in another order. It is verified on a real batch that loss and gradients are the same.
    Source: Wijmans et al., "Cut your losses in large-vocabulary language models", 2024;
        Hsu et al., "Liger kernel", 2024
    """

    name = "chunked_loss"
    title = "head and loss in chunks"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    example = Example({"path": "4", "rows": 8}, inspected={"path": "4", "rows": 4096, "words": 50257}, losses=1e-4)

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if "path" not in found:
            return Applies.no(found.get("reason") or "whether a head's logits go into a cross-entropy is not known")
        if case.setup.compile is not None and not case.setup.compile.regional:
            return Applies.no("the model is compiled whole, its head with it")
        if case.plan.setting("cuda_graphs") is not None:
            return Applies.no("the model's outputs come from a recorded graph")
        return Applies.yes()

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        return tried_gain(case, case.inspected(self.name).get("ratios", {}).get(str(setting["rows"])))

    def settings(self, case: Case) -> Settings:
        return while_kept(self._each(case))

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """Chunks hold a part of the logits, of their gradients and of their softmax."""
        return [(EXTRA, self._each(case)[0])] if self.applies(case) else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        from autoopt_strategies.compute.deferred_head import DeferHead

        return setup.with_model(DeferHead(setting["path"], setting["rows"], setting.get("multiple", 1)))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f"for rows in hidden.split({setting['rows']}):  # instead of F.cross_entropy(head(hidden), labels)\n"
            "    loss = loss + checkpoint(lambda rows: F.cross_entropy(head(rows), ..., reduction='sum'), rows)"
        )
        return Recipe.noted(
            code, "head and loss in chunks, as optimized_train.py does, or Liger's fused linear cross-entropy"
        )

    def inspect(self, live: Any) -> Setting:
        """The head whose logits go into a cross-entropy, and what chunks take over the whole, tried on copies."""
        from autoopt_strategies.compute.deferred_head import DeferHead
        from autoopt_strategies.compute.head_of_loss import head_of_loss

        found = head_of_loss(live, LEAST_BYTES)
        if "path" not in found:
            return found
        rows = [each for each in _rows(live.device.kind) if each < found["rows"]]
        multiple = TILE if live.device.kind == "cuda" else 1
        ratios = {str(each): live.ratio_with(DeferHead(found["path"], each, multiple)) for each in rows}
        return {**found, "ratios": {each: ratio for each, ratio in ratios.items() if ratio is not None}}

    def _each(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        ratios = found.get("ratios", {})
        rows = [each for each in _rows(case.device) if each < found["rows"]] or [found["rows"]]
        rows.sort(key=lambda each: ratios.get(str(each), 1.0))
        tile = {"multiple": TILE} if case.device == "cuda" and found["words"] % TILE else {}
        return [{"path": found["path"], "rows": each, **tile} for each in rows]


def _rows(device: str) -> tuple[int, ...]:
    return CUDA_ROWS if device == "cuda" else ROWS
