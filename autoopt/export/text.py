"""Python as text: literals, calls and comments laid out, and source in which what is known already is decided.

Printed code is real code with conditions on a plan (``if plan.scales_loss:``). Where a name is known, conditions on it
are decided, loops over it unrolled, and names filled in; the rest of the source, comments included, stays as it is.
"""
# ruff: noqa: N802 (LibCST calls its visitors by the names of nodes)

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from textwrap import TextWrapper
from typing import Any, TypeVar, cast

import libcst as cst
from libcst import matchers as m
from libcst.metadata import ExpressionContext, ExpressionContextProvider, MetadataWrapper, ParentNodeProvider

WIDTH = 88
"""Fits the formatters' narrowest usual line; longer calls are written one argument a line."""


def literal(value: Any, part: Callable[[Any], str] | None = None) -> str:
    """A plain value as Python.

    Args:
        part: writes what a list, a tuple, a set or a mapping holds; plain values too where None.

    Raises:
        ValueError: it is not plain.
    """
    if isinstance(value, str):
        if '"' in value and "'" not in value:
            return repr(value)  # the quotes that need no escape
        quoted = json.dumps(value, ensure_ascii=False)
        return quoted if quoted.isprintable() and "\\u" not in quoted else repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or type(value) in (bool, int, float, complex, bytes):
        return repr(value)
    part = part or literal
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{part(k)}: {part(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        inner = ", ".join(map(part, value))
        if isinstance(value, list):
            return f"[{inner}]"
        if isinstance(value, tuple):
            return f"({inner}{',' if len(value) == 1 else ''})"
        made = f"{{{inner}}}" if value else ""
        return made if isinstance(value, set) and value else f"{type(value).__name__}({made})"
    raise ValueError(f"{type(value).__name__} is not plain")


def call(name: str, arguments: Sequence[str], keywords: Mapping[str, str] | None = None) -> str:
    """A call on one line where it fits into ``WIDTH``, else one argument a line; arguments are Python text."""
    parts = [*arguments, *(f"{key}={value}" for key, value in (keywords or {}).items())]
    line = f"{name}({', '.join(parts)})"
    if "\n" not in line and len(line) <= WIDTH:
        return line
    return name + "(\n" + "".join(f"    {part},\n".replace("\n    ", "\n        ") for part in parts) + ")"


def commented(text: str) -> list[str]:
    """The text as comment lines."""
    wrapper = TextWrapper(WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.wrap(" ".join(text.split()))


_Kept = TypeVar("_Kept", bound=cst.BaseExpression)
_UNKNOWN = object()
_CONSTANTS: dict[str, Any] = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class Code:
    """An expression as Python text; it is known not to be None."""

    text: str


GIVEN = Code("")
"""Known not to be None, and nothing more: the name stays."""

Known = Mapping[str, "Code | bool | int | float | str | Sequence[Code] | Mapping[str, Code] | None"]
"""Meanings of dotted names: a constant, code, a list of code (for loops), keywords (for calls), ``GIVEN``."""


def fold(source: str, known: Known) -> str:
    """A module's source with all that is decided by what is known.

    * a known name is replaced, an assignment to it and a parameter of its name are left out, and so are a keyword
      argument of its name that has its value, and a method that is known to be None;
    * ``if``, ``... if ... else ...``, ``and``, ``or``, ``not``, ``is None`` of what is known are decided, ``assert``,
      ``with None``, calls of None and what follows a ``return`` are left out;
    * ``for change in known_list:`` is written once for each, ``**known_keywords`` as the keywords.
    """
    folded = MetadataWrapper(cst.parse_module(source)).visit(_Folder(known))
    return folded.code


@cache  # a search makes many patches, whose parts come from few files
def without_annotations(source: str) -> str:
    """A module's source without its annotations, which a script has none of; fields of classes keep theirs."""
    plain = re.sub(r"  # type: ignore\[[a-z, -]+\]", "", source)
    return MetadataWrapper(cst.parse_module(plain), unsafe_skip_copy=True).visit(_Plain()).code


class _Plain(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (ParentNodeProvider,)

    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        if original_node.annotation is None:
            return updated_node
        return updated_node.with_changes(
            annotation=None, equal=EQUAL if original_node.default else cst.MaybeSentinel.DEFAULT
        )

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        params = updated_node.params
        last = (*params.params, *params.kwonly_params)[-1:]
        if last and not isinstance(last[0].comma, cst.Comma):  # what was broken for its annotations fits a line now
            bare = cst.SimpleWhitespace("")
            updated_node = updated_node.with_changes(whitespace_before_params=bare)
            params = params.with_deep_changes(last[0], whitespace_after_param=bare)
        return updated_node.with_changes(returns=None, params=params)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> Any:
        above: Any = original_node
        while not isinstance(above, (cst.ClassDef, cst.FunctionDef, cst.Module)):
            above = self.get_metadata(ParentNodeProvider, above)
        if isinstance(above, cst.ClassDef):
            return updated_node
        if updated_node.value is None:
            return cst.RemoveFromParent()
        return cst.Assign([cst.AssignTarget(updated_node.target)], updated_node.value)


def _value(node: cst.BaseExpression) -> Any:
    """The constant that an expression is, or ``_UNKNOWN``."""
    if isinstance(node, cst.Name):
        return _CONSTANTS.get(node.value, _UNKNOWN)
    if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString)):
        return node.evaluated_value
    return _UNKNOWN


def _dotted(node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        left = _dotted(node.value)
        return None if left is None else f"{left}.{node.attr.value}"
    return None


class _Folder(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (ExpressionContextProvider,)

    def __init__(self, known: Known) -> None:
        super().__init__()
        self._known = known

    # names

    def _filled(self, original_node: _Kept, updated_node: _Kept) -> cst.BaseExpression:
        name = _dotted(original_node) or ""
        context = self.get_metadata(ExpressionContextProvider, original_node, None)
        value = self._known.get(name, GIVEN)
        if value is GIVEN or context is not ExpressionContext.LOAD:
            return updated_node
        if isinstance(value, Code):
            return cst.parse_expression(value.text)
        if value is None or isinstance(value, (bool, int, float, str)):
            return cst.parse_expression(literal(value))
        return updated_node  # a list or keywords: the loop or the call looks

    leave_Name = leave_Attribute = _filled  # noqa: N815

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Parameters(self, original_node: cst.Parameters, updated_node: cst.Parameters) -> cst.Parameters:
        every = [*updated_node.params, *updated_node.kwonly_params]
        params = [param for param in updated_node.params if not self._left_out(param.name)]
        named = [param for param in updated_node.kwonly_params if not self._left_out(param.name)]
        if len(params) + len(named) == len(every):
            return updated_node
        last = named or params
        if last:
            last[-1] = last[-1].with_changes(
                comma=every[-1].comma, whitespace_after_param=every[-1].whitespace_after_param
            )
        star = (
            updated_node.star_arg
            if named or isinstance(updated_node.star_arg, cst.Param)
            else cst.MaybeSentinel.DEFAULT
        )
        return updated_node.with_changes(params=params, kwonly_params=named, star_arg=star)

    def _constant(self, node: cst.BaseExpression) -> Any:
        """The constant that an expression is, a known list or keywords, or ``_UNKNOWN``."""
        value = self._known.get(_dotted(node) or "", _UNKNOWN)
        return value if isinstance(value, (list, tuple, Mapping)) else _value(node)

    # expressions

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        value = self._constant(updated_node.expression)
        if isinstance(updated_node.operator, cst.Not) and value is not _UNKNOWN:
            return cst.Name(str(not value))
        return updated_node

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        left = self._constant(updated_node.left)
        ends = isinstance(updated_node.operator, cst.Or)  # the value of the left side that ends it
        if left is _UNKNOWN:
            return updated_node
        return updated_node.left if bool(left) is ends else updated_node.right

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.BaseExpression:
        (target,) = updated_node.comparisons[:1]
        negated = isinstance(target.operator, cst.IsNot)
        left, right = _value(updated_node.left), _value(target.comparator)
        if isinstance(self._known.get(_dotted(original_node.left) or ""), Code):
            left = Code
        if right is not None or left is _UNKNOWN or not (negated or isinstance(target.operator, cst.Is)):
            return updated_node
        return cst.Name(str((left is None) is not negated))

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        value = self._constant(updated_node.test)
        if value is _UNKNOWN:
            return updated_node
        return updated_node.body if value else updated_node.orelse

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        arguments: list[cst.Arg] = []
        for original, updated in zip(original_node.args, updated_node.args, strict=True):
            name = original.keyword.value if original.keyword is not None else ""
            keywords = self._known.get(_dotted(original.value) or "") if original.star == "**" else None
            value = self._known.get(name, _UNKNOWN)
            if isinstance(keywords, Mapping):
                each = [(cst.Name(key), cst.parse_expression(code.text)) for key, code in keywords.items()]
                arguments += [cst.Arg(expression, keyword=key) for key, expression in each]
            elif isinstance(value, Code) or value is _UNKNOWN or _value(updated.value) != value:
                arguments.append(updated)
        if len(arguments) == len(original_node.args) and all(
            one is two for one, two in zip(arguments, updated_node.args, strict=True)
        ):
            name = _dotted(updated_node.func) or ""
            if name.startswith("torch.Tensor.") and len(arguments) == 1:  # ``torch.Tensor.backward(loss)``
                method = cst.Attribute(arguments[0].value, cst.Name(name.rpartition(".")[2]))
                return updated_node.with_changes(func=method, args=[])
            return updated_node
        return _laid_out(updated_node, arguments)

    # statements

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        (small,) = updated_node.body
        targets = [t.target for t in small.targets] if isinstance(small, cst.Assign) else []
        targets += [small.target] if isinstance(small, cst.AnnAssign) else []
        if targets and all(self._left_out(target) for target in targets):
            return cst.RemoveFromParent()
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString):
            return self._documented(updated_node, small, small.value)
        if isinstance(small, cst.Assert) and _value(small.test) is True:
            return cst.RemoveFromParent()
        if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and _value(small.value.func) is None:
            return cst.RemoveFromParent()
        if isinstance(small, cst.Assign) and len(targets) > 1:
            kept = [t for t in small.targets if not self._left_out(t.target)]
            return updated_node.with_changes(body=[small.with_changes(targets=kept)])
        return updated_node

    def _documented(self, line: cst.SimpleStatementLine, small: cst.Expr, text: cst.SimpleString) -> Any:
        """A docstring without the entries of what is left out."""
        kept: list[str] = []
        skipped = None
        for row in text.value.split("\n"):
            depth = len(row) - len(row.lstrip())
            entry = re.match(r"\s+(\w+): ", row)
            if skipped is not None and row.strip() and depth > skipped:
                continue
            skipped = None
            if entry and depth > 4 and self._left_out(cst.Name(entry[1])):
                skipped = depth
            else:
                kept.append(row)
        if len(kept) == len(text.value.split("\n")):
            return line
        return line.with_changes(body=[small.with_changes(value=text.with_changes(value="\n".join(kept)))])

    def _left_out(self, target: cst.BaseExpression) -> bool:
        """Whether nobody reads what is assigned, since its value is filled in where it is read."""
        return self._known.get(_dotted(target) or "", GIVEN) is not GIVEN

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> Any:
        name = f"self.{original_node.name.value}"
        return cst.RemoveFromParent() if self._known.get(name, _UNKNOWN) is None else updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        ends = (m.matches(each, m.SimpleStatementLine(body=[m.Return() | m.Raise()])) for each in updated_node.body)
        last = next((place for place, end in enumerate(ends, 1) if end), None)
        return updated_node.with_changes(body=updated_node.body[:last])

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        value, orelse = self._constant(updated_node.test), updated_node.orelse
        if isinstance(orelse, cst.If):
            if _value(orelse.test) is not _UNKNOWN or value is not _UNKNOWN:
                raise ValueError("an elif of printed code must not depend on what is known")
            return updated_node
        if value is _UNKNOWN:
            return cst.RemoveFromParent() if not updated_node.body.body and orelse is None else updated_node
        if not value:
            return _spliced(updated_node, orelse.body) if orelse is not None else cst.RemoveFromParent()
        return _spliced(updated_node, updated_node.body)

    def leave_Else(self, original_node: cst.Else, updated_node: cst.Else) -> Any:
        return cst.RemoveFromParent() if not updated_node.body.body else updated_node

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        if any(_value(item.item) is not None for item in updated_node.items):
            return updated_node
        return _spliced(updated_node, updated_node.body)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> Any:
        each = self._known.get(_dotted(original_node.iter) or "")
        if not isinstance(each, (list, tuple)):
            return cst.RemoveFromParent() if not updated_node.body.body else updated_node
        name, written = cst.ensure_type(original_node.target, cst.Name).value, []
        for code in each:
            filled = m.replace(updated_node.body, m.Name(name), cst.parse_expression(code.text))
            written += list(cast(cst.BaseSuite, filled).body)
        if not written:
            return cst.RemoveFromParent()
        return _spliced(updated_node, updated_node.body.with_changes(body=written))


def _spliced(statement: Any, suite: cst.BaseSuite) -> Any:
    """The statements of a block in place of the statement around it, which leaves them its comments."""
    body = list(suite.body)
    if not body:
        return cst.RemoveFromParent()
    first: Any = body[0]
    body[0] = first.with_changes(leading_lines=[*statement.leading_lines, *first.leading_lines])
    return cst.FlattenSentinel(body)


def _laid_out(call: cst.Call, arguments: list[cst.Arg]) -> cst.Call:
    """A call with other arguments, on one line where it fits, else one argument a line."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    plain = [
        argument.with_changes(comma=comma, equal=EQUAL if argument.keyword else cst.MaybeSentinel.DEFAULT)
        for argument in arguments
    ]
    if plain:
        plain[-1] = plain[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    flat = call.with_changes(args=plain, whitespace_before_args=cst.SimpleWhitespace(""))
    text = cst.Module([]).code_for_node(flat)
    if "\n" not in text and len(text) <= WIDTH - 8:  # what stands before it is not counted
        return flat
    return broken(flat, "    ", 0)


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


EQUAL = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))
