"""A name followed to what gives it its value: an assignment, a function's call, a class's field, an entry of a dict."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.editing import given
from autoopt.export.script_patch.elsewhere import is_imported
from autoopt.export.script_patch.source import NoHonestEditError, Source


def followed(source: Source, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The one expression in the same file that makes what a value is; None where none does.

    Raises:
        NoHonestEditError: more than one place decides it.
    """
    if isinstance(value, cst.Name):
        return _assigned(source, value)
    if isinstance(value, cst.Attribute) and isinstance(value.value, cst.Name):
        if value.value.value == "self":
            return _own(source, value)
        return _field(source, value)
    if isinstance(value, cst.Attribute) and source.code(value.value) == "self.hparams":
        return _hyperparameter(source, value)
    if isinstance(value, cst.Subscript) and isinstance(value.value, cst.Name):
        return _entry(source, value)
    return None


def _assigned(source: Source, name: cst.Name) -> cst.BaseExpression | None:
    scope: cst.CSTNode = source.scope(name)
    found = source.assignments(name.value, scope)
    if not found and isinstance(scope, cst.FunctionDef) and _parameter(scope, name.value) is not None:
        if not _changed_otherwise(source, name.value):
            return _handed_in(source, scope, name.value)
    elif not found:
        found = source.assignments(name.value, source.tree)
    if not found and is_imported(source, name.value):
        return None
    if len(found) != 1 or found[0].value is None or _changed_otherwise(source, name.value):
        raise _several(source, name)
    return found[0].value


def _several(source: Source, value: cst.BaseExpression) -> NoHonestEditError:
    line = source.lines(value).start.line
    return NoHonestEditError(
        f"{source.name}:{line} takes it from {source.code(value)}, which is not set in one place of the file"
    )


def _parameter(function: cst.FunctionDef, name: str) -> cst.Param | None:
    every = function.params
    named = (*every.params, *every.kwonly_params, *every.posonly_params)
    return next((parameter for parameter in named if parameter.name.value == name), None)


def _changed_otherwise(source: Source, name: str) -> bool:
    """Whether something else sets the name: ``+=``, ``exec`` of a configuration."""
    added = any(source.code(node.target) == name for node in source.all_of(cst.AugAssign))
    return added or any(source.called(call) == "exec" for call in source.all_of(cst.Call))


def _handed_in(source: Source, function: cst.FunctionDef, name: str) -> cst.BaseExpression:
    """The argument that the function's only call gives the parameter, else the parameter's default."""
    positions = [parameter.name.value for parameter in (*function.params.posonly_params, *function.params.params)]
    owner = source.class_of(function)
    called = owner.name.value if owner is not None and function.name.value == "__init__" else function.name.value
    calls = [call for call in source.all_of(cst.Call) if source.called(call) == called]
    if len(calls) != 1 or any(argument.star for argument in calls[0].args):
        raise NoHonestEditError(f"{source.name} calls {called}, whose {name} it is, in {len(calls)} places")
    there = given(calls[0], positions[1:] if owner is not None else positions).get(name)
    if there is not None:
        return there.value
    parameter = _parameter(function, name)
    assert parameter is not None
    if parameter.default is None:
        raise _several(source, parameter.name)
    return parameter.default


def _own(source: Source, value: cst.Attribute) -> cst.BaseExpression | None:
    """The value under a name of the object itself, where one assignment keeps it there."""
    asked = source.code(value)
    found = [
        node.value for node in source.all_of(cst.Assign) if any(source.code(t.target) == asked for t in node.targets)
    ]
    return found[0] if len(found) == 1 and not _changed_otherwise(source, asked) else None


def _field(source: Source, value: cst.Attribute) -> cst.BaseExpression | None:
    """The value that a class of the file gives a field of this name, where nothing else is seen to set it."""
    name = value.attr.value
    found = [
        (part.value, owner)
        for owner in source.all_of(cst.ClassDef)
        for statement in owner.body.body
        if isinstance(statement, cst.SimpleStatementLine)
        for part in statement.body
        if isinstance(part, (cst.AnnAssign, cst.Assign)) and name in _targets(source, part)
    ]
    if len(found) != 1:
        return None
    kept, owner = found[0]
    set_elsewhere = any(
        isinstance(target.target, cst.Attribute) and target.target.attr.value == name
        for node in source.all_of(cst.Assign)
        for target in node.targets
    )
    made = [call for call in source.all_of(cst.Call) if source.called(call) == owner.name.value]
    if set_elsewhere or any(call.args for call in made):
        return None
    return kept


def _hyperparameter(source: Source, value: cst.Attribute) -> cst.BaseExpression | None:
    """A value under Lightning's ``self.hparams``: a parameter of the class, where its constructor saves them all."""
    function = source.scope(value)
    owner = source.class_of(function) if isinstance(function, cst.FunctionDef) else None
    parts = owner.body.body if owner is not None else ()
    init = next((part for part in parts if isinstance(part, cst.FunctionDef) and part.name.value == "__init__"), None)
    name, asked = value.attr.value, source.code(value)
    if owner is None or init is None or _parameter(init, name) is None or _changed_otherwise(source, asked):
        return None
    saved = [call for call in source.all_of(cst.Call, init) if source.code(call.func) == "self.save_hyperparameters"]
    made = any(source.called(call) == owner.name.value for call in source.all_of(cst.Call))
    if len(saved) != 1 or any(argument.keyword is None for argument in saved[0].args) or not made:
        return None
    return _handed_in(source, init, name)


def _targets(source: Source, part: cst.AnnAssign | cst.Assign) -> list[str]:
    targets = [part.target] if isinstance(part, cst.AnnAssign) else [one.target for one in part.targets]
    return [source.code(target) for target in targets]


def _entry(source: Source, value: cst.Subscript) -> cst.BaseExpression | None:
    """The entry of a dict that the file writes down once and does not change."""
    assert isinstance(value.value, cst.Name)
    name, asked = value.value.value, source.code(value)
    kept = source.assignments(name, source.tree)
    changed = any(source.code(t.target) == asked for node in source.all_of(cst.Assign) for t in node.targets)
    updated = any(source.code(call.func) == f"{name}.update" for call in source.all_of(cst.Call))
    if len(kept) != 1 or changed or updated or not isinstance(kept[0].value, cst.Dict):
        return None
    key = value.slice[0].slice
    for element in kept[0].value.elements:
        if isinstance(element, cst.DictElement) and isinstance(key, cst.Index) and element.key.deep_equals(key.value):
            return element.value
    return None
