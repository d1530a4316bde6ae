"""Where an argument's value is made: the literal itself, the variable's one assignment, an option's default."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from autoopt.export.script_patch.editing import given
from autoopt.export.script_patch.source import NoHonestEditError, Source

_LITERALS = (cst.Integer, cst.Float, cst.SimpleString, cst.UnaryOperation)


def made_at(source: Source, value: cst.BaseExpression, command: Sequence[str]) -> cst.BaseExpression:
    """The expression to change, so that an argument which is ``value`` gets another value.

    Args:
        source: the file that the argument is in.
        value: the argument as it stands.
        command: the words of the script's command, which may give an option a value of its own.

    Raises:
        NoHonestEditError: it is computed, set more than once, or given on the command line.
    """
    if isinstance(value, _LITERALS) or source.code(value) in ("True", "False", "None"):
        return value
    name, line = source.code(value), source.lines(value).start.line
    if isinstance(value, cst.Name):
        return _assigned(source, value, name, line)
    if isinstance(value, cst.Attribute):
        option = _option(source, value.attr.value)
        if option is not None:
            return _default(source, option, value.attr.value, command)
    raise NoHonestEditError(f"{source.name}:{line} computes it: {name}")


def _assigned(source: Source, value: cst.Name, name: str, line: int) -> cst.BaseExpression:
    scope: cst.CSTNode = source.scope(value)
    found = source.assignments(name, scope)
    if not found and not _is_parameter(scope, name):
        found = source.assignments(name, source.tree)
    if len(found) != 1 or _changed_otherwise(source, name):
        raise NoHonestEditError(f"{source.name}:{line} takes it from {name}, which is not set in one place of the file")
    made = found[0].value
    if not isinstance(made, _LITERALS) and source.code(made) not in ("True", "False", "None"):  # type: ignore[arg-type]
        where = source.lines(found[0]).start.line
        raise NoHonestEditError(f"{source.name}:{where} computes {name}")
    assert made is not None
    return made


def _is_parameter(scope: cst.CSTNode, name: str) -> bool:
    if not isinstance(scope, cst.FunctionDef):
        return False
    every = scope.params
    return any(p.name.value == name for p in (*every.params, *every.kwonly_params, *every.posonly_params))


def _changed_otherwise(source: Source, name: str) -> bool:
    """Whether something else sets the name: ``+=``, ``exec`` of a configuration."""
    added = any(source.code(node.target) == name for node in source.all_of(cst.AugAssign))
    return added or any(source.called(call) == "exec" for call in source.all_of(cst.Call))


def _option(source: Source, attribute: str) -> cst.Call | None:
    """The ``add_argument`` that makes an attribute of the parsed options."""
    found = []
    for call in source.all_of(cst.Call):
        if source.called(call) != "add_argument":
            continue
        named = given(call).get("dest")
        words = [_text(argument.value) for argument in call.args if argument.keyword is None]
        dest = _text(named.value) if named else _dest(words)
        if dest == attribute:
            found.append(call)
    return found[0] if len(found) == 1 else None


def _default(source: Source, option: cst.Call, attribute: str, command: Sequence[str]) -> cst.BaseExpression:
    line = source.lines(option).start.line
    words = [_text(argument.value) for argument in option.args if argument.keyword is None]
    for word in command:
        if word.split("=")[0] in words:
            raise NoHonestEditError(f"the command gives {word.split('=')[0]}: change it there", by_hand=True)
    default = given(option).get("default")
    if default is None or not isinstance(default.value, _LITERALS):
        raise NoHonestEditError(f"{source.name}:{line} gives {attribute} no default that is a plain value")
    return default.value


def _dest(words: Sequence[str | None]) -> str | None:
    texts = [word for word in words if word]
    long = next((word for word in texts if word.startswith("--")), texts[0] if texts else None)
    return long.lstrip("-").replace("-", "_") if long else None


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
