"""Autocast around the forward pass and the loss, and a gradient scaler, in the script's own lines."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.editing import Wrapped, given
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot
from autoopt.records import Place, Site
from autoopt.setup import Precision

_POSITIONS = ("device_type", "dtype", "enabled", "cache_enabled")


def turn_on(placing: Placing, precision: Precision, device: str) -> None:
    """Turns the script's autocast on, where the value that turns it off is made.

    Args:
        placing: gets the edits.
        precision: dtype, and whether gradients are scaled.
        device: type of the device, such as ``cuda``.

    Raises:
        NoHonestEditError: it is not the one around the model, or its line does not say what is to be changed.
    """
    sites = placing.sites.of("autocast")
    site, dtype = sites[0], str(precision.dtype)
    placing.touched = site
    by_hand = NoHonestEditError(
        f"{site.file}:{site.line} has an autocast of its own: write enabled=True, dtype=torch.{dtype} there",
        by_hand=True,
    )
    if len(sites) > 1 or precision.loss_scaling or site.options.get("device") != device:
        raise by_hand
    edits = placing.edits(site.file)
    source = edits.source
    found = _with_call(source, site)
    if found is None:  # one that was made elsewhere
        raise by_hand
    block, call = found
    positions = _POSITIONS if source.code(call.func) in ("torch.autocast", "torch.amp.autocast") else ()
    named, name = given(call, positions), source.module_name("torch")
    enabled, kept = named.get("enabled"), named.get("dtype")
    other = site.options.get("dtype") != dtype
    fixed = kept is None or isinstance(kept.value, cst.Attribute)  # such as torch.float16
    if enabled is None or not _around_model(placing, source, block) or (other and (name is None or not fixed)):
        raise by_hand
    placing.set_where_made(edits, call, enabled, "enabled", "True", site, positions)
    if other:
        edits.argument(call, "dtype", cst.parse_expression(f"{name}.{dtype}"), positions)


def _with_call(source: Source, site: Site) -> tuple[cst.With, cst.Call] | None:
    """The ``with`` that enters a site's autocast, and the call that makes it; None where it makes none itself."""
    for block in source.all_of(cst.With):
        for item in block.items:
            call, lines = item.item, source.lines(item.item)
            # some interpreters tell the lines of the whole block, others those of the call
            here = site.line in (source.lines(block).start.line, lines.start.line)
            if here and isinstance(call, cst.Call) and source.called(call) == site.call:
                return block, call
    return None


def _around_model(placing: Placing, source: Source, block: cst.With) -> bool:
    """Whether a model's training call, or a line that leads there, stands in a block."""
    lines = source.lines(block)
    models = placing.sites.of("model")
    places = [place for model in models for way in (model.used, *model.callers) for place in way]
    return any(place.file == source.name and lines.start.line <= place.line <= lines.end.line for place in places)


Way = tuple[Place, ...]


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
        turn_on(placing, precision, device)
        return
    losses, used = placing.sites_of("loss"), [ways for site in placing.sites_of("model") for ways in ways_of(site)]
    if precision.loss_scaling and len(losses) > 1:
        raise NoHonestEditError(f"{len(losses)} lines compute gradients: which scaler is whose is not known")
    covered: list[Way] = []
    for site in losses:
        source = placing.edits(site.file).source
        call = source.call(site, "backward")
        back, chosen = block_of(source, call, used)
        earlier = [_index_in(source, other, back) for other in losses if other is not site]
        begin = max((index for index in earlier if index is not None and index < back.index), default=-1)
        forward = {way: first_index_in(source, way, back) for way in used}
        within = {way: index for way, index in forward.items() if index is not None and begin < index <= back.index}
        covered += within
        if back.index == max((back.index, *(index for index in earlier if index is not None))):
            # what is called after the last backward pass of a step, such as for a picture of it, leads to no loss
            covered += [way for way, index in forward.items() if index is not None and index > back.index]
        if within:
            _wrap(placing, source, precision, device, (call, back, sorted(within.values())), training_alone=chosen)
    missing = [way[0] for way in used if way not in covered]
    if missing or not used:
        _refuse(placing, losses[0], missing)


def block_of(source: Source, call: cst.Call, used: list[Way]) -> tuple[Spot, bool]:
    """The statement that holds a backward pass, in the block that calls a model above it.

    Returns:
        The statement, and whether the backward pass stands under an ``if`` in it: what is above it then runs in
        evaluations, too, as where one function does both and is given an optimizer or none.
    """
    own = back = source.line_of(call)
    chosen = False
    while all(index is None or index > back.index for index in (first_index_in(source, way, back) for way in used)):
        above = source.parent(back.suite)
        chosen = chosen or isinstance(above, (cst.If, cst.Else))
        if not isinstance(above, (cst.If, cst.Else, cst.With)):
            return own, False
        back = source.line_of(above)
    if back is own or _loss_made_at(source, call, 0, back) is not None:
        return back, chosen
    return own, False


