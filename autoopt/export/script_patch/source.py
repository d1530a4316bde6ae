"""A file of the user's as a concrete syntax tree: calls found by their lines, names followed to where they are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from autoopt.records import Place, Site, Sites
from autoopt.script.command import Script

Suite = cst.Module | cst.IndentedBlock
Node = TypeVar("Node", bound=cst.CSTNode)
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


class NoHonestEditError(Exception):
    """A change that has no edit here which a user would make; the text is the reason.

    Args:
        by_hand: the user can make the change at the place that the reason names.
        by_command: the command gives the value.
    """

    def __init__(self, reason: str, *, by_hand: bool = False, by_command: bool = False) -> None:
        super().__init__(reason)
        self.by_hand, self.by_command = by_hand, by_command


@dataclass(frozen=True)
class Spot:
    """A statement with the block that it stands in and its index there."""

    suite: Suite
    index: int
    statement: Statement


class Source:
    """One file of the user's, parsed.

    Args:
        name: as the diff calls it.

    Raises:
        NoHonestEditError: it cannot be read, or is no Python that LibCST knows.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        try:
            parsed = cst.parse_module(path.read_bytes())
        except (OSError, UnicodeDecodeError, SyntaxError, cst.ParserSyntaxError) as error:
            raise NoHonestEditError(f"{name} cannot be read as Python: {error}") from None
        self._wrapper = MetadataWrapper(parsed, unsafe_skip_copy=True)
        self.tree = self._wrapper.module
        self._ranges = self._wrapper.resolve(PositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)
        self._nodes = list(_descend(self.tree))
        self.text = parsed.code.splitlines()

    def lines(self, node: cst.CSTNode) -> CodeRange:
        """First and last line of a node, from 1."""
        return self._ranges[node]

    def place(self, first: cst.CSTNode, last: cst.CSTNode | None = None) -> Place:
        """The lines of a node, or of those from one to another."""
        return Place(file=self.name, line=self.lines(first).start.line, end_line=self.lines(last or first).end.line)

    def code(self, node: cst.CSTNode) -> str:
        return self.tree.code_for_node(node).strip()

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def all_of(self, kind: type[Node], within: cst.CSTNode | None = None) -> Iterator[Node]:
        """Every node of a kind, in the order of the text."""
        nodes = self._nodes if within is None else _descend(within)
        return (node for node in nodes if isinstance(node, kind))

    def variables(self, within: cst.CSTNode | None = None) -> list[cst.Name]:
        """Names that stand for variables: no attributes, and no names of arguments."""
        above = ((node, self.parent(node)) for node in self.all_of(cst.Name, within))
        return [
            node
            for node, parent in above
            if not (isinstance(parent, cst.Attribute) and parent.attr is node)
            and not (isinstance(parent, cst.Arg) and parent.keyword is node)
        ]

    def call(self, place: Place, called: str = "") -> cst.Call:
        """The call on these lines.

        Args:
            place: lines of the call, as the interpreter gave them; a site distinguishes calls on the same lines.
            called: the last part of the name that is called; empty where any will do.

        Raises:
            NoHonestEditError: there is none, or more than one.
        """
        named = self._calls(place, called)
        if len(named) > 1:  # of calls within one another the outer one
            others = {id(node) for node in named}
            named = [node for node in named if not any(id(each) in others for each in self.above(node))]
        if len(named) > 1 and isinstance(place, Site) and place.end_column is not None:
            ends = ((node, self.lines(node).end) for node in named)  # columns of the interpreter are in bytes
            named = [n for n, e in ends if len(self.text[e.line - 1][: e.column].encode()) == place.end_column]
        if len(named) != 1:
            what = f"{len(named)} calls of {called or 'anything'}"
            raise NoHonestEditError(f"{self.name}:{place.line} has {what} on its lines")
        return named[0]

    def names(self, place: Place, called: str) -> bool:
        return bool(self._calls(place, called))

    def picked(self, place: Place) -> cst.Call | None:
        """The one call on these lines whose function is picked as it runs: of a dict, of a variable, by a call."""

        def picks(call: cst.Call) -> bool:
            if isinstance(call.func, (cst.Subscript, cst.Call)):
                return True
            name, scope = self.code(call.func), self.scope(call)
            parameters = scope.params.params if isinstance(scope, cst.FunctionDef) else ()
            return any(each.name.value == name for each in parameters) or bool(self.values_of(name))

        found = [node for node in self._calls(place) if node.args and picks(node)]
        return found[0] if len(found) == 1 else None

    def _calls(self, place: Place, called: str = "") -> list[cst.Call]:
        """All calls on these lines; those of a name, under whichever name the file's imports give it."""
        ranges = ((node, self.lines(node)) for node in self.all_of(cst.Call))
        found = [n for n, r in ranges if (r.start.line, r.end.line) == (place.line, place.end_line)]
        last = called.rpartition(".")[2]
        aliases = (each for each in self.all_of(cst.ImportAlias) if each.evaluated_name.rpartition(".")[2] == last)
        names = {last, *(each.evaluated_alias for each in aliases)}
        return [node for node in found if self.called(node) in names] if called else found

    def called(self, call: cst.Call) -> str:
        """The last part of the name that is called."""
        if isinstance(call.func, cst.Attribute):
            return call.func.attr.value
        return call.func.value if isinstance(call.func, cst.Name) else ""

    def module_name(self, module: str, above: Spot | None = None) -> str | None:
        """The name in this file of a module that is imported as a whole, outside of functions; None where it is not.

        Args:
            above: a statement at the file's top before which that must be, or in it.
        """
        for statement in self.all_of(cst.Import):
            if self.scope(statement) is not self.tree:
                continue
            if above and not any(statement in _descend(each) for each in self.tree.body[: above.index + 1]):
                continue
            for alias in statement.names:
                if alias.evaluated_name == module:
                    return alias.evaluated_alias or module
        return None

    def spot(self, node: cst.CSTNode) -> Spot:
        """The statement that a node stands in.

        Raises:
            NoHonestEditError: it shares its line with others (``if x: y = f()``, ``a; b``).
        """
        spot = self.line_of(node)
        if isinstance(spot.statement, cst.SimpleStatementLine) and len(spot.statement.body) > 1:
            raise self._shares(node)
        return spot

    def statement(self, line: int) -> Spot:
        """The statement that begins on a line.

        Raises:
            NoHonestEditError: there is none.
        """
        statements = (
            node for node in self._nodes if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement)
        )
        found = next((node for node in statements if self.lines(node).start.line == line), None)
        if found is None:
            raise NoHonestEditError(f"no statement begins at {self.name}:{line}")
        return self.line_of(found)

    def line_of(self, node: cst.CSTNode) -> Spot:
        """The same, where statements that share its line do not matter.

        Raises:
            NoHonestEditError: its line begins a block (``if x: y = f()``).
        """
        child = node
        for above in self.above(node):
            if isinstance(above, (cst.Module, cst.IndentedBlock)):
                found = next((i for i, other in enumerate(above.body) if other is child), None)
                if found is not None and isinstance(child, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                    return Spot(above, found, child)
            child = above
        raise self._shares(node)

    def _shares(self, node: cst.CSTNode) -> NoHonestEditError:
        return NoHonestEditError(f"{self.name}:{self.lines(node).start.line} shares its line with other statements")

    def alone(self, statement: cst.CSTNode) -> cst.Call | None:
        """The call that a statement is, and nothing else; None where it is more."""
        parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        only = parts[0] if len(parts) == 1 else None
        return only.value if isinstance(only, cst.Expr) and isinstance(only.value, cst.Call) else None

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """The function that a node is in, or the module."""
        return next((each for each in self.above(node) if isinstance(each, (cst.FunctionDef, cst.Module))), self.tree)

    def class_of(self, function: cst.FunctionDef) -> cst.ClassDef | None:
        """The class that a function is a method of."""
        block = self.parent(function)
        above = None if block is None else self.parent(block)
        return above if isinstance(above, cst.ClassDef) else None

    def signature(self, function: cst.FunctionDef) -> tuple[str, list[str]]:
        """The name that a call of a function has, and the names of its arguments that may stand without one."""
        positions = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
        name, owner = function.name.value, self.class_of(function)
        if owner is None:
            return name, positions
        return owner.name.value if name == "__init__" else name, positions[1:]

    def assignments(self, name: str, scope: cst.CSTNode) -> list[cst.Assign | cst.AnnAssign]:
        """Assignments to a name or a dotted name in a function or the module, its inner functions left out."""
        return [
            node
            for node in _descend(scope)
            if isinstance(node, (cst.Assign, cst.AnnAssign)) and node.value is not None
            if self.scope(node) is scope and any(self.code(target) == name for target in targets_of(node))
        ]

    def given(self, name: str, scope: cst.CSTNode) -> list[cst.BaseExpression | None]:
        """What assignments to a name give it, also one of several at once; None where that is not one expression."""
        found: list[cst.BaseExpression | None] = [node.value for node in self.assignments(name, scope)]
        for node in self.unpacked(name, scope):
            values = node.value.elements if isinstance(node.value, cst.Tuple | cst.List) else ()
            for target in (each.target for each in node.targets):
                if isinstance(target, cst.Tuple | cst.List):
                    names = [self.code(element.value) for element in target.elements]
                    plain = len(values) == len(names) and all(isinstance(each, cst.Element) for each in values)
                    found += [values[at].value if plain else None for at, own in enumerate(names) if own == name]
        return found

    def values_of(self, name: str) -> list[cst.BaseExpression]:
        """What assignments anywhere in the file give a name, a dotted name or an entry."""
        nodes = self.all_of(cst.Assign)
        return [node.value for node in nodes if any(self.code(target) == name for target in targets_of(node))]

    def unpacked(self, name: str, scope: cst.CSTNode) -> list[cst.Assign]:
        """Assignments of several values at once, one of them to this name, in a function or the module."""
        return [
            node
            for node in self.all_of(cst.Assign, scope)
            if self.scope(node) is scope
            for target in node.targets
            if isinstance(target.target, (cst.Tuple, cst.List))
            and any(self.code(element.value) == name for element in target.target.elements)
        ]


def targets_of(assignment: cst.Assign | cst.AnnAssign) -> list[cst.BaseExpression]:
    if isinstance(assignment, cst.AnnAssign):
        return [assignment.target]
    return [each.target for each in assignment.targets]


def _descend(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _descend(child)


def entry_of(sites: Sites) -> str | None:
    """The script itself, or the module that ``-m`` names, as the sites name files; None where it is not there."""
    cwd = Path(sites.cwd)
    file, _, _ = Script("", sites.command).files(cwd)
    if file is None:
        return None
    return (file.relative_to(cwd) if file.is_relative_to(cwd) else file).as_posix()


def last_import(source: Source) -> Spot:
    """The last import of those that stand together at the top.

    Raises:
        NoHonestEditError: the file begins otherwise.
    """
    last = None
    for spot in [Spot(source.tree, index, statement) for index, statement in enumerate(source.tree.body)]:
        parts = [*spot.statement.body] if isinstance(spot.statement, cst.SimpleStatementLine) else []
        if parts and all(isinstance(part, (cst.Import, cst.ImportFrom)) for part in parts):
            last = spot
        elif not isinstance(spot.statement, (cst.SimpleStatementLine, cst.Try, cst.If)):
            break
    if last is None:
        raise NoHonestEditError(f"{source.name} has no imports at its top")
    return last


def from_imports(source: Source) -> Iterator[tuple[str, str, str]]:
    """Of each ``from module import name`` the module, the name, and what the file calls it; ``*`` of all names."""
    for statement in source.all_of(cst.ImportFrom):
        module = "" if statement.module is None else source.code(statement.module)
        if isinstance(statement.names, cst.ImportStar):
            yield module, "*", "*"
        else:
            for alias in statement.names:
                yield module, alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name
