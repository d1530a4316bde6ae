"""The names in the user's lines of a model, also one made where it is handed on, and of what a loader is given."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import libcst as cst

from autoopt.export.script_patch.editing import DATALOADER_POSITIONS, given
from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot, targets_of
from autoopt.records import Place, Site, Sites


def data_of(source: Source, site: Site, sites: Sites) -> tuple[cst.Call, str, Sequence[str]]:
    """The argument that is the training's dataset: its call, its name, and the names that may be left out there.

    Where one line makes the loaders of training and validation, it is the argument of the call that led there, or that
    of the line itself, where the datasets of all its loaders are of one class: all of them are then prepared alike.

    Raises:
        NoHonestEditError: the line does not name it, or which call leads there is not known.
    """
    call = source.call(site, site.call)
    there = given(call, DATALOADER_POSITIONS).get("dataset")
    if there is None:
        raise NoHonestEditError(f"{site.file}:{site.line} does not name its dataset")
    others = [other for other in sites.of("loader_validation", "loader_training") if same_call(other, site)]
    one_class = site.options.get("dataset") is not None and all(alike(site, other) for other in others)
    if len(others) == 1 or one_class:
        return call, "dataset", DATALOADER_POSITIONS
    function = source.scope(there.value)
    if not isinstance(function, cst.FunctionDef) or not isinstance(there.value, cst.Name):
        raise NoHonestEditError(f"{site.file}:{site.line} makes the loaders of training and validation")
    name, positions = source.signature(function)
    if there.value.value not in positions or source.assignments(there.value.value, function):
        raise NoHonestEditError(f"{site.file}:{site.line} makes loaders of {source.code(there.value)}, set on the way")
    calls = [each for each in source.all_of(cst.Call) if source.called(each) == name]
    runs = {run for other in others for run in other.calls}
    if len(site.calls) != 1 or runs != set(range(len(calls))):
        raise NoHonestEditError(f"{site.file} calls {name}, which makes the loaders, in {len(calls)} places")
    handed = calls[site.calls[0]]
    if there.value.value not in given(handed, positions) or any(argument.star for argument in handed.args):
        raise NoHonestEditError(f"{source.name}:{source.lines(handed).start.line} does not name its dataset")
    return handed, there.value.value, positions


def alike(one: Site, other: Site, *options: str) -> bool:
    """Whether two loaders read datasets of one class, and have more options the same: what prepares the samples of one
    may prepare the other's.
    """
    both = ((one.options.get(name), other.options.get(name)) for name in ("dataset", *options))
    return all(mine is not None and mine == others for mine, others in both)


def same_call(one: Site, other: Site) -> bool:
    """Whether one call makes both."""
    return (one.file, one.line, one.end_column) == (other.file, other.line, other.end_column)


def unwatched(source: Source, site: Site, seen: Sequence[Site]) -> list[Site]:
    """Sites of further loaders of datasets of one class with the training's, which nobody was seen to read.

    That is an evaluation which the watched steps did not come to. The dataset is made where the loader is, or has a
    name that nothing else is given.
    """
    kind, known, found = site.options.get("dataset"), {each.line for each in (site, *seen)}, list[Site]()
    for call in source.all_of(cst.Call):
        lines = source.lines(call)
        there = given(call, DATALOADER_POSITIONS).get("dataset")
        if source.called(call) != site.call or there is None or lines.start.line in known:
            continue
        made: list[cst.BaseExpression | None] = [there.value]
        if isinstance(there.value, cst.Name):
            made = [each.value for each in source.assignments(there.value.value, source.scope(call))]
        if made and all(isinstance(each, cst.Call) and source.called(each) == kind for each in made):
            place = {"line": lines.start.line, "end_line": lines.end.line, "end_column": lines.end.column}
            found.append(site.model_copy(update={**place, "kind": "loader_validation", "calls": (), "used": ()}))
    return found


_WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel", "compile", "convert_sync_batchnorm", "prepare"})
"""Calls that answer with a module around the one that they are given, or with it."""
_SELF_RETURNING = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "float", "half", "double", "bfloat16", "requires_grad_", "apply"}
)
_HANDED_ON = (cst.Arg, cst.Call, cst.Tuple, cst.List, cst.Element, cst.Return, cst.Expr, cst.Assign, cst.AnnAssign)


def named_there(source: Source, site: Site) -> tuple[Spot, str] | None:
    """The statement on a model's own lines that gives it its name, and that name."""
    held = site.options.get("held_as", {}).get(site.function)
    try:
        made = source.call(site, site.call)
    except NoHonestEditError:  # its class is named in a library, as by a function of a model zoo
        ranges = ((node, source.lines(node)) for node in source.all_of(cst.Assign) if held is not None)
        assigned = [n for n, r in ranges if r.start.line <= site.line and site.end_line <= r.end.line]
        return _target(source, assigned[0], held) if len(assigned) == 1 else None
    try:
        statement = source.spot(made).statement
    except NoHonestEditError:
        return None
    assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(assign, (cst.Assign, cst.AnnAssign)):
        return None
    whole = _whole(source, made) is assign.value
    return _target(source, assign, None if whole else held) if whole or held is not None else None


