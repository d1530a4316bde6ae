"""The argument that a training loader's dataset comes from, also through a function or class of the user's own."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from autoopt.export.script_patch.editing import DATALOADER_POSITIONS, given
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.records import Site, Sites

Given = tuple[Source, cst.Call, str, Sequence[str]]
"""A call in a file, the name of one of its arguments, and the names of those that may stand without one."""


def data_of(source: Source, site: Site, sites: Sites) -> Given:
    """The argument that is the training's dataset and no other loader's.

    Where one line makes the loaders of training and validation, it is the argument of the call that led there.

    Raises:
        NoHonestEditError: the line does not name it, or which call leads there is not known.
    """
    call = source.call(site, site.call)
    there = given(call, DATALOADER_POSITIONS).get("dataset")
    if there is None:
        raise NoHonestEditError(f"{site.file}:{site.line} does not name its dataset")
    others = [other for other in sites.of("loader_validation", "loader_training") if _same_call(other, site)]
    if len(others) == 1:
        return source, call, "dataset", DATALOADER_POSITIONS
    function = source.scope(there.value)
    if not isinstance(function, cst.FunctionDef) or not isinstance(there.value, cst.Name):
        raise NoHonestEditError(f"{site.file}:{site.line} makes the loaders of training and validation")
    name, positions = _called_as(source, function)
    if there.value.value not in positions or source.assignments(there.value.value, function):
        raise NoHonestEditError(f"{site.file}:{site.line} makes loaders of {source.code(there.value)}, set on the way")
    calls = [each for each in source.all_of(cst.Call) if source.called(each) == name]
    runs = {run for other in others for run in other.calls}
    if len(site.calls) != 1 or runs != set(range(len(calls))):
        raise NoHonestEditError(f"{site.file} calls {name}, which makes the loaders, in {len(calls)} places")
    handed = calls[site.calls[0]]
    if there.value.value not in given(handed, positions) or any(argument.star for argument in handed.args):
        raise NoHonestEditError(f"{source.name}:{source.lines(handed).start.line} does not name its dataset")
    return source, handed, there.value.value, positions


def _same_call(one: Site, other: Site) -> bool:
    return (one.file, one.line, one.end_column) == (other.file, other.line, other.end_column)


def _called_as(source: Source, function: cst.FunctionDef) -> tuple[str, list[str]]:
    """The name by which a function is called, and the arguments that it takes without their names."""
    positions = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    owner = source.class_of(function)
    if owner is None:
        return function.name.value, positions
    return (owner.name.value if function.name.value == "__init__" else function.name.value), positions[1:]
