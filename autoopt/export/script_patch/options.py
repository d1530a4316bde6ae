"""Command-line options that arguments come from: where argparse is told of them, in any of the user's own files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from autoopt.export.script_patch.editing import given
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.export.script_patch.user_files import UserFiles

_PURE = frozenset(("abs", "bool", "float", "int", "max", "min", "round", "str"))
"""Builtins whose value depends on their arguments alone."""


_MACHINE = frozenset(("cpu_count", "process_cpu_count", "sched_getaffinity", "device_count", "is_available"))
"""Calls that ask what the machine has."""


@dataclass(frozen=True)
class Option:
    """An ``add_argument`` call: ``words`` as the command may give them, ``attribute`` of the parsed options."""

    source: Source
    call: cst.Call
    attribute: str
    words: tuple[str, ...]

    @property
    def default(self) -> cst.BaseExpression | None:
        found = given(self.call).get("default")
        return found.value if found else None

    @property
    def shown(self) -> str:
        """The word that a reader knows it by."""
        return next((word for word in self.words if word.startswith("--")), self.words[0])

    def not_given(self, command: Sequence[str]) -> None:
        """Nothing where the command leaves the option to its default.

        Raises:
            NoHonestEditError: the command gives it, and its user changes it there.
        """
        if not self.words[0].startswith("-"):
            raise NoHonestEditError(f"the command gives {self.shown}: change it there", by_hand=True)
        for word in command:
            attached = any(len(own) == 2 and word.startswith(own) for own in self.words)
            if word.split("=")[0] in self.words or attached:
                raise NoHonestEditError(f"the command gives {word.split('=')[0]}: change it there", by_hand=True)


@dataclass
class ScriptOptions:
    """The options of a script.

    Args:
        command: the words of the script's command, which may give an option a value of its own.
        files: of the user; of these the ones that tell argparse of an option.
    """

    command: Sequence[str]
    files: UserFiles
    _others: Sequence[Source] | None = None
    _found: dict[tuple[str, str], list[Option]] = field(default_factory=dict)

    def of(self, source: Source, attribute: str) -> Option | None:
        """The option that an attribute is; of the file itself, or else of the only other file that has it."""
        here = self._in(source, attribute)
        if here:
            return here[0] if len(here) == 1 else None
        if self._others is None:
            self._others = self.files.with_text("add_argument")
        others = [option for other in self._others if other is not source for option in self._in(other, attribute)]
        return others[0] if len(others) == 1 else None

    def within(self, source: Source, value: cst.BaseExpression) -> list[Option]:
        """The options that an expression is computed from; none where anything else decides, too."""
        leaves = list(_leaves(value))
        if not leaves or not all(isinstance(leaf, cst.Attribute) and is_parsed(source, leaf) for leaf in leaves):
            return []
        found = [self.of(source, leaf.attr.value) for leaf in leaves if isinstance(leaf, cst.Attribute)]
        options = [option for option in found if option is not None]
        return options if len(options) == len(leaves) else []

    def _in(self, source: Source, attribute: str) -> list[Option]:
        key = (source.name, attribute)
        if key not in self._found:
            self._found[key] = [option for option in _all(source) if option.attribute == attribute]
        return self._found[key]


def is_parsed(source: Source, value: cst.Attribute) -> bool:
    """Whether an attribute may be one of parsed options: ``args.x`` and ``self.args.x``, not ``self.x``."""
    return source.code(value.value) not in ("self", "cls")


def of_machine(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression is computed from what the machine has alone, such as ``os.cpu_count() // 2``."""
    leaves = list(_leaves(value))
    called = [{source.called(call) for call in source.all_of(cst.Call, leaf)} for leaf in leaves]
    return bool(leaves) and all(names & _MACHINE for names in called)


def _all(source: Source) -> Iterator[Option]:
    for call in source.all_of(cst.Call):
        if source.called(call) != "add_argument":
            continue
        named = given(call).get("dest")
        words = [text for argument in call.args if argument.keyword is None and (text := _text(argument.value))]
        attribute = _text(named.value) if named else _dest(words)
        if attribute and words:
            yield Option(source, call, attribute, tuple(words))


def _leaves(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Names that an expression takes from elsewhere, attributes as a whole and calls of unknown functions included."""
    if isinstance(node, (cst.Attribute, cst.Subscript, cst.Lambda, cst.BaseComp)):
        yield node
    elif isinstance(node, cst.Name):
        if node.value not in ("True", "False", "None"):
            yield node
    elif isinstance(node, cst.Call):
        if isinstance(node.func, cst.Name) and node.func.value in _PURE and not any(a.star for a in node.args):
            for argument in node.args:
                yield from _leaves(argument.value)
        else:
            yield node
    else:
        for child in node.children:
            yield from _leaves(child)


def _dest(words: Sequence[str]) -> str | None:
    long = next((word for word in words if word.startswith("--")), words[0] if words else None)
    return long.lstrip("-").replace("-", "_") if long else None


def _text(node: cst.BaseExpression) -> str | None:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else None
