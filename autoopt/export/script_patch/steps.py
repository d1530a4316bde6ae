"""Edits around the passes of a step: autocast and a gradient scaler, and another micro-batch.

A micro-batch is smaller where each batch is taken in pieces, and larger where larger batches are added up less often.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import libcst as cst
from libcst import matchers as m

from autoopt.export.script_patch.editing import Wrapped, given
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot, targets_of
from autoopt.export.script_patch.values import followed, made_at, reads
from autoopt.records import Place, Site
from autoopt.script.applicable import added_up
from autoopt.setup import Precision
from autoopt.strategy import Edit

_POSITIONS = ("device_type", "dtype", "enabled", "cache_enabled")


def _turn_on(placing: Placing, precision: Precision, device: str) -> None:
    """Turns the script's own autocast on, where the value that turns it off is made.

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
    blocks = ((block, item.item) for block in source.all_of(cst.With) for item in block.items)
    found = [
        (block, call)
        for block, call in blocks
        # some interpreters tell the lines of the whole block, others those of the call
        if site.line in (source.lines(block).start.line, source.lines(call).start.line)
        and isinstance(call, cst.Call)
        and source.called(call) == site.call
    ]
    if not found:  # one that was made elsewhere
        raise by_hand
    block, call = found[0]
    lines = source.lines(block)
    ways = [way for model in placing.sites.of("model") for way in (model.used, *model.callers)]
    around = any(p.file == source.name and lines.start.line <= p.line <= lines.end.line for way in ways for p in way)
    positions = _POSITIONS if source.code(call.func) in ("torch.autocast", "torch.amp.autocast") else ()
    named, name = given(call, positions), source.module_name("torch")
    enabled, kept = named.get("enabled"), named.get("dtype")
    other = site.options.get("dtype") != dtype
    fixed = kept is None or isinstance(kept.value, cst.Attribute)  # such as torch.float16
    if enabled is None or not around or (other and (name is None or not fixed)):
        raise by_hand
    placing.set_where_made(call, enabled, "enabled", "True", site, positions)
    if other:
        edits.argument(call, "dtype", f"{name}.{dtype}", positions)


Way = tuple[Place, ...]


def place_precision(placing: Placing, precision: Precision, device: str) -> None:
    """Puts ``with torch.autocast`` around the lines from the model's training call to the loss.

    Raises:
        NoHonestEditError: forward pass, loss and backward pass do not stand below one another in one block.
    """
    if placing.sites.of("autocast"):
        _turn_on(placing, precision, device)
        return
    losses, used = placing.sites_of("loss"), _ways(placing)
    if precision.loss_scaling and len(losses) > 1:
        raise NoHonestEditError(f"{len(losses)} lines compute gradients: which scaler is whose is not known")
    covered: list[Way] = []
    for site in losses:
        there = _Backward(placing, site, used)
        earlier = [index for other in losses if other is not site and (index := there.holds((other,))) is not None]
        begin = max((index for index in earlier if index < there.at.index), default=-1)
        forward = {way: index for way in used if (index := there.holds(way)) is not None}
        within = {way: index for way, index in forward.items() if begin < index <= there.at.index}
        covered += within
        if there.at.index == max((there.at.index, *earlier)):
            # what is called after the last backward pass of a step, such as for a picture of it, leads to no loss
            covered += [way for way, index in forward.items() if index > there.at.index]
        if within:
            there.under_autocast(precision, device, sorted(within.values()))
    missing = [way[0] for way in used if way not in covered]
    if not used:
        raise NoHonestEditError("the lines that call the model while training are not known")
    if missing:
        source = placing.edits(losses[0].file).source
        line = source.lines(source.line_of(source.call(losses[0], "backward")).statement).start.line
        raise NoHonestEditError(
            f"the model is called in {missing[0].file}:{missing[0].line}, the backward pass stands in another block "
            f"({source.name}:{line})"
        )


def _ways(placing: Placing) -> list[Way]:
    """Of each line that calls a model in training that line, and those from which it is reached, the nearest first."""
    models = placing.sites_of("model")
    pairs = (zip(model.used, (*model.callers, *[()] * len(model.used)), strict=False) for model in models)
    return [(place, *by) for each in pairs for place, by in each]


