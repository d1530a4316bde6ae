"""plan.json: reading a plan."""

from __future__ import annotations

import json
from pathlib import Path

from autoopt.errors import DocumentError
from autoopt.records import SCHEMA_VERSION, Change, Plan, PlanDocument, ValidationError

__all__ = ["Change", "Plan", "read_plan"]


def read_plan(path: Path | str) -> Plan:
    """Reads plan.json.

    Raises:
        DocumentError: missing, not JSON, of a newer schema, or not a plan; one line each.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DocumentError(f"cannot read the plan {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path} is not JSON: {error}") from None
    return parse_plan(document, str(path))


def parse_plan(document: object, name: str = "plan") -> Plan:
    """Validates a plan document.

    Raises:
        DocumentError: what is wrong and where.
    """
    example = '{"schema_version": 1, "changes": [{"strategy": "workers", "setting": {"num_workers": 2}}]}'
    if not isinstance(document, dict):
        raise DocumentError(f"{name}: a plan is an object, got {type(document).__name__}", hint=f"such as {example}")
    version = document.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise DocumentError(
            f"{name} has schema_version {version}, this autoopt reads up to {SCHEMA_VERSION}",
            hint="upgrade autoopt, or export the plan again with this version",
        )
    try:
        parsed = PlanDocument.model_validate(document)
    except ValidationError as error:
        raise DocumentError(f"{name}: {error}", hint=f"such as {example}") from None
    names = [change.strategy for change in parsed.changes]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice:
        raise DocumentError(f"{name}: strategy {twice!r} stands in it twice", hint="keep one of them")
    return Plan(changes=parsed.changes)
