"""A value that the script takes from a configuration or another file: the one line that sets it, or those that may."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.export.script_patch.user_files import ConfiguredLine, UserFiles

_MOST_NAMED = 3
_READ = ("loader", "add_argument")
"""Calls whose arguments of this name set nothing that is kept under it."""

Setter = tuple[Source, cst.BaseExpression]


def made_elsewhere(
    source: Source, value: cst.BaseExpression, files: UserFiles, command: Sequence[str], text: str, seen: object
) -> Setter | ConfiguredLine:
    """The one literal in the user's files that is the value which was seen to arrive.

    Args:
        source: the file in which ``value`` stands.
        value: a name that is imported, an attribute or an entry of some configuration, or anything that is computed.
        files: of the user.
        command: words of the script's command, which may set it.
        text: what it is to become.
        seen: what arrived.

    Raises:
        NoHonestEditError: nothing or several lines of code set it, or a file that configures the script does; a person
            can, at the lines that are named.
    """
    code, line = source.code(value), source.lines(value).start.line
    name = _last_name(value)
    if name is None:
        raise NoHonestEditError(f"{source.name}:{line} computes it: {code}; write {text} in its place", by_hand=True)
    for word in command:
        key = word.partition("=")[0]
        last = key.rpartition(".")[2].lstrip("-+~").replace("-", "_")
        if last == name and (word.startswith("-") or "=" in word):
            raise NoHonestEditError(f"the command gives {key}: change it there", by_hand=True)
    setters = list(_setters(source, value, name, files, seen))
    lines = [each for each in files.configured(name, command) if _is_seen(each.written, seen)]
    changed = isinstance(value, cst.Subscript) and any(other is source for other, _ in setters)  # a dict, later on
    if len(setters) == 1 and not lines and not changed and _literal(setters[0]) is not None:
        return setters[0]
    if len(lines) == 1 and not setters and lines[0].named:
        return lines[0]
    places = [f"{other.name}:{other.lines(node).start.line}" for other, node in setters] + [
        each.place for each in lines
    ]
    told = f"{source.name}:{line} takes it from {code}"
    if not places:
        raise NoHonestEditError(f"{told}, which no one line was seen to set; write {text} in its place", by_hand=True)
    if len(places) == 1:
        raise NoHonestEditError(f"{told}, which is set in {places[0]}; write {text} there", by_hand=True)
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    named = ", ".join(places[:_MOST_NAMED]) + more
    raise NoHonestEditError(f"{told}, which {named} may set; write {text} there, or in its place", by_hand=True)


def is_imported(source: Source, name: str) -> bool:
    """Whether a file may have a name from another."""
    for statement in source.all_of(cst.ImportFrom):
        if isinstance(statement.names, cst.ImportStar) or any(
            (alias.evaluated_alias or alias.evaluated_name) == name for alias in statement.names
        ):
            return True
    return False


def _last_name(value: cst.BaseExpression) -> str | None:
    """The name under which a value is kept; None of what is no name, attribute or entry."""
    if isinstance(value, cst.Name):
        return value.value
    if isinstance(value, cst.Attribute):
        return value.attr.value
    if isinstance(value, cst.Subscript) and len(value.slice) == 1 and isinstance(value.slice[0].slice, cst.Index):
        key = value.slice[0].slice.value
        found = key.evaluated_value if isinstance(key, cst.SimpleString) else None
        return found if isinstance(found, str) else None
    return None


def _setters(source: Source, value: cst.BaseExpression, name: str, files: UserFiles, seen: object) -> Iterator[Setter]:
    """Lines of code that keep something under this name, but for those that keep another value than arrived."""
    for other in files.with_text(name):
        for node in _kept(other, name, constants_alone=isinstance(value, cst.Name)):
            if other is source and node is value:
                continue
            literal = _literal((other, node))
            if literal is None or _is_seen(literal, seen):
                yield other, node


def _kept(source: Source, name: str, *, constants_alone: bool) -> list[cst.BaseExpression]:
    found: list[cst.BaseExpression] = []
    assignments: list[cst.Assign | cst.AnnAssign] = [*source.all_of(cst.Assign), *source.all_of(cst.AnnAssign)]
    for assignment in assignments:
        targets = (
            [assignment.target]
            if isinstance(assignment, cst.AnnAssign)
            else [each.target for each in assignment.targets]
        )
        if assignment.value is not None and any(_keeps(source, each, name, constants_alone) for each in targets):
            found.append(assignment.value)
    if not constants_alone:
        found += [given for given in _given(source, name) if _is_plain(given)]
    return sorted(found, key=lambda node: source.lines(node).start.line)


def _given(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """Values that calls and dicts give under this name."""
    for call in source.all_of(cst.Call):
        if not source.called(call).lower().endswith(_READ):
            yield from (each.value for each in call.args if each.keyword is not None and each.keyword.value == name)
    for element in source.all_of(cst.DictElement):
        if isinstance(element.key, cst.SimpleString) and element.key.evaluated_value == name:
            yield element.value


def _keeps(source: Source, target: cst.BaseExpression, name: str, constants_alone: bool) -> bool:
    if isinstance(target, cst.Name):  # a constant of a module, or a field of a class; no function's own variable
        return target.value == name and isinstance(source.scope(target), cst.Module)
    if isinstance(target, cst.Attribute):
        return not constants_alone and target.attr.value == name
    return not constants_alone and isinstance(target, cst.Subscript) and _last_name(target) == name


def _is_plain(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.UnaryOperation):
        return isinstance(value.expression, (cst.Integer, cst.Float))
    named = isinstance(value, cst.Name) and value.value in ("True", "False", "None")
    return named or isinstance(value, (cst.Integer, cst.Float, cst.SimpleString))


def _literal(setter: Setter) -> str | None:
    source, node = setter
    return source.code(node) if _is_plain(node) else None


def _is_seen(written: str, seen: object) -> bool:
    """Whether what is written is the value that arrived; YAML and JSON write some of Python's otherwise."""
    words = {"true": True, "false": False, "null": None, "~": None}
    try:
        value: object = words[written] if written in words else ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return False
    return type(value) is type(seen) and value == seen
