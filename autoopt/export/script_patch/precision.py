"""Autocast around the forward pass and the loss, and a gradient scaler, in the script's own lines."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot
from autoopt.records import Place
from autoopt.setup import Precision


def place_precision(placing: Placing, precision: Precision, device: str) -> None:
    """Puts ``with torch.autocast`` around the lines from the model's training call to the loss.

    Args:
        placing: gets the edits.
        precision: dtype, and whether gradients are scaled.
        device: type of the device, such as ``cuda``.

    Raises:
        NoHonestEditError: forward pass, loss and backward pass do not stand below one another in one block.
    """
    if placing.sites.of("autocast"):
        raise NoHonestEditError("the script has an autocast of its own: set its dtype there")
    backward = placing.site("loss")
    source = placing.edits(backward.file).source
    call = source.call(backward, "backward")
    back = source.spot(call)
    model = placing.site("model")
    first = min((_forward(source, place, back) for place in model.used), key=lambda spot: spot.index, default=None)
    if first is None:
        raise NoHonestEditError("the lines that call the model while training are not known")
    last = _loss_made(source, call, first, back)
    torch_name = placing.edits(source.name).source.module_name("torch")
    if torch_name is None:
        raise NoHonestEditError(f"{source.name} does not import torch as a whole")
    header = f'with {torch_name}.autocast("{device}", dtype={torch_name}.{precision.dtype})'
    edits = placing.edits(source.name)
    edits.wrap(first.suite, first.index, last, header)
    if precision.loss_scaling:
        _scale(placing, source, call, torch_name, device)
    placing.touched = Place(
        file=source.name,
        line=source.lines(first.statement).start.line,
        end_line=source.lines(back.statement).end.line,
    )


def _forward(source: Source, used: Place, back: Spot) -> Spot:
    """The statement in the block of the backward pass that calls the model there.

    Raises:
        NoHonestEditError: it stands in another function or block.
    """
    if used.file == source.name:
        for index, statement in enumerate(back.suite.body[: back.index + 1]):
            lines = source.lines(statement)
            if lines.start.line <= used.line and used.end_line <= lines.end.line:
                return Spot(back.suite, index, statement)  # type: ignore[arg-type]
    raise NoHonestEditError(
        f"the model is called in {used.file}:{used.line}, the backward pass stands in another block "
        f"({source.name}:{source.lines(back.statement).start.line})"
    )


def _loss_made(source: Source, call: cst.Call, first: Spot, back: Spot) -> int:
    """Index of the last statement before the backward pass that makes what it starts from."""
    if first.index >= back.index:
        raise NoHonestEditError("forward and backward pass share a statement")
    assert isinstance(call.func, cst.Attribute)
    names = {node.value for node in source.all_of(cst.Name, call.func.value)}
    last = first.index
    for index in range(first.index, back.index):
        statement = back.suite.body[index]
        made = {
            source.code(target.target) for node in source.all_of(cst.Assign, statement) for target in node.targets
        } | {source.code(node.target) for node in source.all_of(cst.AugAssign, statement)}
        if made & names:
            last = index
    return last


def _scale(placing: Placing, source: Source, call: cst.Call, torch_name: str, device: str) -> None:
    """A gradient scaler: made below the optimizer, and in the backward pass, the clipping and the step."""
    optimizer, step = placing.site("optimizer"), placing.site("step")
    made = placing.edits(optimizer.file).source
    spot = made.spot(made.call(optimizer, optimizer.call))
    if optimizer.file != source.name or step.file != source.name or spot.suite is not source.tree:
        raise NoHonestEditError("a gradient scaler would have to be handed through the script's functions")
    edits = placing.edits(source.name)
    stepping = source.call(step, "step")
    held = source.code(stepping.func.value) if isinstance(stepping.func, cst.Attribute) else "optimizer"
    assert isinstance(call.func, cst.Attribute)
    edits.insert(spot, [f'scaler = {torch_name}.amp.GradScaler("{device}")'], below=True)
    edits.replace(call.func.value, f"scaler.scale({source.code(call.func.value)})")
    for clip in source.all_of(cst.Call):
        if source.called(clip) in ("clip_grad_norm_", "clip_grad_value_"):
            edits.insert(source.spot(clip), [f"scaler.unscale_({held})"], below=False)
    if stepping.args:
        raise NoHonestEditError("the optimizer's step is given a closure, which a gradient scaler does not take")
    edits.replace(stepping, f"scaler.step({held})")
    edits.insert(source.spot(stepping), ["scaler.update()"], below=True)
