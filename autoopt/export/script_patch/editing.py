"""Edits of a concrete syntax tree: arguments of calls, lines around statements, statements under ``with``; diffs."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot, Statement, Suite
from autoopt.export.text import EQUAL, WIDTH, broken


def diff_of(before: str | None, after: str, name: str) -> str:
    """The unified diff of one file; empty where nothing changed. ``before``: None where the file is added."""
    old, new = (before or "").splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, "/dev/null" if before is None else f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


DATALOADER_POSITIONS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
)
"""A DataLoader's arguments that may stand without their names."""


Argument = tuple[cst.BaseExpression | None, Sequence[str]]
"""Value of an argument, None where it is removed, and the names of those that may stand without one."""


@dataclass(frozen=True)
class Wrapped:
    """Statements ``first`` to ``last`` of a block under a header such as ``with no_grad()``, lines above and below."""

    suite: Suite
    first: int
    last: int
    header: str
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()

    def holds(self, other: Wrapped) -> bool:
        """Whether the other's statements are some of these."""
        return self.suite is other.suite and self.first <= other.first and other.last <= self.last


@dataclass
class Edits:
    """The edits of one file, collected; nothing is done before ``code``."""

    source: Source
    arguments: dict[cst.CSTNode, dict[str, Argument]] = field(default_factory=lambda: defaultdict(dict))
    merged: dict[cst.CSTNode, dict[str, cst.BaseExpression]] = field(default_factory=lambda: defaultdict(dict))
    replaced: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    owners: dict[cst.CSTNode, cst.CSTNode | None] = field(default_factory=dict)
    around: dict[cst.CSTNode, list[str]] = field(default_factory=lambda: defaultdict(list))
    before: dict[cst.CSTNode, list[str]] = field(default_factory=lambda: defaultdict(list))
    after: dict[cst.CSTNode, list[str]] = field(default_factory=lambda: defaultdict(list))
    wrapped: list[Wrapped] = field(default_factory=list)
    apart: dict[cst.CSTNode, str] = field(default_factory=dict)
    removed: set[cst.CSTNode] = field(default_factory=set)

    def copy(self) -> Edits:
        """The same edits, to which others can be added on trial."""
        kept = copy(self)
        for name, value in vars(self).items():
            if name != "source":
                setattr(kept, name, copy(value))
        tables: list[dict[cst.CSTNode, Any]] = [kept.arguments, kept.merged, kept.around, kept.before, kept.after]
        for held in tables:
            held.update({node: copy(value) for node, value in held.items()})
        return kept

    def argument(self, call: cst.Call, name: str, text: str | None, positions: Sequence[str] = ()) -> None:
        """Sets an argument of a call, in its place where it stands there already; None takes it out."""
        self.arguments[call][name] = None if text is None else self.expression(text), positions

    def replace(self, node: cst.CSTNode, text: str, on_behalf: cst.CSTNode | None = None) -> None:
        """Puts another expression in the place of one.

        Args:
            on_behalf: the argument that is to get this value, where it is one.

        Raises:
            NoHonestEditError: another argument has been given another value so.
        """
        new = self.expression(text)
        old, owner = self.replaced.get(node), self.owners.get(node)
        if old is not None and (owner is None or owner is not on_behalf) and not new.deep_equals(old):
            where = f"{self.source.name}:{self.source.lines(node).start.line}"
            raise NoHonestEditError(f"{where} decides another argument, too, which gets another value")
        self.replaced[node], self.owners[node] = new, on_behalf

    def expression(self, text: str) -> cst.BaseExpression:
        return cst.parse_expression(text, config=self.source.tree.config_for_parsing)

    def replace_statement(self, spot: Spot, text: str) -> None:
        """Puts one or more statements in the place of one; what stands above it stays."""
        indent = " " * self.source.lines(spot.statement).start.column
        plain = "\n".join(line.removeprefix(indent) for line in text.splitlines())
        *above, last = cst.parse_module(plain, self.source.tree.config_for_parsing).body
        self.before[spot.statement] += [self.source.tree.code_for_node(each) for each in above]
        self.replaced[spot.statement] = last.with_changes(leading_lines=spot.statement.leading_lines)

    def insert(self, spot: Spot, lines: Sequence[str], *, below: bool, apart: bool = False) -> None:
        """Adds lines above or below a statement; lines that are there already are not added twice.

        Args:
            apart: a blank line stands above the first of them that are, as below imports.
        """
        there = (self.after if below else self.before)[spot.statement]
        if apart and lines:
            self.apart.setdefault(spot.statement, lines[0])
        there += [line for line in lines if line not in there]

    def import_from(self, spot: Spot, module: str, name: str) -> None:
        """Adds ``from module import name`` below an import, in one line with other names of the module."""
        for there in self.source.all_of(cst.ImportFrom, self.source.tree):
            named = not isinstance(there.names, cst.ImportStar) and there.module is not None
            if named and self.source.code(there.module or there) == module:
                now = self.replaced.get(there, there)
                if self.source.scope(there) is self.source.tree and isinstance(now, cst.ImportFrom):
                    assert not isinstance(now.names, cst.ImportStar)
                    if any(each.asname is None and self.source.code(each.name) == name for each in now.names):
                        return  # another edit of the patch has it
                    self.replaced[there] = now.with_changes(names=extended(now.names, cst.ImportAlias(cst.Name(name))))
                    return
        lines, start = self.after[spot.statement], f"from {module} import "
        old = next((line for line in lines if line.startswith(start)), None)
        every = {name, *(old.removeprefix(start).split(", ") if old else ())}
        line = start + ", ".join(sorted(every, key=lambda each: (each[0].islower(), each)))
        if old is not None:
            lines[lines.index(old)] = line
        else:
            lines.insert(sum(each.startswith(("import ", "from ")) for each in lines), line)

    def remove(self, spot: Spot) -> None:
        """Takes a statement out, with the comment of its line; what stands above it stays."""
        self.removed.add(spot.statement)

    def wrap(self, new: Wrapped) -> None:
        """Puts statements of a block under a header.

        Raises:
            NoHonestEditError: some of them alone are under another one with others.
        """
        for other in self.wrapped:
            apart = new.suite is not other.suite or new.last < other.first or other.last < new.first
            if not (apart or new.holds(other) or other.holds(new)):
                raise NoHonestEditError("other lines of the patch stand around the same statements")
        self.wrapped.append(new)

    def code(self) -> str:
        """The file's text with all edits in it."""
        return self.source.tree.visit(_Editor(self)).code


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self.edits = edits

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        updated: Any = super().on_leave(original_node, updated_node)
        if original_node in self.edits.replaced:
            return self.edits.replaced[original_node]
        for name, (value, positions) in self.edits.arguments.get(original_node, {}).items():
            if value is not None:
                updated = with_argument(updated, name, value, positions)
                continue
            kept = [one for one in updated.args if one.keyword is None or one.keyword.value != name]
            last = updated.args[-1]
            if kept and kept[-1] is not last:  # the one before it ends the call now, in the same layout
                kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
            updated = updated.with_changes(args=kept)
        merges = isinstance(original_node, cst.Call) and any(one in self.edits.merged for one in original_node.args)
        around = self.edits.around.get(original_node, ())
        for text in around:
            updated = self.edits.expression(text.replace("{call}", self.edits.source.code(updated)))
        if original_node in self.edits.arguments or merges or around:
            updated = self._fitting(original_node, updated)
        for name, value in self.edits.merged.get(original_node, {}).items():
            updated = updated.with_changes(value=with_key(updated.value, name, value))
        if isinstance(original_node, (cst.Module, cst.IndentedBlock)):
            spans = [span for span in self.edits.wrapped if span.suite is original_node]
            changed = (self.edits.before, self.edits.after, self.edits.removed)
            if spans or any(node in each for node in original_node.body for each in changed):
                body = self._statements(original_node, updated, range(len(original_node.body)), spans)
                alone = not body and isinstance(original_node, cst.IndentedBlock)
                return updated.with_changes(body=[self._parsed("pass")] if alone else body)
        return updated

    def _fitting(self, original: cst.CSTNode, updated: cst.Call) -> cst.Call:
        """The call, broken where it has outgrown its line; one whose lines are many already keeps its layout."""
        source = self.edits.source
        assert isinstance(original, cst.Call)
        if not original.args:
            return updated
        first, last = source.lines(original.args[0]), source.lines(original.args[-1])
        longer = len(source.code(updated)) - len(source.code(original))
        if longer <= 0 or first.start.line != last.end.line:
            return updated
        line = source.text[first.start.line - 1]
        columns = max(WIDTH, *map(len, source.text))
        if len(line) + longer <= columns:
            return updated
        indent = source.tree.default_indent
        own_line = source.lines(original).start.line != first.start.line
        return broken(updated, indent, 0 if own_line else columns - len(line) + len(line.lstrip()) - len(indent))

    def _statements(self, original: Suite, updated: Suite, indices: range, spans: Sequence[Wrapped]) -> list[Statement]:
        """Statements of a block with what is put above, below and around them."""
        body: list[Statement] = []
        index = indices.start
        while index < indices.stop:
            around = max((s for s in spans if s.first == index), key=lambda s: s.last, default=None)
            if around is None:
                body += self._with_lines(original.body[index], updated.body[index])  # type: ignore[arg-type]
                index += 1
                continue
            within = [span for span in spans if span is not around and around.holds(span)]
            inner = self._statements(original, updated, range(index, around.last + 1), within)
            above = [self._parsed(line) for line in around.above]
            if above:
                above[0] = above[0].with_changes(leading_lines=inner[0].leading_lines)
                inner[0] = inner[0].with_changes(leading_lines=())
            body += [*above, self._under(around.header, inner), *(self._parsed(line) for line in around.below)]
            index = around.last + 1
        return body

    def _with_lines(self, original: Statement, updated: Statement) -> list[Statement]:
        above = [self._parsed(line) for line in self.edits.before.get(original, [])]
        below = [
            self._parsed(line).with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            if self.edits.apart.get(original) == line
            else self._parsed(line)
            for line in self.edits.after.get(original, [])
        ]
        if above:  # comments and blank lines above a statement stay above what is put there
            above[0] = above[0].with_changes(leading_lines=updated.leading_lines)
            apart = [cst.EmptyLine(indent=False)] if isinstance(updated, cst.FunctionDef) else []
            updated = updated.with_changes(leading_lines=apart)
        return [*above, *([] if original in self.edits.removed else [updated]), *below]

    def _under(self, header: str, inner: list[Statement]) -> Statement:
        statement = self._parsed(f"{header}:\n    pass\n")
        assert isinstance(statement, cst.With | cst.For)
        only = inner[0] if len(inner) == 1 else None
        if isinstance(statement, cst.With) and isinstance(only, cst.With):
            # the other context is entered first within the same line, which stays short: 40 characters so far
            contexts = sum(len(self.edits.source.tree.code_for_node(item)) for item in only.items)
            if only.asynchronous is None and not isinstance(only.lpar, cst.LeftParen) and contexts < 40:
                first = statement.items[0].with_changes(comma=cst.Comma(whitespace_after=_SPACE))
                return only.with_changes(items=[first, *only.items])
        leading = inner[0].leading_lines
        body = statement.body.with_changes(body=[inner[0].with_changes(leading_lines=()), *inner[1:]])
        return statement.with_changes(body=body, leading_lines=leading)

    def _parsed(self, text: str) -> Statement:
        return cst.parse_statement(text, config=self.edits.source.tree.config_for_parsing)


