"""Functions edited in the source of their file, as a user would write it, and modules that run with such edits."""

from __future__ import annotations

import ast
import copy
import linecache
import os
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from autoopt import Edit

WIDE = 100
"""Columns from which on a call is broken."""

LIBRARIES = tuple(sysconfig.get_paths().values())
"""Folders whose files are no user's: no patch edits them."""

WHERE = ("module", "function", "file")
"""What names a function, of what an edit records of it."""

Edits = list[tuple[int, int, str]]
"""First line, last line, and the text in their place, empty where they go."""


class Refused(Exception):  # noqa: N818 - reads as the sentence that the user gets
    """This is nothing that can be rewritten, and why."""


def function_of(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The function of a qualified name, such as ``Attention.forward``."""
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for part in name.replace("<locals>.", "").split("."):
        named = [node for node in _inner(body) if getattr(node, "name", None) == part]
        if not named:
            raise Refused(f"its source has no {name}")
        found = named[-1]
        body = getattr(found, "body", [])
    if not isinstance(found, ast.FunctionDef):
        raise Refused(f"{name} is no function")
    return found


def _inner(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for inner in (getattr(node, "body", []), getattr(node, "orelse", [])):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _inner(inner)


def body_of(function: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def module_name(tree: ast.Module, module: str) -> str:
    """What a file calls a module of torch's, or names by another one's name, such as ``nn.functional``."""
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names |= {f"{above}{each.name}": each.asname or each.name for each in node.names}
            if not above and any(each.name.startswith("torch.") and each.asname is None for each in node.names):
                names.setdefault("torch", "torch")
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (known := ".".join(parts[:length])) in names:
            return ".".join([names[known], *parts[length:]])
    raise Refused("its file does not import torch")


def written(before: str, arguments: Sequence[str], after: str, indent: int, text: str) -> str:
    """A statement with a call, broken where it is longer than the lines of its file.

    Args:
        before: up to the call's arguments, without the parenthesis.
        after: from behind its parenthesis.
        indent: columns in front of the statement.
        text: of the file.
    """
    blank, columns = " " * indent, max(WIDE, *map(len, text.splitlines()))
    made = f"{before}({', '.join(arguments)}){after}"
    if indent + max(map(len, made.splitlines())) <= columns:
        return made
    inside = [f"{blank}    {', '.join(arguments)}\n"]
    if len(inside[0]) > columns:
        inside = [f"{blank}    {each},\n" for each in arguments]
    return f"{before}(\n{''.join(inside)}{blank}){after}"


def edited(text: str, edits: Edits) -> str:
    """The text of a file with statements edited."""
    lines = text.splitlines()
    for first, last, new in reversed(edits):
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        lines[first - 1 : last] = [indent + new] if new else []
    return "\n".join(lines) + "\n"


def rewrite_functions(model: Any, functions: Iterable[Mapping[str, str]], statements: Callable[..., Edits]) -> Any:
    """The model, in place, whose methods run with edited statements.

    Args:
        functions: of each method, ``module``, ``function`` (its qualified name), and the variant of its edit.
        statements: ``(text, function, **variant) -> edits``, of the text of the method's file.
    """
    made: dict[tuple[type, str], type] = {}
    for module in list(model.modules()):
        for wanted in functions:
            found = method_of(type(module), wanted["module"], wanted["function"])
            if found is None:
                continue
            key = type(module), wanted["function"]
            if key not in made:
                made[key] = with_method(type(module), found.__name__, rewritten(found, wanted, statements))
            module.__class__ = made[key]
    return model


def variant_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """The variant of an edit: what an edit records of a function in addition to its place."""
    return {name: value for name, value in function.items() if name not in WHERE}


def edits_of(
    functions: Iterable[Mapping[str, Any]], statements: Callable[..., Edits], *named: Callable[..., Any]
) -> tuple[Edit, ...]:
    """The same edits in a patch.

    Args:
        named: functions that the edited statements name.
    """
    parts = tuple(map(part_of, (statements, *named)))
    return tuple(
        Edit("function", (each["file"], each["function"]), variant_of(each), parts=parts) for each in functions
    )


def part_of(function: Callable[..., Any]) -> str:
    """A function as an edit names it."""
    return f"{function.__module__}:{function.__qualname__}"


def method_of(kind: type, module: str, name: str) -> Any:
    """The method of a class, or of one above it, that was written under this name; None where there is none."""
    written = (item for each in kind.__mro__ for item in vars(each).values() if isinstance(item, types.FunctionType))
    return next((item for item in written if (item.__module__, item.__qualname__) == (module, name)), None)


def users_path(file: str) -> str:
    """A file as patches name it: relative to the command's folder where it lies in it."""
    near = os.path.relpath(file)
    return file if near.startswith(os.pardir) else near


def text_of(function: Any) -> str:
    """The text of the file that a function stands in.

    Raises:
        Refused: it cannot be read, or is another than the one that was imported.
    """
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not text:
        raise Refused("its source cannot be read")
    there = function_of(ast.parse(text), function.__qualname__)
    if min([there.lineno, *(each.lineno for each in there.decorator_list)]) != code.co_firstlineno:
        raise Refused("its source has changed since it was imported")
    return text


def rewritten(function: Any, wanted: Mapping[str, Any], statements: Callable[..., Edits]) -> Any:
    """A method with edited statements, in the module that it was written in.

    Raises:
        Refused: its source is not as it was.
    """
    if function.__code__.co_freevars:
        raise Refused("it reads variables of a function around it")
    text = text_of(function)
    text = edited(text, statements(text, function.__qualname__, **variant_of(wanted)))
    node = function_of(ast.parse(text), function.__qualname__)
    made = compiled(node, function)
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def compiled(node: ast.FunctionDef, function: Any) -> Any:
    """A function's new definition, in the module of the function, without what decorates it there.

    Private names in it are those of the function's class.
    """
    node.decorator_list = []
    scope: dict[str, Any] = {}
    above = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    module = ast.parse(f"class {above}: pass") if above.isidentifier() else ast.Module([node], [])
    if isinstance(module.body[0], ast.ClassDef):
        module.body[0].body = [node]
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, scope)
    return vars(scope[above])[node.name] if above.isidentifier() else scope[node.name]


def with_method(kind: Any, name: str, method: Any) -> type:
    """A class like ``kind`` with another method; pickled it is the one that its author wrote."""
    authors, own, pickled = vars(kind).get("authors", kind), vars(object)["__class__"], list[int]()

    def reduced(self: Any, protocol: Any) -> Any:
        function, arguments, *rest = kind.__reduce_ex__(self, protocol)
        pickled[:] = [id(self)]
        return function, tuple(authors if item is type(self) else item for item in arguments), *rest

    def shown(self: Any) -> type:  # pickle asks once, and insists on the class that is written down
        return authors if pickled and pickled.pop() == id(self) else type(self)

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        other = memo[id(self)] = self.__new__(type(self))
        other.__setstate__(copy.deepcopy(self.__dict__, memo))
        return other

    body = {name: method, "__reduce_ex__": reduced, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    body |= {"authors": authors, "__class__": property(shown, lambda self, new: own.__set__(self, new))}
    if not hasattr(kind, "__deepcopy__"):
        body["__deepcopy__"] = copied
    return type(kind.__name__, (kind,), body)
