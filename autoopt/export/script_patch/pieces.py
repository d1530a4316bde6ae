"""Another micro-batch in the script's own lines: each batch taken in pieces, or larger batches that are added up less
often."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.editing import Wrapped
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.precision import block_of, first_index_in, ways_of
from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot
from autoopt.export.script_patch.values import made_at
from autoopt.records import Place, Site
from autoopt.script.sayable import added_up
from autoopt.strategy import Edit

_COUNTS = ("size", "len", "numel", "sum", "item")
"""Calls that make a number of a batch, which a piece has not in proportion."""
_SHARE, _WHOLE = "share", "whole_loss"


def place_pieces(placing: Placing, edit: Edit) -> None:
    """Puts another micro-batch into a script's lines; the batch of an optimizer's step stays.

    Args:
        placing: gets the edits.
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


# smaller pieces


def _cut(placing: Placing, count: int, part: str) -> None:
    """A loop over pieces of the batch, around the lines from the model's call to the backward pass."""
    losses = placing.sites_of("loss")
    if len(losses) > 1:
        raise NoHonestEditError(f"{len(losses)} lines compute gradients, each of a loss of its own")
    source = placing.edits(losses[0].file).source
    call = source.call(losses[0], "backward")
    ways = [way for site in placing.sites_of("model") for way in ways_of(site)]
    back, chosen = block_of(source, call, ways)
    indices = [first_index_in(source, way, back) for way in ways]
    known = [index for index in indices if index is not None and index <= back.index]
    if chosen or len(known) < len(indices) or not known or call.args or not isinstance(call.func, cst.Attribute):
        where = f"{source.name}:{source.lines(call).start.line}"
        raise NoHonestEditError(f"{where} takes no gradients of a loss that the lines above it have made")
    edits = placing.edits(source.name)
    if edits.before.get(back.statement):
        raise NoHonestEditError("another change of the patch puts lines between the model's call and its gradients")
    lines = _Lines(placing, source, back, min(known))
    batch = [name for name in lines.used if name in lines.of_batch()]
    taken = {node.value for node in source.all_of(cst.Name)}
    if not batch or taken & {_SHARE, _WHOLE, *(f"{name}_piece" for name in batch)}:
        raise NoHonestEditError("which of the names in these lines are the batch is not known")
    loss, after = _loss_of(source, call), lines.used_after()
    others = sorted(after - {loss})
    if others:
        raise NoHonestEditError(f"{', '.join(others)} would be of the last piece alone where the lines below use it")
    for node in lines.names(batch):
        edits.replace(node, f"{node.value}_piece")
    above = [_statement(source, spot.statement) for spot in lines.clearing]
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
    first = back.suite.body[min(known)]
    placing.touched = Place(
        file=source.name, line=source.lines(first).start.line, end_line=source.lines(back.statement).end.line
    )


def _loss_of(source: Source, call: cst.Call) -> str | None:
    """The name that a backward pass starts from, by itself or scaled; None where it has none."""
    assert isinstance(call.func, cst.Attribute)
    value = call.func.value
    if isinstance(value, cst.Call) and source.called(value) == "scale" and len(value.args) == 1:
        value = value.args[0].value
    return value.value if isinstance(value, cst.Name) else None


def _statement(source: Source, statement: cst.CSTNode) -> str:
    return source.code(statement.with_changes(leading_lines=()))


