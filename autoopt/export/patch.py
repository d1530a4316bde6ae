"""A unified diff of the user's own module, where its DataLoader or Trainer stands in plain sight.

The source is edited as a concrete syntax tree, so that comments and layout stay. Nothing is written
unless it is asked for.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.export.text import literal
from autoopt.records import Plan
from autoopt.registry import Registry

_RECIPES = {"Trainer": "lightning", "TrainingArguments": "transformers", "Accelerator": "accelerate"}


def patch(path: Path, plan: Plan, registry: Registry, *, write: bool = False) -> tuple[str, tuple[str, ...]]:
    """The diff that puts a plan into a module.

    Args:
        path: the user's module.
        write: also writes it.

    Returns:
        The diff, empty where nothing could be placed; and what of the plan is not in it.

    Raises:
        EnvironmentLacks: LibCST is not installed.
        UsageError: the module cannot be read or is no Python.
    """
    try:
        import libcst
    except ModuleNotFoundError:
        raise EnvironmentLacks("libcst is not installed", hint="pip install 'autoopt[export]'") from None
    try:
        before = path.read_text(encoding="utf-8")
        tree = libcst.parse_module(before)
    except (OSError, UnicodeDecodeError, libcst.ParserSyntaxError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}") from None
    editor = _editor(libcst, _wanted(plan, registry))
    after = tree.visit(editor).code
    notes = [
        f"{change.strategy}: {path.name} has no call in plain sight that could take it"
        for change in plan.changes
        if change.strategy not in editor.placed
    ]
    diff = "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path.name}", f"b/{path.name}"
        )
    )
    if write and diff:
        part = path.with_name(f".{path.name}.part")
        part.write_text(after, encoding="utf-8")
        part.replace(path)
    return diff, tuple(notes)


def _wanted(plan: Plan, registry: Registry) -> dict[str, dict[str, tuple[str, Any]]]:
    """Keywords by the name of what is called: name to strategy and value."""
    wanted: dict[str, dict[str, tuple[str, Any]]] = {"DataLoader": {}}
    for change in plan.changes:
        strategy = registry[change.strategy]
        setup = registry.fold(Plan(changes=(change,)))
        for name, value in setup.loader.items():
            wanted["DataLoader"][name] = (change.strategy, value)
        if setup.batch.size is not None:
            wanted["DataLoader"]["batch_size"] = (change.strategy, setup.batch.size)
        recipe = strategy.recipe(dict(change.setting))
        for called, target in _RECIPES.items():
            for name, value in (getattr(recipe, target) or {}).items():
                if name != "_note":
                    wanted.setdefault(called, {})[name] = (change.strategy, value)
    return wanted


def _editor(libcst: Any, wanted: dict[str, dict[str, tuple[str, Any]]]) -> Any:
    class Editor(libcst.CSTTransformer):  # type: ignore[misc]
        """Sets keywords of the calls; a DataLoader that does not shuffle is for validation and stays."""

        def __init__(self) -> None:
            super().__init__()
            self.placed: set[str] = set()

        def leave_Call(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802 - LibCST's name
            name = getattr(original_node.func, "attr", original_node.func)
            name = getattr(name, "value", "")
            keywords = wanted.get(name, {})
            given = {argument.keyword.value for argument in updated_node.args if argument.keyword is not None}
            if not keywords or (name == "DataLoader" and not given & {"shuffle", "sampler", "batch_sampler"}):
                return updated_node
            call = updated_node
            for key, (strategy, value) in keywords.items():
                try:
                    expression = libcst.parse_expression(literal(value))
                except ValueError:
                    continue
                call = _with_keyword(libcst, call, key, expression)
                self.placed.add(strategy)
            return call

    return Editor()


def _with_keyword(libcst: Any, call: Any, name: str, value: Any) -> Any:
    """The call with a keyword set; in its place where it is there already, else at the end."""
    arguments = list(call.args)
    for index, argument in enumerate(arguments):
        if argument.keyword is not None and argument.keyword.value == name:
            arguments[index] = argument.with_changes(value=value)
            return call.with_changes(args=arguments)
    equal = libcst.AssignEqual(
        whitespace_before=libcst.SimpleWhitespace(""), whitespace_after=libcst.SimpleWhitespace("")
    )
    new = libcst.Arg(keyword=libcst.Name(name), value=value, equal=equal)
    if arguments:
        last = arguments[-1]
        if isinstance(last.comma, libcst.Comma):  # a trailing comma: the new one stands below in the same manner
            inner = arguments[-2].comma if len(arguments) > 1 else libcst.Comma(libcst.SimpleWhitespace(" "))
            arguments[-1] = last.with_changes(comma=inner)
            new = new.with_changes(comma=last.comma)
        else:
            comma = libcst.Comma(whitespace_after=libcst.SimpleWhitespace(" "))
            arguments[-1] = last.with_changes(comma=comma)
    return call.with_changes(args=[*arguments, new])