class _Backward:
    """A backward pass, in the block that calls a model above it.

    Args:
        site: of its loss.
        used: the lines that call a model.

    Attributes:
        call: its call.
        at: the statement that holds it, in that block; its own where no block around it calls a model.
        chosen: it stands under an ``if`` in that statement: what is above it then runs in evaluations, too, as where
            one function does both and is given an optimizer or none.
    """

    def __init__(self, placing: Placing, site: Site, used: list[Way]) -> None:
        self.placing, self.edits = placing, placing.edits(site.file)
        self.source = source = self.edits.source
        self.call = source.call(site, "backward")
        self.at = own = source.line_of(self.call)
        self.chosen = False
        while all(index is None or index > self.at.index for index in map(self.holds, used)):
            above = source.parent(self.at.suite)
            self.chosen = self.chosen or isinstance(above, (cst.If, cst.Else))
            if not isinstance(above, (cst.If, cst.Else, cst.With)):
                self.at, self.chosen = own, False
                break
            self.at = source.line_of(above)
        if self.at is not own and self.loss_made_at(0) is None:
            self.at, self.chosen = own, False

    def holds(self, way: Way) -> int | None:
        """Which statement of the block holds lines, or calls the function that does; None where none does."""
        for place in way:
            for index, statement in enumerate(self.at.suite.body if place.file == self.source.name else ()):
                lines = self.source.lines(statement)
                if lines.start.line <= place.line and place.end_line <= lines.end.line:
                    return index
        return None

    def loss_made_at(self, first: int) -> int | None:
        """Index of the last statement above it, from one on, that makes what it starts from, if any."""
        assert isinstance(self.call.func, cst.Attribute)
        source = self.source
        names = {node.value for node in source.all_of(cst.Name, self.call.func.value)}
        for index in reversed(range(first, self.at.index)):
            statement = self.at.suite.body[index]
            made = [target for node in source.all_of(cst.Assign, statement) for target in targets_of(node)]
            made += [node.target for node in source.all_of(cst.AugAssign, statement)]
            if names & {source.code(each) for each in made}:
                return index
        return None

    def under_autocast(self, precision: Precision, device: str, forward: list[int]) -> None:
        """Autocast from the first forward pass to its loss; evaluations that run these statements stay as they are.

        Args:
            forward: the statements that call a model, in their order.
        """
        source, edits, call, back = self.source, self.edits, self.call, self.at
        torch_name = source.module_name("torch")
        if torch_name is None:
            raise NoHonestEditError(f"{source.name} does not import torch as a whole")
        enabled = f", enabled={torch_name}.is_grad_enabled()" if self.chosen else ""
        header = f'with {torch_name}.autocast("{device}", dtype={torch_name}.{precision.dtype}{enabled})'
        first = Spot(back.suite, forward[0], back.suite.body[forward[0]])  # type: ignore[arg-type]
        above = [index for index in forward if index < back.index]
        if above:
            made = self.loss_made_at(first.index)
            last = max(first.index if made is None else made, above[-1])
            edits.wrap(Wrapped(back.suite, above[0], last, header))
        if forward[-1] == back.index:
            # ``criterion(model(x), y).backward()`` as two: a loss with a name under autocast, its backward pass below
            taken = {name.value for name in source.all_of(cst.Name)}
            free = next((name for name in ("loss", "step_loss", "batch_loss") if name not in taken), None)
            whole = source.alone(back.statement) is call
            if not whole or not isinstance(call.func, cst.Attribute) or free is None or precision.loss_scaling:
                raise NoHonestEditError("forward and backward pass share a statement")
            edits.insert(back, [f"{header}:\n    {free} = {source.code(call.func.value)}"], below=False)
            edits.replace(call.func.value, free)
        if precision.loss_scaling:
            self.scaled(torch_name, device)
        self.placing.touched = source.place(first.statement, back.statement)

    def scaled(self, torch_name: str, device: str) -> None:
        """A gradient scaler: made below the optimizer, and in the backward pass, the clipping and the step."""
        placing, source, edits = self.placing, self.source, self.edits
        optimizer, step = placing.site("optimizer"), placing.site("step")
        made = placing.edits(optimizer.file).source
        spot = made.spot(made.call(optimizer, optimizer.call))
        if optimizer.file != source.name or step.file != source.name or spot.suite is not source.tree:
            raise NoHonestEditError("a gradient scaler would have to be handed through the script's functions")
        stepping = source.call(step, "step")
        held = source.code(stepping.func.value) if isinstance(stepping.func, cst.Attribute) else "optimizer"
        assert isinstance(self.call.func, cst.Attribute)
        edits.insert(spot, [f'scaler = {torch_name}.amp.GradScaler("{device}")'], below=True)
        edits.replace(self.call.func.value, f"scaler.scale({source.code(self.call.func.value)})")
        for clip in source.all_of(cst.Call):
            if source.called(clip) in ("clip_grad_norm_", "clip_grad_value_"):
                edits.insert(source.spot(clip), [f"scaler.unscale_({held})"], below=False)
        if stepping.args:
            raise NoHonestEditError("the optimizer's step is given a closure, which a gradient scaler does not take")
        edits.replace(stepping, f"scaler.step({held})")
        edits.insert(source.spot(stepping), ["scaler.update()"], below=True)


