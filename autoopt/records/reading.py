"""Reads the documents that a run leaves behind, or says in one line why one cannot be read.

What comes from outside is read by pydantic, which names each wrong value; what autoopt's own processes send each other
reads itself (:mod:`autoopt.records.record`).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from autoopt.errors import DocumentError
from autoopt.records import SCHEMA_VERSION, Plan, PlanDocument, Record, Result

R = TypeVar("R", bound=Record)

RESULT_FILE, PROFILE_FILE = "result.json", "profile.json"
PLAN_EXAMPLE = '{"schema_version": 1, "changes": [{"strategy": "workers", "setting": {"num_workers": 2}}]}'


def read_result(where: Path) -> Result:
    """The result of a run.

    Args:
        where: a run directory, or its result.json.

    Raises:
        DocumentError: see :func:`read_document`; a run that has no result yet says how to get one.
    """
    path = where / RESULT_FILE if where.is_dir() else where
    if where.is_dir() and not path.exists():
        unfinished = (where / "journal.jsonl").exists()
        raise DocumentError(
            f"{where} holds no {RESULT_FILE}",
            hint=f"the run did not finish: autoopt resume {where}" if unfinished else "is it a run directory?",
        )
    return read_document(path, Result)


def read_plan(path: Path | str) -> Plan:
    """The plan of a plan.json; one that a user has written may leave out its version.

    Raises:
        DocumentError: see :func:`read_document`; or a strategy stands in it twice.
    """
    document = _read_json(Path(path))
    if isinstance(document, dict):
        document = {"schema_version": SCHEMA_VERSION, **document}
    changes = _record(document, PlanDocument, path, hint=f"such as {PLAN_EXAMPLE}").changes
    names = [change.strategy for change in changes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise DocumentError(f"{path}: strategy {twice!r} stands in it twice", hint="keep one of them")
    return Plan(changes=changes)


def read_document(path: Path, kind: type[R]) -> R:
    """A record from its file.

    Raises:
        DocumentError: missing, not JSON, of a newer schema, or not such a document; one line each.
    """
    return _record(_read_json(path), kind, path)


def _record(document: object, kind: type[R], path: Path | str, hint: str = "") -> R:
    if not isinstance(document, dict):
        name = kind.__name__.removesuffix("Document").lower()
        raise DocumentError(f"{path} holds no {name}: an object is wanted, got {_kind(document)}", hint=hint)
    version = document.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise DocumentError(f"{path}: schema_version is {_short(version)}, a whole number is wanted")
    if version > SCHEMA_VERSION:
        raise DocumentError(
            f"{path} has schema_version {_short(version)}, this autoopt reads up to {SCHEMA_VERSION}",
            hint="it was written by a newer autoopt: upgrade with pip install --upgrade torch-autoopt",
        )
    try:
        found: R = _reader(kind).validate_python(document)  # type: ignore[arg-type]
        return found
    except (ValidationError, RecursionError) as error:
        raise DocumentError(f"{path} is damaged: {_first(error)}", hint=hint) from None


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _first(error: ValidationError | RecursionError) -> str:
    """The first complaint of a validation, with its place in the document, and how many others there are."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first, *others = error.errors(include_url=False)
    why = first["msg"].removeprefix("Value error, ")
    got = "" if isinstance(first["input"], dict) else f", got {_short(first['input'])}"
    more = f" (and {len(others)} more)" if others else ""
    where = _short(".".join(map(str, first["loc"])), 120) if first["loc"] else ""
    return ": ".join(filter(None, [where, why])).replace("\n", " ") + got + more


def _read_json(path: Path) -> Any:
    """Any JSON document.

    Raises:
        DocumentError: missing, or not JSON.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path} is damaged: not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise DocumentError(f"{path} is damaged: not JSON: {error}") from None
    except RecursionError:
        raise DocumentError(f"{path} is damaged: nested too deeply") from None


def _kind(value: object) -> str:
    names = {list: "an array", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _short(value: object, most: int = 40) -> str:
    try:
        text = "missing" if value is None else str(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a very large number"
    return text if len(text) <= most else text[: most - 3] + "..."
