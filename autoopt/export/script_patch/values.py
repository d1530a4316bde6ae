"""Where an argument's value is made: the literal itself, the variable's one assignment, an option's default."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import libcst as cst

from autoopt.export.script_patch.elsewhere import made_elsewhere
from autoopt.export.script_patch.following import followed
from autoopt.export.script_patch.options import Option, ScriptOptions, is_parsed, of_machine
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.export.script_patch.user_files import ConfiguredLine

_LITERALS = (cst.Integer, cst.Float, cst.SimpleString, cst.UnaryOperation)
UNSEEN = object()
"""In the place of a value that the live object was not asked for."""


@dataclass(frozen=True)
class Made:
    """The expression to change and the file it is in; ``note``: what the user should know of the change.

    ``configured``: the line of a file that configures the script, in the place of an expression.
    """

    source: Source
    node: cst.BaseExpression
    note: str = ""
    configured: ConfiguredLine | None = None


def made_at(
    source: Source, value: cst.BaseExpression, options: ScriptOptions, text: str, seen: object = UNSEEN
) -> Made:
    """The expression to change, so that an argument which is ``value`` gets another value.

    Args:
        source: the file that the argument is in.
        value: the argument as it stands.
        options: of the command line.
        text: the value that it gets, as Python.
        seen: the value that arrived while the script was watched.

    Raises:
        NoHonestEditError: it is computed, set more than once, or given on the command line.
    """
    return _made_at(source, value, options, text, seen, ())


def _made_at(
    source: Source,
    value: cst.BaseExpression,
    options: ScriptOptions,
    text: str,
    seen: object,
    on_the_way: tuple[cst.BaseExpression, ...],
) -> Made:
    name, line = source.code(value), source.lines(value).start.line
    if _is_plain(source, value):
        if on_the_way and seen is not UNSEEN and seen != ast.literal_eval(name):
            raise NoHonestEditError(f"{source.name}:{line} is not what arrives: {seen!r} does")
        return Made(source, value)
    default = None if isinstance(value, cst.Name) else _default(source, value, options, text, seen)
    if default is not None:
        return default
    found = options.within(source, value)
    if not found and not any(value is other for other in on_the_way):
        further = followed(source, value)
        if further is not None:
            return _made_at(source, further, options, text, seen, (*on_the_way, value))
    if not found:
        if of_machine(source, value):
            return Made(source, value)
        setter = made_elsewhere(source, value, options.files, options.command, text, seen)
        if isinstance(setter, ConfiguredLine):
            return Made(source, value, configured=setter)
        return Made(*setter)
    for option in found:
        option.not_given(options.command)
    words = " and ".join(dict.fromkeys(option.shown for option in found))
    return Made(source, value, f"{words} no longer decides what {name} was: {text} stands in its place")


def _is_plain(source: Source, value: cst.BaseExpression | None) -> bool:
    if isinstance(value, cst.UnaryOperation):
        return isinstance(value.expression, _LITERALS)
    return value is not None and (isinstance(value, _LITERALS) or source.code(value) in ("True", "False", "None"))


def _default(source: Source, value: cst.BaseExpression, options: ScriptOptions, text: str, seen: object) -> Made | None:
    """The plain default of the one option that an argument is as it stands; None where it has none."""
    option = _itself(source, value, options, text)
    if option is None:
        return None
    option.not_given(options.command)
    default = option.default
    if default is None or not _is_plain(option.source, default):
        return None
    if seen is not UNSEEN and seen != _value(option, default, source.code(value)):
        where = f"{option.source.name}:{option.source.lines(option.call).start.line}"
        raise NoHonestEditError(f"{where} gives {option.shown} a default that is not what arrives: {seen!r} does")
    if seen is UNSEEN and option.source is not source:
        return None  # that the option decides was not seen, and the two files know nothing of one another
    return Made(option.source, default)


def _itself(source: Source, value: cst.BaseExpression, options: ScriptOptions, text: str) -> Option | None:
    """The option that an expression hands on: ``args.workers``, or ``int(args.workers)`` for what is to be whole."""
    if isinstance(value, cst.Call) and source.code(value.func) == "int" and len(value.args) == 1 and text.isdigit():
        value = value.args[0].value
    if not isinstance(value, cst.Attribute) or not is_parsed(source, value):
        return None
    return options.of(source, value.attr.value)


def _value(option: Option, default: cst.BaseExpression, asked: str) -> object:
    """A plain default as the argument gets it: argparse gives texts to the option's type."""
    value: object = ast.literal_eval(option.source.code(default))
    if isinstance(value, str):
        kind = next(
            (option.source.code(a.value) for a in option.call.args if a.keyword and a.keyword.value == "type"), ""
        )
        for name, made in (("int", int), ("float", float)):
            if kind == name or asked.startswith(f"{name}("):
                try:
                    return made(value)
                except ValueError:
                    return value
    return value
