"""Where an argument's value is made: the literal itself, one assignment of the file, an option's default."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from autoopt.export.script_patch.editing import given
from autoopt.export.script_patch.source import NoHonestEditError, Source

UNSEEN = object()
"""In the place of a value that the live object was not asked for."""


class Made(NamedTuple):
    """The expression to change; ``note``: what the user should know of the change."""

    node: cst.BaseExpression
    note: str = ""


def made_at(
    source: Source, value: cst.BaseExpression, command: Sequence[str], text: str, seen: object = UNSEEN
) -> Made:
    """The expression to change, so that an argument which is ``value`` gets another value.

    It is the one literal of the file that the argument comes from. Where there is none, as for what is computed or
    configured, the new value stands in the expression's own place, and the user is informed.

    Args:
        source: the file that the argument is in.
        value: the argument as it stands.
        command: words of the script's command, which may give an option a value of its own.
        text: the value that it gets, as Python.
        seen: the value that arrived while the script was watched.

    Raises:
        NoHonestEditError: the command gives it, or a function that is called in several places hands it in.
    """
    way = [value]
    while not is_plain(way[-1]):
        _not_given(source, way[-1], command)
        further = _default(source, way[-1]) or followed(source, way[-1])
        if further is None or any(further is each for each in way):
            return Made(way[-1], f"{text} replaces {source.code(way[-1])}, which no longer decides it")
        way.append(further)
    if len(way) > 1 and not _arrives(source, way, seen):
        return Made(value, f"{text} replaces {source.code(value)}, which no longer decides it")
    return Made(way[-1])


def is_plain(value: cst.BaseExpression | None) -> bool:
    """Whether an expression is a literal."""
    if isinstance(value, cst.UnaryOperation):
        return isinstance(value.expression, (cst.Integer, cst.Float))
    named = isinstance(value, cst.Name) and value.value in ("True", "False", "None")
    return named or isinstance(value, (cst.Integer, cst.Float, cst.SimpleString))


def _arrives(source: Source, way: Sequence[cst.BaseExpression], seen: object) -> bool:
    """Whether a literal is the value that arrived; argparse and ``int`` make numbers of texts."""
    made = ast.literal_eval(source.code(way[-1]))
    return seen is UNSEEN or made == seen or (isinstance(made, str) and made == str(seen))


def followed(source: Source, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The one expression in the same file that makes what a name or an attribute is; None where none does alone.

    Raises:
        NoHonestEditError: a function that is called in several places hands it in.
    """
    if isinstance(value, cst.Name):
        return _assigned(source, value)
    if isinstance(value, cst.Attribute):
        return _kept(source, value)
    return None


def _assigned(source: Source, name: cst.Name) -> cst.BaseExpression | None:
    if _changed_otherwise(source, name.value):
        return None
    scope: cst.CSTNode = source.scope(name)
    found = source.assignments(name.value, scope)
    if not found and isinstance(scope, cst.FunctionDef):
        every = (*scope.params.params, *scope.params.kwonly_params, *scope.params.posonly_params)
        parameter = next((each for each in every if each.name.value == name.value), None)
        if parameter is not None:
            return _handed_in(source, scope, parameter)
    found = found or source.assignments(name.value, source.tree)
    return found[0].value if len(found) == 1 else None


def _changed_otherwise(source: Source, name: str) -> bool:
    """Whether something else sets the name: ``+=``, ``exec`` of a configuration."""
    added = any(source.code(node.target) == name for node in source.all_of(cst.AugAssign))
    return added or any(source.called(call) == "exec" for call in source.all_of(cst.Call))


def _handed_in(source: Source, function: cst.FunctionDef, parameter: cst.Param) -> cst.BaseExpression | None:
    """The argument that the function's only call gives the parameter, else the parameter's default."""
    positions = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    owner, name = source.class_of(function), parameter.name.value
    called = owner.name.value if owner is not None and function.name.value == "__init__" else function.name.value
    calls = [call for call in source.all_of(cst.Call) if source.called(call) == called]
    if len(calls) != 1 or any(argument.star for argument in calls[0].args):
        raise NoHonestEditError(f"{source.name} calls {called}, whose {name} it is, in {len(calls)} places")
    there = given(calls[0], positions[1:] if owner is not None else positions).get(name)
    return parameter.default if there is None else there.value


def _kept(source: Source, value: cst.Attribute) -> cst.BaseExpression | None:
    """What the one assignment to an attribute of this name keeps, or the one field of a class that is made bare."""
    name = value.attr.value
    found = [
        assign.value
        for assign in source.all_of(cst.Assign)
        for each in assign.targets
        if isinstance(each.target, cst.Attribute) and each.target.attr.value == name
    ]
    filled = {source.called(call) for call in source.all_of(cst.Call) if call.args}
    for field in source.assignments(name, source.tree):
        block = source.parent(source.parent(field) or field)
        owner = source.parent(block) if block is not None else None
        if isinstance(owner, cst.ClassDef) and field.value is not None:
            found += [field.value, *([value] if owner.name.value in filled else [])]
    return found[0] if len(found) == 1 and not _changed_otherwise(source, source.code(value)) else None


# options of the command line


class _Option(NamedTuple):
    """An ``add_argument`` call: ``words`` as the command may give them."""

    call: cst.Call
    words: tuple[str, ...]


def _options(source: Source, attribute: str) -> Iterator[_Option]:
    """The options of the file whose values argparse keeps under this name."""
    for call in source.all_of(cst.Call):
        if source.called(call) == "add_argument":
            words = tuple(w for a in call.args if a.keyword is None and (w := _text(a.value)))
            long = next((word for word in words if word.startswith("--")), words[0] if words else "")
            named = given(call).get("dest")
            if words and attribute == (_text(named.value) if named else long.lstrip("-").replace("-", "_")):
                yield _Option(call, words)


def _not_given(source: Source, value: cst.BaseExpression, command: Sequence[str]) -> None:
    """Nothing where the command leaves what an expression reads to its default.

    Raises:
        NoHonestEditError: the command gives it, and its user changes it there.
    """
    for read in source.all_of(cst.Attribute, value):
        name = read.attr.value
        own = {word for option in _options(source, name) for word in option.words if _is_parsed(source, read)}
        for word in command[1:]:
            key = word.partition("=")[0]
            last = key.rpartition(".")[2].lstrip("-+~").replace("-", "_")
            short = any(len(each) == 2 and word.startswith(each) for each in own)
            if key in own or short or (last == name and (word.startswith("-") or "=" in word)):
                raise NoHonestEditError(f"the command gives {word if short else key}: change it there", by_hand=True)
        if own and not any(each.startswith("-") for each in own):
            raise NoHonestEditError(f"the command gives {name}: change it there", by_hand=True)


def _default(source: Source, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The plain default of the one option that an expression is: ``args.workers``, or ``int(args.workers)``."""
    if isinstance(value, cst.Call) and source.code(value.func) == "int" and len(value.args) == 1:
        value = value.args[0].value
    if not isinstance(value, cst.Attribute) or not _is_parsed(source, value):
        return None
    options = list(_options(source, value.attr.value))
    found = given(options[0].call).get("default") if len(options) == 1 else None
    return found.value if found is not None and is_plain(found.value) else None


def _is_parsed(source: Source, value: cst.Attribute) -> bool:
    """Whether an attribute may be one of parsed options: ``args.x`` and ``self.args.x``, not ``self.x``."""
    return source.code(value.value) not in ("self", "cls")


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
