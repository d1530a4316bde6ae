"""A unified diff of the user's own module, where its DataLoader or Trainer stands in plain sight.

The source is edited as a concrete syntax tree, so that comments and layout stay. Nothing is written
unless it is asked for.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.export.text import literal
from autoopt.records import Change, JsonDict, Plan
from autoopt.registry import Registry
from autoopt.setup import Setup

_CALLED = {
    "pytorch": ("DataLoader",),
    "lightning": ("DataLoader", "Trainer"),
    "transformers": ("TrainingArguments",),
    "accelerate": ("DataLoader", "Accelerator"),
}
"""What is edited for each way of training; transformers makes its loaders itself, and has a Trainer of its own."""

_POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
"""A DataLoader's arguments that may stand without their names."""


def patch(
    path: Path, plan: Plan, registry: Registry, *, target: str = "pytorch", write: bool = False
) -> tuple[str, tuple[str, ...]]:
    """The diff that puts a plan into a module.

    Args:
        path: the user's module.
        target: ``pytorch``, ``lightning``, ``transformers`` or ``accelerate``: which calls are edited.
        write: also writes it.

    Returns:
        The diff, empty where nothing could be placed; and what of the plan is not in it.

    Raises:
        EnvironmentLacks: LibCST is not installed, or the module cannot be written.
        UsageError: the module cannot be read or is no Python.
    """
    try:
        import libcst
    except ModuleNotFoundError:
        raise EnvironmentLacks("libcst is not installed", hint="pip install 'autoopt[export]'") from None
    try:
        before = path.read_bytes()
        tree = libcst.parse_module(before)
    except (OSError, UnicodeDecodeError, SyntaxError, libcst.ParserSyntaxError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}") from None
    editor = _editor(libcst, _wanted(plan, registry, target))
    changed = tree.visit(editor)
    if write and changed.bytes != before:
        _write(path.resolve(), changed.bytes)
    return _diff(tree.code, changed.code, path.name), tuple(_notes(plan, registry, target, path.name, editor))


def _diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        shutil.copymode(path, part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EnvironmentLacks(f"cannot write {path}: {error.strerror or error}") from None


def _notes(plan: Plan, registry: Registry, target: str, name: str, editor: Any) -> Iterator[str]:
    for change in plan.changes:
        if change.strategy not in editor.placed:
            why = "has no call in plain sight that could take it"
            if change.strategy in editor.refused:
                why = f"{editor.refused[change.strategy]}: nothing was put there"
            yield f"{change.strategy}: {name} {why}"
        by_hand = (_recipe(registry, change, target) or {}).get("_note")
        setup = registry.fold(Plan(changes=(change,)))
        whole = change.strategy in editor.placed and setup == Setup(loader=setup.loader)
        if by_hand and not whole:
            yield f"{change.strategy}: by hand: {by_hand}"


def _recipe(registry: Registry, change: Change, target: str) -> JsonDict | None:
    made: JsonDict | None = getattr(registry[change.strategy].recipe(dict(change.setting)), target)
    return made if target != "pytorch" else None


def _wanted(plan: Plan, registry: Registry, target: str) -> dict[str, dict[str, tuple[str, Any]]]:
    """Keywords by the name of what is called: name to strategy and value."""
    wanted: dict[str, dict[str, tuple[str, Any]]] = {called: {} for called in _CALLED[target]}
    for change in plan.changes:
        setup = registry.fold(Plan(changes=(change,)))
        options = {**setup.loader, **({"batch_size": setup.batch.size} if setup.batch.size else {})}
        if "DataLoader" in wanted:
            wanted["DataLoader"] |= {name: (change.strategy, value) for name, value in options.items()}
        keys = {name: value for name, value in (_recipe(registry, change, target) or {}).items() if name != "_note"}
        wanted[_CALLED[target][-1]] |= {name: (change.strategy, value) for name, value in keys.items()}
    return wanted


def _editor(libcst: Any, wanted: dict[str, dict[str, tuple[str, Any]]]) -> Any:
    class Editor(libcst.CSTTransformer):  # type: ignore[misc]
        """Sets arguments of the calls; a DataLoader that does not shuffle is for validation and stays."""

        def __init__(self) -> None:
            super().__init__()
            self.placed: set[str] = set()
            self.refused: dict[str, str] = {}

        def leave_Call(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802 - LibCST's name
            name = getattr(original_node.func, "attr", original_node.func)
            name = getattr(name, "value", "")
            keywords = wanted.get(name, {})
            given = _given(updated_node, name)
            if not keywords or (name == "DataLoader" and not _trains(given)):
                return updated_node
            call = updated_node
            for key, (strategy, value) in keywords.items():
                if any(argument.star for argument in call.args):
                    self.refused[strategy] = f"passes some arguments of {name} on with a star"
                    continue
                if "batch_sampler" in given and key in ("batch_size", "drop_last"):
                    self.refused[strategy] = "gives its DataLoader a batch_sampler"
                    continue
                try:
                    expression = libcst.parse_expression(literal(value))
                except ValueError:
                    continue
                call = _with_argument(libcst, call, name, key, expression)
                self.placed.add(strategy)
            return call

    return Editor()


def _given(call: Any, name: str) -> dict[str, Any]:
    """The arguments of a call by name, as far as they have one."""
    found = {argument.keyword.value: argument.value for argument in call.args if argument.keyword is not None}
    bare = [argument.value for argument in call.args if argument.keyword is None and not argument.star]
    return {**dict(zip(_POSITIONS, bare, strict=False)), **found} if name == "DataLoader" else found


def _trains(given: dict[str, Any]) -> bool:
    """Whether a DataLoader draws its samples in another order than the data's."""
    shuffled = "shuffle" in given and getattr(given["shuffle"], "value", None) not in ("False", "None")
    return shuffled or any(getattr(given.get(key), "value", "None") != "None" for key in ("sampler", "batch_sampler"))


def _with_argument(libcst: Any, call: Any, called: str, name: str, value: Any) -> Any:
    """The call with an argument set, by its place where it has no name."""
    bare = [index for index, argument in enumerate(call.args) if argument.keyword is None]
    place = _POSITIONS.index(name) if called == "DataLoader" and name in _POSITIONS else len(bare)
    if place < len(bare):
        arguments = list(call.args)
        arguments[bare[place]] = arguments[bare[place]].with_changes(value=value)
        return call.with_changes(args=arguments)
    return _with_keyword(libcst, call, name, value)


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
