"""Chunked loss: the logits of a large vocabulary are made and used some rows at a time."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.predictions import seconds_of, tried_gain
from autoopt_strategies.trying import Setting, Settings, while_kept

LEAST_BYTES = 4 << 20
"""Logits that are smaller than this stay in the caches anyway."""
ROWS = (256, 1024)
CUDA_ROWS = (2048, 8192)
TILE = 64
"""Words at a multiple of which tensor cores read whole tiles."""
MOST_LABELLED = 0.9
"""Share of rows with a label above which leaving out the others is not worth the wait for their number."""
EXTRA = 0.05
"""Share of a step that small chunks may cost where they save memory: products of fewer rows."""


class ChunkedLoss(Strategy):
    """Computes head and cross-entropy together, some rows at a time, so that the logits never exist as a whole.

    What it does: the last linear layer leaves its logits to ``cross_entropy``, which makes loss and gradients chunk by
        chunk; on CUDA the vocabulary is padded to a multiple of 64 inside, with words that have no share in the loss.
        Rows whose label is ignored (padding, tokens that are not masked, prompts) get no logits at all.
        Whatever else is done with the logits makes them as before; evaluation is untouched.
    When it helps: vocabularies of thousands of words: less memory, fewer passes over it, larger batches; most of all
        where few rows have a label.
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
    example = Example(
        {"path": "4", "rows": 8},
        inspected={"path": "4", "rows": 4096, "words": 50257, "labelled": 4096},
        losses=1e-4,
    )

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
        found = case.inspected(self.name)
        passes = seconds_of(case, "forward") + seconds_of(case, "backward")
        with_it = found.get("seconds", {}).get(str(setting["rows"]))
        if with_it is None or not passes:
            return None
        saved = found["micro_batches"] * (found["seconds"]["whole"] - with_it)
        return tried_gain(case, max(1.0 - saved / passes, with_it / found["seconds"]["whole"]))

    def settings(self, case: Case) -> Settings:
        return while_kept(self._each(case.inspected(self.name), case.device))

    def memory_savings(self, case: Case) -> list[tuple[float, Setting]]:
        """Chunks hold a part of the logits, of their gradients and of their softmax."""
        return [(EXTRA, self._each(case.inspected(self.name), case.device)[0])] if self.applies(case) else []

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_model(Wrap("autoopt_strategies.compute.deferred_head:defer_head", tuple(setting.items())))

    def recipe(self, setting: Setting) -> Recipe:
        code = (
            f"for rows in hidden.split({setting['rows']}):  # instead of F.cross_entropy(head(hidden), labels)\n"
            "    loss = loss + checkpoint(lambda rows: F.cross_entropy(head(rows), ..., reduction='sum'), rows)"
        )
        note = "head and loss in chunks, as optimized_train.py does, or Liger's fused linear cross-entropy"
        return Recipe.noted(code, note)

    def inspect(self, live: Any) -> Setting:
        """The head whose logits go into a cross-entropy, and its seconds whole and in chunks."""
        from autoopt_strategies.compute.deferred_head import head_of_loss, seconds_of_head

        found = head_of_loss(live, LEAST_BYTES)
        if "path" not in found:
            return found
        each = self._each(found, live.device.kind)
        seconds = seconds_of_head(live, found, each)
        names = ["whole", *(str(setting["rows"]) for setting in each)]
        micro_batches = live.training.lengths.accumulation
        return {**found, "seconds": dict(zip(names, seconds, strict=True)), "micro_batches": micro_batches}

    def _each(self, found: Setting, device: str) -> list[Setting]:
        """The settings, what took least first."""
        few = {"labelled": True} if found["labelled"] < MOST_LABELLED * found["rows"] else {}
        most = found["labelled"] if few else found["rows"]
        sizes = CUDA_ROWS if device == "cuda" else ROWS
        rows = [each for each in sizes if each < most] or [sizes[0]]
        seconds = found.get("seconds", {})
        rows.sort(key=lambda each: seconds.get(str(each), 0.0))
        tile = {"multiple": TILE} if device == "cuda" and found["words"] % TILE else {}
        return [{"path": found["path"], "rows": each, **tile, **few} for each in rows]
