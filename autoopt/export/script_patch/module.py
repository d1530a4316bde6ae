"""The file next to a script that holds a patch's own classes and functions: the source of what was measured."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path

from autoopt.export.inline import Inliner, NotExportable
from autoopt.export.script_patch.source import NoHonestEditError, entry_of
from autoopt.records import Sites


@dataclass(frozen=True)
class AddedFile:
    """The file that is added. ``file``: as the sites name files; ``module``: as the script's files import it.

    ``parts``: ``module:name`` of the classes and functions that it holds.
    """

    file: str
    module: str
    parts: tuple[str, ...] = ()

    def with_part(self, part: str) -> AddedFile:
        """The same file with one more class or function.

        Raises:
            NoHonestEditError: its source cannot be printed.
        """
        made = replace(self, parts=tuple(dict.fromkeys((*self.parts, part))))
        _ = made.text
        return made

    @cached_property
    def text(self) -> str:
        """The file: plain Python with the definitions of its parts, and all that these need."""
        inliner = Inliner(inlined=tuple(dict.fromkeys(part.split(":")[0].split(".")[0] for part in self.parts)))
        try:
            for part in self.parts:
                inliner.named(part)
            blocks = inliner.definitions()
        except NotExportable as problem:
            raise NoHonestEditError(str(problem)) from None
        defined = [text for text in blocks if text.startswith(("class ", "def ", "@", "#"))]
        names = re.findall(r"^(?:class|def) (\w+)", "\n".join(defined), re.MULTILINE)
        named = re.compile(rf"\b(?:{'|'.join(names)})\b")
        constants = [text for text in blocks if text not in defined]
        tables = [text for text in constants if named.search(text)]  # of functions, which must be there before
        docstring = '"""Classes and functions that the training script uses."""'
        head = [docstring], inliner.import_lines(), [text for text in constants if text not in tables]
        text = "\n\n\n".join(["\n\n".join("\n".join(part) for part in head if part), *defined, *tables]) + "\n"
        tree, lines = ast.parse(text), text.splitlines(keepends=True)
        above = set[str]().union(*map(_imports, tree.body))
        for node in [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]:
            for statement in node.body:  # without imports of what is imported at the top
                if _imports(statement) and _imports(statement) <= above and len(node.body) > 1:
                    last = statement.end_lineno or statement.lineno
                    last += last < len(lines) and not lines[last].strip()
                    lines[statement.lineno - 1 : last] = [""] * (last - statement.lineno + 1)
        return "".join(lines)


def _imports(node: ast.stmt) -> set[str]:
    """Each name that a statement imports, as a statement of its own."""
    if isinstance(node, ast.ImportFrom):
        return {ast.unparse(ast.ImportFrom(node.module, [alias], node.level)) for alias in node.names}
    return {ast.unparse(ast.Import([alias])) for alias in node.names} if isinstance(node, ast.Import) else set()


def added_file(sites: Sites) -> AddedFile:
    """The file that is added next to a script, empty; one that is there is never overwritten.

    Raises:
        NoHonestEditError: it is not known which file begins the script.
    """
    entry = entry_of(sites)
    if entry is None:
        raise NoHonestEditError("which file begins the script is not known, so that no file can be added next to it")
    folder, package = Path(entry).parent, ""
    if "-m" in sites.command[:-1] and folder != Path():  # found from the folder of the command
        package = ".".join(folder.parts) + "."
    names = chain(("prepared", "prepared_data"), (f"prepared_{number}" for number in count(2)))
    free = (name for name in names if not any(Path(sites.cwd, folder, name + end).exists() for end in ("", ".py")))
    name = next(free)
    return AddedFile((folder / f"{name}.py").as_posix(), package + name)
