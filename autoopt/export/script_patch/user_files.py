"""The user's own files around a script: what it imports out of its folders, and the files that configure it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from autoopt.export.script_patch.source import NoHonestEditError, Source

_CONFIGURES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
_MOST_FILES, _MOST_BYTES = 300, 200_000
_DEEPEST = 4
_LEFT_OUT = frozenset(("autoopt-runs", "node_modules", "site-packages"))


@dataclass(frozen=True)
class ConfiguredLine:
    """A line of a file that configures the script, and the value that it gives a key, as it is written there.

    ``named``: whether the command or the script's code names the file.
    """

    file: str
    line: int
    written: str
    named: bool

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def changed(self, text: str, value: str) -> str:
        """The file's text with another value in this line.

        Args:
            text: of the file.
            value: as Python.
        """
        words = {} if self.file.endswith((".ini", ".cfg")) else {"True": "true", "False": "false", "None": "null"}
        lines = text.splitlines(keepends=True)
        key, sign, rest = _PARTED.match(lines[self.line - 1]).groups()  # type: ignore[union-attr]
        lines[self.line - 1] = key + sign + rest.replace(self.written, words.get(value, value), 1)
        return "".join(lines)


_PARTED = re.compile(r"(.*?)([:=])(.*)", re.DOTALL)


class UserFiles:
    """Files of a script that are its user's; each is read when first asked for.

    Args:
        first: files as the sites name them, the one that begins the script first.
        cwd: the folder that the command runs in; files outside it are left out.
        read: parses one of them.
    """

    def __init__(self, first: Sequence[str], cwd: Path, read: Callable[[str], Source]) -> None:
        self._first, self._cwd, self._read = first, cwd, read
        self._texts: dict[str, str] | None = None

    def with_text(self, text: str) -> list[Source]:
        """The Python files in which a text stands; one that cannot be read is left out."""
        if self._texts is None:
            self._texts = dict(_imported(self._first, self._cwd))
        return [source for name, whole in self._texts.items() if text in whole and (source := self._source(name))]

    def _source(self, name: str) -> Source | None:
        try:
            return self._read(name)
        except NoHonestEditError:
            return None

    def configured(self, name: str, command: Sequence[str]) -> list[ConfiguredLine]:
        """Lines of YAML, JSON, TOML and INI files below the folder that give a key of this name one value."""
        given = re.compile(rf"""\s*(?:- +)?["']?{re.escape(name)}["']?\s*[:=]\s*([^#,\s][^#,]*?)\s*,?\s*(?:#.*)?""")
        found = []
        for path in islice(_configurations(self._cwd), _MOST_FILES):
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError):
                continue
            each = ((number, given.fullmatch(line)) for number, line in enumerate(lines, 1))
            file = path.relative_to(self._cwd).as_posix()
            told = (path.name, f'"{path.stem}"', f"'{path.stem}'")
            named = any(path.name in word for word in command) or any(self.with_text(each) for each in told)
            found += [ConfiguredLine(file, number, match[1].strip("\"'"), named) for number, match in each if match]
        return found


def _configurations(folder: Path, depth: int = 0) -> Iterator[Path]:
    try:
        below = sorted(folder.iterdir())
    except OSError:
        return
    for path in below:
        if path.name.startswith(".") or path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            if depth < _DEEPEST and not (path / "pyvenv.cfg").exists():
                yield from _configurations(path, depth + 1)
        elif path.suffix in _CONFIGURES and path.stat().st_size <= _MOST_BYTES:
            yield path


def _imported(first: Sequence[str], cwd: Path) -> Iterator[tuple[str, str]]:
    """These files and what they import out of the same folders, with their texts."""
    waiting = [name for name in dict.fromkeys(first) if not Path(name).is_absolute()]
    roots = list(dict.fromkeys((*(Path(name).parent for name in waiting[:1]), Path())))
    seen: set[str] = set()
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            text = (cwd / name).read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError):
            continue
        yield name, text
        waiting += [found for module in _modules(tree, Path(name).parent, roots) for found in _files(module, cwd)]


def _modules(tree: ast.Module, folder: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Where the modules that a file imports would lie, without their suffix."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (root.joinpath(*alias.name.split(".")) for alias in node.names for root in roots)
        elif isinstance(node, ast.ImportFrom):
            above = [folder, *folder.parents][node.level - 1 : node.level] if node.level else roots
            for root in above:
                base = root.joinpath(*(node.module or "").split("."))
                yield from (base, *(base / alias.name for alias in node.names))


def _files(module: Path, cwd: Path) -> Iterator[str]:
    for path in (module.parent / f"{module.name}.py", module / "__init__.py"):
        if module.name and (cwd / path).is_file():
            yield path.as_posix()