def _renamed(source: Source, node: cst.BaseExpression, batch: list[str]) -> str:
    """An expression with the pieces in place of the batch."""
    loads = {id(each) for each in _loads(source, node)}

    class Renaming(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:  # noqa: N802
            if id(original_node) in loads and original_node.value in batch:
                return updated_node.with_changes(value=f"{original_node.value}_piece")
            return updated_node

    renamed = node.visit(Renaming())
    assert isinstance(renamed, cst.CSTNode)
    return source.code(renamed)


def _loads(source: Source, within: cst.CSTNode) -> list[cst.Name]:
    """Names that stand for variables: no attributes, and no names of arguments."""
    found = []
    for node in source.all_of(cst.Name, within):
        above = source.parent(node)
        if isinstance(above, cst.Attribute) and above.attr is node:
            continue
        if isinstance(above, cst.Arg) and above.keyword is node:
            continue
        found.append(node)
    return found


class _Lines:
    """The lines of a step from the model's call to the backward pass.

    Args:
        placing: knows the sites.
        source: their file.
        back: the statement that holds the backward pass.
        first: which statement of its block calls the model.

    Attributes:
        used: variables in them, in their order.
        clearing: those of them that clear gradients.
    """

    def __init__(self, placing: Placing, source: Source, back: Spot, first: int) -> None:
        self._sites, self._source, self._back = placing.sites, source, back
        spots = [Spot(back.suite, i, back.suite.body[i]) for i in range(first, back.index + 1)]  # type: ignore[arg-type]
        self.clearing = [spot for spot in spots if self._clears(spot.statement)]
        self._statements = [spot.statement for spot in spots if spot not in self.clearing]
        self._nodes = [node for statement in self._statements for node in _loads(source, statement)]
        self.used = tuple(dict.fromkeys(node.value for node in self._nodes))
        self._begin = source.lines(spots[0].statement).start.line
        self._end = source.lines(back.statement).end.line
        for statement in self._statements:
            for node in source.all_of(cst.Call, statement):
                if source.called(node) in ("step", "zero_grad"):
                    raise NoHonestEditError(f"{source.code(node)} stands between the model's call and its gradients")

    def _clears(self, statement: cst.CSTNode) -> bool:
        only = (
            statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None
        )
        call = only.value if isinstance(only, cst.Expr) else None
        return isinstance(call, cst.Call) and self._source.called(call) == "zero_grad"

    def names(self, wanted: list[str]) -> list[cst.Name]:
        """Where these variables stand in them."""
        return [node for node in self._nodes if node.value in wanted]

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
            targets = {name.value for each in node.targets for name in _loads(self._source, each.target)}
            if (self._source.name, line) in made:
                names |= targets
            elif loop is not None and self._source.lines(loop).start.line < line < self._begin:
                read = {name.value for name in _loads(self._source, node.value)}
                called = {self._source.called(call) for call in self._source.all_of(cst.Call, node.value)}
                attributes = {each.attr.value for each in self._source.all_of(cst.Attribute, node.value)}
                if read & names and (called & set(_COUNTS) or "shape" in attributes):
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
        around: list[cst.For | cst.While] = []
        above = self._source.parent(self._back.statement)
        while above is not None and not isinstance(above, cst.FunctionDef):
            if isinstance(above, cst.For | cst.While):
                around.append(above)
            above = self._source.parent(above)
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
            for each in (target.target for node in source.all_of(cst.Assign, statement) for target in node.targets):
                if not isinstance(each, cst.Name | cst.Tuple):
                    raise NoHonestEditError(f"{source.code(each)} is set between the model's call and its gradients")
                made |= {node.value for node in source.all_of(cst.Name, each)}
        scope, loop = source.scope(self._back.statement), self._loop()
        end = source.lines(loop).end.line if loop is not None else self._end
        outside_nodes = [n for n in _loads(source, scope) if not self._begin <= source.lines(n).start.line <= self._end]
        set_elsewhere = {
            node.value
            for each in source.all_of(cst.Assign, scope)
            if not self._begin <= source.lines(each).start.line <= self._end
            for target in each.targets
            for node in source.all_of(cst.Name, target.target)
        }
        found = set()
        for node in outside_nodes:
            line = source.lines(node).start.line
            if node.value in made and (self._end < line <= end or (line > end and node.value not in set_elsewhere)):
                found.add(node.value)
        return found


# larger ones


def _added_up_less(placing: Placing, size: int, now: int, count: int) -> None:
    """The loader gives larger batches, and the number of those that make a step is written where it is made."""
    placing.place(Edit("loader", arguments={"batch_size": size}))
    step, loss = placing.site("step"), placing.site("loss")
    source = placing.edits(step.file).source
    value = _counted(source, step)
    if value is None or loss.file != step.file or not _divides(source, loss, source.code(value)):
        raise NoHonestEditError(
            f"{step.file}:{step.line} steps after {now} batches whose loss is not seen to be divided by their number"
        )
    for expression in _alike(source, value):
        made = made_at(source, expression, placing.options, str(count), now)
        if made.configured is not None:
            placing.configure(made.configured, str(count))
        else:
            placing.edits(made.source.name).replace(made.node, str(count), expression)
    placing.touched = step


def _counted(source: Source, step: Site) -> cst.BaseExpression | None:
    """What the number of batches is taken modulo of, on the way to a step: ``if (i + 1) % count == 0``."""
    above = source.parent(source.line_of(source.call(step, "step")).suite)
    while above is not None and not isinstance(above, cst.FunctionDef):
        if isinstance(above, cst.If):
            found = [n for n in source.all_of(cst.BinaryOperation, above.test) if isinstance(n.operator, cst.Modulo)]
            if found:
                return found[0].right
        above = source.parent(above)
    return None


def _divides(source: Source, loss: Site, count: str) -> bool:
    scope = source.scope(source.call(loss, "backward"))
    divided = [n.right for n in source.all_of(cst.BinaryOperation, scope) if isinstance(n.operator, cst.Divide)]
    divided += [n.value for n in source.all_of(cst.AugAssign, scope) if isinstance(n.operator, cst.DivideAssign)]
    return any(source.code(each) == count for each in divided)


def _alike(source: Source, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The expression; of a number that is written down, each place in its function where batches are counted by it."""
    if not isinstance(value, cst.Integer):
        return [value]
    scope = source.scope(value)
    found = [
        n.right
        for n in source.all_of(cst.BinaryOperation, scope)
        if isinstance(n.operator, cst.Modulo | cst.Divide) and source.code(n.right) == value.value
    ]
    return found + [
        n.value
        for n in source.all_of(cst.AugAssign, scope)
        if isinstance(n.operator, cst.DivideAssign) and source.code(n.value) == value.value
    ]