def ways_of(site: Site) -> list[Way]:
    """Of each line that calls a model in training that line, and those from which it is reached, the nearest first."""
    callers = (*site.callers, *[()] * len(site.used))
    return [(place, *by) for place, by in zip(site.used, callers, strict=False)]


def first_index_in(source: Source, way: Way, back: Spot) -> int | None:
    """Which statement of the block of a backward pass calls a model, or a function that does."""
    found = (_index_in(source, place, back) for place in way)
    return next((index for index in found if index is not None), None)


def _wrap(
    placing: Placing,
    source: Source,
    precision: Precision,
    device: str,
    found: tuple[cst.Call, Spot, list[int]],
    *,
    training_alone: bool,
) -> None:
    """Autocast from the first forward pass to the loss of one backward pass.

    Args:
        found: its call and statement, and the statements that call a model, in their order.
        training_alone: evaluations run these statements, too, and stay as they are.
    """
    call, back, forward = found
    torch_name = placing.edits(source.name).source.module_name("torch")
    if torch_name is None:
        raise NoHonestEditError(f"{source.name} does not import torch as a whole")
    enabled = f", enabled={torch_name}.is_grad_enabled()" if training_alone else ""
    header = f'with {torch_name}.autocast("{device}", dtype={torch_name}.{precision.dtype}{enabled})'
    edits = placing.edits(source.name)
    first = Spot(back.suite, forward[0], back.suite.body[forward[0]])  # type: ignore[arg-type]
    above = [index for index in forward if index < back.index]
    if above:
        last = max(_loss_made(source, call, first, back), above[-1])
        edits.wrap(Wrapped(back.suite, above[0], last, header))
    if forward[-1] == back.index:
        _apart(placing, source, precision, call, back, header)
    if precision.loss_scaling:
        _scale(placing, source, call, torch_name, device)
    placing.touched = Place(
        file=source.name,
        line=source.lines(first.statement).start.line,
        end_line=source.lines(back.statement).end.line,
    )


def _apart(placing: Placing, source: Source, precision: Precision, call: cst.Call, back: Spot, header: str) -> None:
    """``criterion(model(x), y).backward()`` as two: a loss with a name under autocast, and its backward pass below.

    Raises:
        NoHonestEditError: the backward pass is a part of something larger.
    """
    statement = back.statement.body[0] if isinstance(back.statement, cst.SimpleStatementLine) else None
    taken = {name.value for name in source.all_of(cst.Name)}
    free = next((name for name in ("loss", "step_loss", "batch_loss") if name not in taken), None)
    alone = isinstance(back.statement, cst.SimpleStatementLine) and len(back.statement.body) == 1
    whole = (
        alone and isinstance(statement, cst.Expr) and statement.value is call and isinstance(call.func, cst.Attribute)
    )
    if not whole or free is None or precision.loss_scaling:
        raise NoHonestEditError("forward and backward pass share a statement")
    assert isinstance(call.func, cst.Attribute)
    edits = placing.edits(source.name)
    edits.insert(back, [f"{header}:\n    {free} = {source.code(call.func.value)}"], below=False)
    edits.replace(call.func.value, free)


def _index_in(source: Source, place: Place, back: Spot) -> int | None:
    """Which statement of the block of a backward pass holds these lines; None where none does."""
    if place.file != source.name:
        return None
    for index, statement in enumerate(back.suite.body):
        lines = source.lines(statement)
        if lines.start.line <= place.line and place.end_line <= lines.end.line:
            return index
    return None


def _refuse(placing: Placing, loss: Site, missing: list[Place]) -> None:
    """Raises NoHonestEditError: a model is called where no ``with`` reaches from its call to a loss."""
    if not missing:
        raise NoHonestEditError("the lines that call the model while training are not known")
    source = placing.edits(loss.file).source
    line = source.lines(source.line_of(source.call(loss, "backward")).statement).start.line
    raise NoHonestEditError(
        f"the model is called in {missing[0].file}:{missing[0].line}, the backward pass stands in another block "
        f"({source.name}:{line})"
    )


def _loss_made(source: Source, call: cst.Call, first: Spot, back: Spot) -> int:
    """Index of the last statement before the backward pass that makes what it starts from."""
    if first.index >= back.index:
        raise NoHonestEditError("forward and backward pass share a statement")
    made = _loss_made_at(source, call, first.index, back)
    return first.index if made is None else made


def _loss_made_at(source: Source, call: cst.Call, first: int, back: Spot) -> int | None:
    """The same from a statement on; None where none of them does."""
    assert isinstance(call.func, cst.Attribute)
    names = {node.value for node in source.all_of(cst.Name, call.func.value)}
    for index in reversed(range(first, back.index)):
        statement = back.suite.body[index]
        made = {
            source.code(target.target) for node in source.all_of(cst.Assign, statement) for target in node.targets
        } | {source.code(node.target) for node in source.all_of(cst.AugAssign, statement)}
        if made & names:
            return index
    return None


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