def given(call: cst.Call, positions: Sequence[str] = ()) -> dict[str, cst.Arg]:
    """The arguments of a call by name, as far as they have one."""
    bare = [argument for argument in call.args if argument.keyword is None and not argument.star]
    named = {argument.keyword.value: argument for argument in call.args if argument.keyword is not None}
    return {**dict(zip(positions, bare, strict=False)), **named}


def with_argument(call: cst.Call, name: str, value: cst.BaseExpression, positions: Sequence[str] = ()) -> cst.Call:
    """The call with an argument set: in its place where it is there already, else at the end in the same layout."""
    there = given(call, positions).get(name)
    if there is not None:
        arguments = [one.with_changes(value=value) if one is there else one for one in call.args]
        return call.with_changes(args=arguments)
    new = cst.Arg(keyword=cst.Name(name), value=value, equal=EQUAL)
    arguments = list(call.args)
    if arguments:
        last = arguments[-1]
        if isinstance(last.comma, cst.Comma):  # a trailing comma: the new one stands below in the same manner
            lines = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
            return call.with_changes(args=extended(arguments, new, call.whitespace_before_args if lines else _SPACE))
        if isinstance(last.whitespace_after_arg, cst.ParenthesizedWhitespace):  # one a line, no trailing comma
            between = arguments[-2].comma if len(arguments) > 1 else cst.Comma(call.whitespace_before_args)
            new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
            arguments[-1] = last.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace(""))
        else:
            arguments[-1] = last.with_changes(comma=cst.Comma(whitespace_after=_SPACE))
    return call.with_changes(args=[*arguments, new])


