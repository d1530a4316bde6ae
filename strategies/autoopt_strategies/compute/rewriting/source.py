"""A function in the source of its file, and edits of its statements as a user would write them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

WIDE = 100
"""Columns from which on a call is broken."""

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


def functional(tree: ast.Module) -> str:
    """What a file calls ``torch.nn.functional``."""
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names |= {f"{above}{each.name}": each.asname or each.name for each in node.names}
    for module, rest in (("torch.nn.functional", ""), ("torch.nn", ".functional"), ("torch", ".nn.functional")):
        if module in names:
            return f"{names[module]}{rest}"
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