def named_before(source: Source, site: Site, used: Place) -> tuple[Spot, str] | None:
    """The last statement that gives a model the name under which these lines call it, and that name.

    Args:
        site: of the model, with the names under which functions were seen to hold it.
    """
    held = site.options.get("held_as", {}).get(used.function)
    try:
        call = source.call(used)
    except NoHonestEditError:
        call = None
    within = next((node for node in source.all_of(cst.Call) if source.lines(node).start.line == used.line), call)
    for name in dict.fromkeys(filter(None, (source.code(call.func) if call is not None else None, held))):
        for scope in (source.scope(within), source.tree) if within is not None else (source.tree,):
            found = [*source.assignments(name, scope)] or source.unpacked(name, scope)
            if found:
                return source.spot(found[-1]), name
    return None


def inline_model(source: Source, site: Site) -> tuple[Spot, cst.BaseExpression, str] | None:
    """A model that is made within a call, a list or a ``return``, where a line above can make it just as well.

    Returns:
        The statement that it stands in, its whole expression, and a name that is free.
    """
    try:
        made = source.call(site, site.call)
        spot = source.spot(made)
    except NoHonestEditError:
        return None
    expression = _whole(source, made)
    above = list(takewhile(lambda each: each is not spot.statement, source.above(expression)))
    if not isinstance(spot.statement, cst.SimpleStatementLine) or not all(isinstance(n, _HANDED_ON) for n in above):
        return None
    begins = source.lines(expression).start
    earlier = [
        call
        for call in source.all_of(cst.Call, spot.statement)
        if call not in above
        and (source.lines(call).start.line, source.lines(call).start.column) < (begins.line, begins.column)
    ]
    if earlier:  # what is called before it may draw random numbers, and would be called after it
        return None
    taken = {node.value for node in source.variables()}
    free = next((name for name in ("model", "net", "network") if name not in taken), None)
    return None if free is None else (spot, expression, free)


def _whole(source: Source, made: cst.Call) -> cst.BaseExpression:
    """The expression of a model with the methods that answer with it, and the calls that wrap it, around its making."""
    whole: cst.Call = made
    while True:
        parent = source.parent(whole)
        above = source.parent(parent) if parent is not None else None
        chained = isinstance(parent, cst.Attribute) and parent.value is whole and parent.attr.value in _SELF_RETURNING
        wrapped = isinstance(parent, cst.Arg) and isinstance(above, cst.Call) and source.called(above) in _WRAPPERS
        if not (chained or wrapped) or not isinstance(above, cst.Call):
            return whole
        whole = above


def _target(source: Source, assign: cst.Assign | cst.AnnAssign, held: str | None) -> tuple[Spot, str] | None:
    """The target of an assignment, where that is one name; ``held``: where it must be this."""
    targets = targets_of(assign)
    if len(targets) != 1 or not isinstance(targets[0], (cst.Name, cst.Attribute)):
        return None
    name = source.code(targets[0])
    return (source.spot(assign), name) if held in (None, name) else None
