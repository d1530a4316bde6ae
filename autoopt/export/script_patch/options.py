"""The user's own files, those that configure the script, and the command-line options that argparse knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

import libcst as cst

from autoopt.export.script_patch.editing import given, text_of
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.storage.fingerprint import LARGEST_NAMED, MOST_FILES, imported_files


@dataclass(frozen=True)
class ConfiguredLine:
    """A line of a file that configures the script, and the value that it gives a key, as it is written there.

    ``named``: whether the command or the script's code names the file.
    """

    file: str
    line: int
    written: str
    named: bool

    def changed(self, text: str, value: str) -> str:
        """The file's text with another value, given as Python, in this line."""
        words = {} if self.file.endswith((".ini", ".cfg")) else {"True": "true", "False": "false", "None": "null"}
        lines = text.splitlines(keepends=True)
        key, sign, rest = re.split("([:=])", lines[self.line - 1], maxsplit=1)
        lines[self.line - 1] = key + sign + rest.replace(self.written, words.get(value, value), 1)
        return "".join(lines)


class UserFiles:
    """Files of a script that are its user's; each is read when first asked for.

    Args:
        first: files as the sites name them, the one that begins the script first.
        cwd: the folder that the command runs in; files outside it are left out.
    """

    def __init__(self, first: Sequence[str], cwd: Path, read: Callable[[str], Source]) -> None:
        self._first, self._cwd, self._read = first, cwd, read

    @cached_property
    def _texts(self) -> dict[str, str]:
        first = [self._cwd / name for name in dict.fromkeys(self._first) if not Path(name).is_absolute()]
        found = imported_files(first, [*(path.parent for path in first[:1]), self._cwd])
        return {path.relative_to(self._cwd).as_posix(): whole.decode(errors="replace") for path, whole in found}

    def with_text(self, text: str) -> list[Source]:
        """The Python files in which a text stands; one that cannot be read is left out."""
        sources = []
        for name in [name for name, whole in self._texts.items() if text in whole]:
            with suppress(NoHonestEditError):
                sources.append(self._read(name))
        return sources

    def configured(self, name: str, command: Sequence[str]) -> list[ConfiguredLine]:
        """Lines of YAML, JSON, TOML and INI files below the folder that give a key of this name one value."""
        given = re.compile(rf"""\s*(?:- +)?["']?{re.escape(name)}["']?\s*[:=]\s*([^#,\s][^#,]*?)\s*,?\s*(?:#.*)?""")
        found = []
        for path in islice(_configurations(self._cwd), MOST_FILES):
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError):
                continue
            each = ((number, given.fullmatch(line)) for number, line in enumerate(lines, 1))
            file = path.relative_to(self._cwd).as_posix()
            reported = (path.name, f'"{path.stem}"', f"'{path.stem}'")
            named = any(path.name in word for word in command) or any(self.with_text(each) for each in reported)
            found += [ConfiguredLine(file, number, match[1].strip("\"'"), named) for number, match in each if match]
        return found


def _configurations(folder: Path, depth: int = 0) -> Iterator[Path]:
    try:
        below = sorted(folder.iterdir())
    except OSError:
        return
    for path in below:
        left_out = path.name in ("autoopt-runs", "node_modules", "site-packages") or path.name.startswith(".")
        configures = path.suffix in (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
        if left_out or path.is_symlink():
            continue
        if path.is_dir():
            if depth < 4 and not (path / "pyvenv.cfg").exists():
                yield from _configurations(path, depth + 1)
        elif configures and path.stat().st_size <= LARGEST_NAMED:
            yield path


_PURE = frozenset(("abs", "bool", "float", "int", "max", "min", "round", "str"))
"""Builtins whose value depends on their arguments alone."""


_MACHINE = frozenset(("cpu_count", "process_cpu_count", "sched_getaffinity", "device_count", "is_available"))
"""Calls that ask what the machine has."""


@dataclass(frozen=True)
class Option:
    """An ``add_argument`` call: ``words`` as the command may give them."""

    source: Source
    call: cst.Call
    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The word that a reader knows it by."""
        return next((word for word in self.words if word.startswith("--")), self.words[0])

    def not_given(self, command: Sequence[str]) -> None:
        """Nothing where the command leaves the option to its default.

        Raises:
            NoHonestEditError: the command gives it.
        """
        if not self.words[0].startswith("-"):
            raise NoHonestEditError(f"the command gives {self.shown}", by_command=True)
        for word in command:
            attached = any(len(own) == 2 and word.startswith(own) for own in self.words)
            if word.split("=")[0] in self.words or attached:
                raise NoHonestEditError(f"the command gives {word.split('=')[0]}", by_command=True)


@dataclass
class ScriptOptions:
    """The options of a script.

    Args:
        command: the words of the script's command, which may give an option a value of its own.
        files: of the user; of these the ones that tell argparse of an option.
    """

    command: Sequence[str]
    files: UserFiles
    _found: dict[tuple[str, str], list[Option]] = field(default_factory=dict)

    def of(self, source: Source, attribute: str) -> Option | None:
        """The option that an attribute is; of the file itself, or else of the only other file that has it."""
        here = self._in(source, attribute)
        if here:
            return here[0] if len(here) == 1 else None
        files = (other for other in self.files.with_text("add_argument") if other is not source)
        others = [option for other in files for option in self._in(other, attribute)]
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
            self._found[key] = []
            for call in source.all_of(cst.Call):
                if source.called(call) == "add_argument":
                    words = [w for a in call.args if a.keyword is None and (w := text_of(a.value))]
                    long = next((word for word in words if word.startswith("--")), words[0] if words else "")
                    named = given(call).get("dest")
                    dest = text_of(named.value) if named else long.lstrip("-").replace("-", "_")
                    if words and dest == attribute:
                        self._found[key].append(Option(source, call, tuple(words)))
        return self._found[key]


def is_parsed(source: Source, value: cst.Attribute) -> bool:
    """Whether an attribute may be one of parsed options: ``args.x`` and ``self.args.x``, not ``self.x``."""
    return source.code(value.value) not in ("self", "cls")


def of_machine(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression is computed from what the machine has alone, such as ``os.cpu_count() // 2``."""
    leaves = list(_leaves(value))
    called = [{source.called(call) for call in source.all_of(cst.Call, leaf)} for leaf in leaves]
    return bool(leaves) and all(names & _MACHINE for names in called)


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
