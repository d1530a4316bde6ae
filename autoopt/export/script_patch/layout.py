"""The layout of a call that has become too long for its line, as a formatter would break it."""

from __future__ import annotations

import libcst as cst

USUAL = 88
"""Columns that a line may have where no line of the file is longer."""


def broken(call: cst.Call, indent: str, columns: int) -> cst.Call:
    """A call whose arguments share a line, broken: the arguments on a line of their own, or on one each.

    Args:
        call: with one argument at least.
        indent: of one level, in this file.
        columns: left for all arguments on a line of their own.
    """
    inside = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(indent))
    outside = cst.ParenthesizedWhitespace(indent=True)
    *others, last = call.args
    if len(cst.Module([]).code_for_node(call.with_changes(func=cst.Name("f")))) - len("f()") <= columns:
        arguments = [*others, last.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=outside)]
    else:
        arguments = [one.with_changes(comma=cst.Comma(whitespace_after=inside)) for one in others]
        comma = cst.Comma(whitespace_after=outside)
        arguments.append(last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")))
    return call.with_changes(whitespace_before_args=inside, args=arguments)