_SHARE, _WHOLE = "share", "whole_loss"


def place_pieces(placing: Placing, edit: Edit) -> None:
    """Puts another micro-batch into a script's lines; the batch of an optimizer's step stays.

    Args:
        edit: ``size`` of a micro-batch and ``accumulation``, how many make a step; ``parts``: the function that cuts.

    Raises:
        NoHonestEditError: the lines do more with a batch than pieces of it allow.
    """
    size, count = int(edit.arguments["size"]), int(edit.arguments["accumulation"])
    now = added_up(size, count, placing.sites)
    if count > now:
        if count % now:
            raise NoHonestEditError(f"{count} is no multiple of the {now} batches that are added up")
        _cut(placing, count // now, edit.parts[0])
    elif count < now:
        _added_up_less(placing, size, now, count)
    else:
        raise NoHonestEditError("so many batches make a step as it is, and no other size of them is said by a line")


# smaller pieces


def _cut(placing: Placing, count: int, part: str) -> None:
    """A loop over pieces of the batch, around the lines from the model's call to the backward pass."""
    losses = placing.sites_of("loss")
    if len(losses) > 1:
        raise NoHonestEditError(f"{len(losses)} lines compute gradients, each of a loss of its own")
    ways = _ways(placing)
    there = _Backward(placing, losses[0], ways)
    source, edits, call, back = there.source, there.edits, there.call, there.at
    known = [index for index in map(there.holds, ways) if index is not None and index <= back.index]
    if there.chosen or len(known) < len(ways) or not known or call.args or not isinstance(call.func, cst.Attribute):
        where = f"{source.name}:{source.lines(call).start.line}"
        raise NoHonestEditError(f"{where} takes no gradients of a loss that the lines above it have made")
    if edits.before.get(back.statement):
        raise NoHonestEditError("another change of the patch puts lines between the model's call and its gradients")
    lines = _Lines(placing, source, back, min(known))
    batch = [name for name in lines.used if name in lines.of_batch()]
    taken = {node.value for node in source.all_of(cst.Name)}
    if not batch or taken & {_SHARE, _WHOLE, *(f"{name}_piece" for name in batch)}:
        raise NoHonestEditError("which of the names in these lines are the batch is not known")
    start = call.func.value
    if isinstance(start, cst.Call) and source.called(start) == "scale" and len(start.args) == 1:
        start = start.args[0].value
    loss, after = start.value if isinstance(start, cst.Name) else None, lines.used_after()
    others = sorted(after - {loss})
    if others:
        raise NoHonestEditError(f"{', '.join(others)} would be of the last piece alone where the lines below use it")
    for node in lines.nodes:
        if node.value in batch:
            edits.replace(node, f"{node.value}_piece")
    above = [source.code(spot.statement.with_changes(leading_lines=())) for spot in lines.clearing]
    for spot in lines.clearing:
        edits.remove(spot)
    below: list[str] = []
    scaled = edits.replaced.pop(call.func.value, None)  # by a change before this one
    text = _renamed(source, call.func.value, batch) if scaled is None else source.code(scaled)
    edits.replace(call.func.value, f"({text} * {_SHARE})")
    if loss in after:
        above.append(f"{_WHOLE} = 0.0")
        edits.insert(back, [f"{_WHOLE} += {loss}.detach() * {_SHARE}"], below=True)
        below.append(f"{loss} = {_WHOLE}")
    names = ", ".join(f"{name}_piece" for name in batch)
    header = f"for {_SHARE}, {names} in {placing.import_part(source, part)}({count}, {', '.join(batch)})"
    edits.wrap(Wrapped(back.suite, min(known), back.index, header, tuple(above), tuple(below)))
    placing.touched = source.place(back.suite.body[min(known)], back.statement)


def _renamed(source: Source, node: cst.BaseExpression, batch: list[str]) -> str:
    """An expression with the pieces in place of the batch."""
    loads = {id(each) for each in source.variables(node) if each.value in batch}
    load: m.MatchIfTrue[cst.CSTNode] = m.MatchIfTrue(lambda each: id(each) in loads)
    renamed = m.replace(node, load, lambda each, _: cst.Name(f"{cst.ensure_type(each, cst.Name).value}_piece"))
    assert isinstance(renamed, cst.BaseExpression), "an expression stays one"
    return source.code(renamed)


class _Lines:
    """The lines of a step from the model's call to the backward pass.

    Args:
        back: the statement that holds the backward pass.
        first: which statement of its block calls the model.

    Attributes:
        nodes, used: variables in them, in their order, and their names.
        clearing: those of them that clear gradients.
    """

    def __init__(self, placing: Placing, source: Source, back: Spot, first: int) -> None:
        self._sites, self._source, self._back = placing.sites, source, back
        spots = [Spot(back.suite, i, back.suite.body[i]) for i in range(first, back.index + 1)]  # type: ignore[arg-type]
        calls = [source.alone(spot.statement) for spot in spots]
        clears = [call is not None and source.called(call) == "zero_grad" for call in calls]
        self.clearing = [spot for spot, clearing in zip(spots, clears, strict=True) if clearing]
        self._statements = [spot.statement for spot in spots if spot not in self.clearing]
        self.nodes = [node for statement in self._statements for node in source.variables(statement)]
        self.used = tuple(dict.fromkeys(node.value for node in self.nodes))
        self._begin = source.lines(spots[0].statement).start.line
        self._end = source.lines(back.statement).end.line
        for statement in self._statements:
            for node in source.all_of(cst.Call, statement):
                if source.called(node) in ("step", "zero_grad"):
                    raise NoHonestEditError(f"{source.code(node)} stands between the model's call and its gradients")

    def of_batch(self) -> set[str]:
        """Variables that hold the batch or a part of it."""
        loop, names = self._loop(), set[str]()
        if isinstance(loop, cst.For):
            target = loop.target
            numbered = isinstance(loop.iter, cst.Call) and self._source.called(loop.iter) == "enumerate"
            if numbered and isinstance(target, cst.Tuple) and len(target.elements) == 2:
                names |= {node.value for node in self._source.all_of(cst.Name, target.elements[1])}
            elif not numbered:
                names |= {node.value for node in self._source.all_of(cst.Name, target)}
        counts: set[str] = set()
        made = {(site.options.get("file"), site.options.get("line")) for site in self._sites.of("batch_without_loader")}
        for node in self._source.all_of(cst.Assign, self._source.scope(self._back.statement)):
            line = self._source.lines(node).start.line
            targets = {name.value for each in node.targets for name in self._source.variables(each.target)}
            if (self._source.name, line) in made:
                names |= targets
            elif loop is not None and self._source.lines(loop).start.line < line < self._begin:
                read = {name.value for name in self._source.variables(node.value)}
                called = {self._source.called(call) for call in self._source.all_of(cst.Call, node.value)}
                attributes = {each.attr.value for each in self._source.all_of(cst.Attribute, node.value)}
                # these calls make a number of a batch, which a piece has not in proportion
                if read & names and (called & {"size", "len", "numel", "sum", "item"} or "shape" in attributes):
                    counts |= targets
                elif read & names:
                    names |= targets
        wrong = sorted(counts & set(self.used))
        if wrong:
            raise NoHonestEditError(f"{', '.join(wrong)} is counted of the whole batch")
        return names

    def _loop(self) -> cst.For | cst.While | None:
        """The loop around the lines, in their own function: over the loader that trains, else the innermost."""
        headers = {(p.file, p.line) for site in self._sites.of("loader_training") for p in site.used}
        around = [each for each in _within_function(self._source, self._back) if isinstance(each, cst.For | cst.While)]
        reading = [loop for loop in around if (self._source.name, self._source.lines(loop).start.line) in headers]
        return next(iter(reading or around), None)

    def used_after(self) -> set[str]:
        """Variables that the lines set and that others read before they are set anew."""
        source = self._source
        made: set[str] = set()
        for statement in self._statements:
            added = [source.code(node.target) for node in source.all_of(cst.AugAssign, statement)]
            outside = [name for name in added if name.partition(".")[0].partition("[")[0] not in made]
            if outside:
                raise NoHonestEditError(f"{outside[0]} adds up something of each batch before its backward pass")
            for each in (target for node in source.all_of(cst.Assign, statement) for target in targets_of(node)):
                if not isinstance(each, cst.Name | cst.Tuple):
                    raise NoHonestEditError(f"{source.code(each)} is set between the model's call and its gradients")
                made |= {node.value for node in source.all_of(cst.Name, each)}
        scope, loop = source.scope(self._back.statement), self._loop()
        end = source.lines(loop).end.line if loop is not None else self._end
        set_elsewhere = {
            node.value
            for each in source.all_of(cst.Assign, scope)
            if not self._begin <= source.lines(each).start.line <= self._end
            for target in targets_of(each)
            for node in source.all_of(cst.Name, target)
        }
        read = [node for node in source.variables(scope) if node.value in made]
        below = ((node.value, source.lines(node).start.line) for node in read)
        return {name for name, line in below if line > self._end and (line <= end or name not in set_elsewhere)}


def _within_function(source: Source, spot: Spot) -> Iterator[cst.CSTNode]:
    """The nodes that a statement is in, up to its function."""
    return takewhile(lambda each: not isinstance(each, cst.FunctionDef), source.above(spot.statement))


# larger ones

_STEPS = "gradient_accumulation_steps"


def _added_up_less(placing: Placing, size: int, now: int, count: int) -> None:
    """The loader gives larger batches, and the number of those that make a step is written where it is made."""
    site = next((each for each in placing.sites.of("trainer") if each.call == "Accelerator"), None)
    if site is not None and _STEPS in given(placing.edits(site.file).source.call(site, site.call)):
        # accelerate divides the losses by this number
        placing.place(Edit("loader", arguments={"batch_size": size}))
        placing.place(Edit("trainer", arguments={_STEPS: count}))
        return
    step, loss = placing.site("step"), placing.site("loss")
    source, where = placing.edits(step.file).source, f"{step.file}:{step.line}"
    back = source.call(loss, "backward") if loss.file == step.file else None
    value = _counted(source, step) or (None if back is None else _repeated(source, step, back))
    divisors = [] if back is None or value is None else _divisors(source, source.scope(back))
    divisors = [each for each in divisors if value is not None and source.code(each) == source.code(value)]
    if back is None or value is None or not divisors:
        raise NoHonestEditError(f"{where} steps after {now} batches, whose loss is not seen to be divided by that")
    around = (each for each in _within_function(source, source.line_of(back)) if isinstance(each, cst.For | cst.While))
    calls = list(source.all_of(cst.Call, next(around, source.scope(back))))
    made = [each for call in calls for each in source.values_of(source.code(call.func))]
    asked = (given(call).get("reduction") for call in (*calls, *made) if isinstance(call, cst.Call))
    if any(source.code(each.value).strip("\"'") == "sum" for each in asked if each is not None):
        raise NoHonestEditError(f'the loss of {where} is a sum (reduction="sum"), which is larger of a larger batch')
    placing.place(Edit("loader", arguments={"batch_size": size}))
    counting = [value]
    if isinstance(value, cst.Integer):  # each place in its function where batches are counted by this number
        scope = source.scope(value)
        moduli = [n.right for n in source.all_of(cst.BinaryOperation, scope) if isinstance(n.operator, cst.Modulo)]
        others = (each for each in (*moduli, *_divisors(source, scope)) if source.code(each) == value.value)
        counting += [each for each in others if each is not value]
    for expression in counting:
        _write_count(placing, source, expression, now, count)
    # what was divided, and is read below its backward pass
    assigned = [each for divisor in divisors for each in source.above(divisor)]
    targets = [target for each in assigned if isinstance(each, cst.Assign) for target in targets_of(each)]
    targets += [each.target for each in assigned if isinstance(each, cst.AugAssign)]
    held = {target.value for target in targets if isinstance(target, cst.Name)}
    names, end = source.variables(source.scope(back)), source.lines(back).end.line
    logged = held & {each.value for each in names if source.lines(each).start.line > end}
    if logged:
        text = f"{', '.join(sorted(logged))} is divided by {count}, no longer by {now}"
        placing.notes.append(f"{text}, where it is read after its backward pass, as in logs")
    placing.touched = step


def _write_count(placing: Placing, source: Source, value: cst.BaseExpression, now: int, count: int) -> None:
    """Changes the number where it is made; one that the command gives, wherever the file reads it."""
    try:
        placing.change(made_at(source, value, placing.users, str(count), now), str(count), value)
    except NoHonestEditError as reason:
        made: cst.BaseExpression | None = value
        while isinstance(made, cst.Name):
            made = followed(source, made)
        names = source.all_of(cst.Name, made) if isinstance(made, cst.BinaryOperation) else ()
        if any(followed(source, name) in placing.edits(source.name).replaced for name in names):
            return  # it is computed from the size of a batch
        read = [each for each in reads(source, source.tree) if made and source.code(each) == source.code(made)]
        if not reason.by_command or not read:
            raise
        for each in read:
            placing.edits(source.name).replace(each, str(count), value)
        placing.notes.append(f"{reason}; {count} stands in its place")


def _counted(source: Source, step: Site) -> cst.BaseExpression | None:
    """What the number of batches is taken modulo of, on the way to a step: ``if (i + 1) % count == 0``.

    The condition may leave out the rest of the loop's body as well: ``if (i + 1) % count != 0: continue``.
    """
    line = source.line_of(source.call(step, "step"))
    above = list(_within_function(source, line))
    loop = next((each for each in above if isinstance(each, cst.For | cst.While)), line.statement)
    skips = []
    for each in source.all_of(cst.If, loop):
        last = each.body.body[-1]
        end = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        if isinstance(end, cst.Continue) and source.lines(each).start.line < step.line:
            skips.append(each)
    tests = (each.test for each in (*above, *skips) if isinstance(each, cst.If))
    found = (each for test in tests for each in source.all_of(cst.BinaryOperation, test))
    counted = next((each for each in found if isinstance(each.operator, cst.Modulo)), None)
    compared = source.parent(counted) if counted is not None else None
    other = compared.comparisons[0].comparator if isinstance(compared, cst.Comparison) else None
    if counted is None or (isinstance(other, cst.Integer) and other.value != "0"):  # another one of them steps
        return None
    return counted.right


def _repeated(source: Source, step: Site, back: cst.Call) -> cst.BaseExpression | None:
    """The number in ``for ... in range(count)`` around the backward pass, where the step comes after that loop."""
    stepping = list(_within_function(source, source.line_of(source.call(step, "step"))))
    for loop in _within_function(source, source.line_of(back)):
        times = loop.iter if isinstance(loop, cst.For) and loop not in stepping else None
        if isinstance(times, cst.Call) and source.called(times) == "range" and len(times.args) == 1:
            return times.args[0].value
    return None


def _divisors(source: Source, scope: cst.CSTNode) -> list[cst.BaseExpression]:
    return [n.right for n in source.all_of(cst.BinaryOperation, scope) if isinstance(n.operator, cst.Divide)] + [
        n.value for n in source.all_of(cst.AugAssign, scope) if isinstance(n.operator, cst.DivideAssign)
    ]