_SPACE = cst.SimpleWhitespace(" ")


def extended(elements: Sequence[Any], new: Any, between: cst.BaseParenthesizableWhitespace = _SPACE) -> list[Any]:
    """Elements with commas and one more at their end, in the same layout; ``between``: a first one and the second."""
    if not elements:
        return [new]
    *others, last = elements
    comma = others[-1].comma if others else cst.Comma(whitespace_after=between)
    return [*others, last.with_changes(comma=comma), new.with_changes(comma=last.comma)]


def text_of(node: cst.BaseExpression) -> str | None:
    """The text that a literal is; None of anything else."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None


def with_key(mapping: cst.BaseExpression, name: str, value: cst.BaseExpression) -> cst.Dict:
    """A mapping with a key set: ``{**mapping, "name": value}``, or within the braces where it is written with them."""
    if not isinstance(mapping, cst.Dict):
        loose = isinstance(mapping, (cst.BooleanOperation, cst.Comparison, cst.IfExp, cst.Lambda, cst.UnaryOperation))
        if loose and not mapping.lpar:  # two stars bind closer within braces than in a call
            mapping = mapping.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        mapping = cst.Dict([cst.StarredDictElement(mapping)])
    new = cst.DictElement(cst.SimpleString(f'"{name}"'), value)
    elements = list(mapping.elements)
    there = [i for i, each in enumerate(elements) if isinstance(each, cst.DictElement) and text_of(each.key) == name]
    if there and not any(isinstance(element, cst.StarredDictElement) for element in elements[there[-1] :]):
        elements[there[-1]] = elements[there[-1]].with_changes(value=value)
    else:
        elements = extended(elements, new)
    return mapping.with_changes(elements=elements)
