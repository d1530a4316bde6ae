"""Progressive resizing: training begins on smaller images and ends on those that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoopt import Applies, Case, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.trying import Setting, Settings, first_line, more_or_less

SHARES = (0.3, 0.6, 0.15)
"""Of the planned steps until images have their own size: longer where that does well, shorter where not."""
SIZES = (0.5, 0.75)
"""Sizes on the way, each for as many steps; few, since a compiler and cuDNN begin anew with each."""
MULTIPLE, LEAST = 4, 16


def growing(
    step: Any, own: Sequence[int], sizes: Sequence[Sequence[int]], full_from: int
) -> Callable[[list[Any]], Any]:
    """The step on images of the size that belongs to it.

    The count of steps stands in the optimizer's first group, which checkpoints hold: a training that is resumed goes on
    at the size where it stood.

    Args:
        own: height and width of the images as they come; other tensors stay as they are.
        sizes: height, width, and the step from which on.
        full_from: the first step at the images' own size.
    """
    if not hasattr(step, "optimizer"):
        raise ValueError("progressive resizing must wrap the step first: leave cuda_graphs out of the plan")

    def resized(batches: list[Any]) -> Any:
        group = step.optimizer.param_groups[0]  # another one after a checkpoint was loaded
        number = group.get("resized_steps", 0)
        group["resized_steps"] = number + 1
        begun = [(height, width) for height, width, begins in sizes if number >= begins]
        if number >= full_from or not begun:
            return step(batches)
        return step([at_size(batch, own, begun[-1]) for batch in batches])

    return resized


class ProgressiveResizing(Strategy):
    """Begins training on smaller images.

    No run and no benchmark has kept it so far.

    What it does: the first steps see the batch's images at half and three quarters of their side, the rest as they are;
        evaluation always sees them as they are.
    When it helps: convolution nets that end in a global pooling, trained from scratch: a step at half the side computes
        a quarter.
    When it does not: models of a fixed input size; input-bound steps, whose images are decoded at full size all the
        same; targets that are reached before the images have grown. Its throughput is that of the first, small images.
    What it costs: another training, so that it is trained to the target, with more than one seed.
    Source: Howard, "Training ImageNet in 3 hours", fast.ai, 2018; Tan and Le, "EfficientNetV2", ICML 2021
    """

    name = "progressive_resizing"
    title = "progressive resizing"
    stages = frozenset({"forward", "backward"})
    risk = Risk.MODEL
    excludes = frozenset({"cuda_graphs"})
    example = Example(
        {"own": [8, 8], "sizes": [[4, 4, 0], [6, 6, 1]], "full_from": 2},
        inspected={"own": [32, 32]},
        losses=None,
    )

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if not found.get("own"):
            return Applies.no(found.get("reason") or "its batches hold no images")
        if case.setup.step:
            return Applies.no("a step that is replayed as a whole has images of one size")
        if not case.planned_steps:
            return Applies.no("the length of the run is not known")
        return Applies.yes()

    def settings(self, case: Case) -> Settings:
        own, steps = case.inspected(self.name)["own"], case.planned_steps or 1
        return more_or_less(*(setting_of(own, share, steps) for share in SHARES))

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return setup.with_step(Wrap.of(growing, **setting))

    def recipe(self, setting: Setting) -> Recipe:
        sides = ", ".join(f"{h}x{w} from {begins}" for h, w, begins in setting["sizes"])
        return Recipe.noted(
            f"# sides by step: {sides}\nif step < {setting['full_from']}:\n"
            "    images = torch.nn.functional.interpolate(images, size_at(step), mode='area')"
        )

    def inspect(self, live: Any) -> Setting:
        """The images' height and width, where the loss takes them at the smallest size, too."""
        import torch
        from torch.utils._pytree import tree_leaves

        training = live.training
        batch = training.to_device(training.next()[0])
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        sides = {(t.shape[-2], t.shape[-1]) for t in tensors if t.dim() == 4 and t.is_floating_point()}
        if len(sides) != 1:
            return {"reason": "" if not sides else "its images are of several sizes"}
        own = next(iter(sides))
        if min(own) < 2 * LEAST:
            return {"reason": f"images of {own[0]}x{own[1]} are too small to be made smaller"}
        try:
            with torch.no_grad():
                training.forward(at_size(batch, own, side_of(own, SIZES[0])))
        except Exception as error:  # whatever a user's model does not like about smaller images
            return {"reason": f"it does not run on smaller images: {first_line(error)}"}
        return {"own": list(own)}


def at_size(batch: Any, own: Sequence[int], size: tuple[int, int]) -> Any:
    """A batch with its images at another size; what is no image of their own size stays as it is."""
    import torch
    from torch.utils._pytree import tree_map

    def resized(item: Any) -> Any:
        image = isinstance(item, torch.Tensor) and item.dim() == 4 and item.is_floating_point()
        if not image or [*item.shape[-2:]] != [*own]:
            return item
        return torch.nn.functional.interpolate(item, size, mode="area")

    return tree_map(resized, batch)


def side_of(own: Any, share: float) -> tuple[int, int]:
    """Height and width at a share of the side, in multiples that strides divide."""
    height, width = (max(MULTIPLE, round(share * side / MULTIPLE) * MULTIPLE) for side in own)
    return height, width


def setting_of(own: Any, share: float, steps: int) -> Setting:
    """Sizes one after the other over a share of the planned steps, then the images' own."""
    full_from = max(len(SIZES), round(share * steps))
    sizes = [[*side_of(own, size), round(place * full_from / len(SIZES))] for place, size in enumerate(SIZES)]
    return {"own": list(own), "sizes": sizes, "full_from": full_from}
