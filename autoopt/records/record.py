"""The base of all documents: frozen, typed fields, JSON both ways. The standard library alone: scripts' processes, in
whichever environment, read and write them too."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from typing import Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda kind: kind


if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:

    class StrEnum(str, Enum):
        """Text that is one of a few."""

        __str__ = str.__str__


JsonDict = dict[str, Any]
Reader = Callable[[Any], Any]


class ValidationError(ValueError):
    """A value that a record cannot hold.

    Attributes:
        where: names and positions that lead to it; empty where the whole record is wrong.
        why: a sentence.
    """

    def __init__(self, why: str, where: tuple[str | int, ...] = ()) -> None:
        super().__init__(why, where)
        self.why, self.where = why, where

    def __str__(self) -> str:
        return ": ".join(filter(None, [".".join(map(str, self.where)), self.why]))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Record:
    """Base of all documents: frozen; unknown fields are ignored as one is read (a newer autoopt may add some)."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        """Each field as its type; what is no value of it is refused.

        Raises:
            ValidationError: a value that is none of the field's type, or a number that is not finite.
        """
        held = self.__dict__
        for name, read in _readers(type(self)):  # type: ignore[arg-type]
            held[name] = _read(read, held[name], name)

    @classmethod
    def model_validate(cls, document: Any) -> Self:
        """The record of a document.

        Raises:
            ValidationError: a field is missing, or holds what it cannot.
        """
        if isinstance(document, cls):
            return document
        if not isinstance(document, Mapping):
            raise _wrong("an object", document)
        given = {}
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if each.name in document:
                given[each.name] = document[each.name]
            elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                raise ValidationError("is missing", (each.name,))
        try:
            return cls(**given)
        except ValidationError:
            raise
        except ValueError as error:  # of the record as a whole
            raise ValidationError(str(error)) from None

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """The record of a document's text."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValidationError(f"not JSON: {error}") from None
        return cls.model_validate(document)

    def model_dump(self, *, exclude: Iterable[str] = ()) -> JsonDict:
        """The record as JSON has it: objects, arrays, text, numbers."""
        return {name: _plain(value) for name, value in self._items() if name not in exclude}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """The record as a document's text."""
        how: JsonDict = {"indent": indent, "separators": (",", ":" if indent is None else ": ")}
        document = self.model_dump()
        try:
            return json.dumps(document, allow_nan=False, **how)
        except ValueError:  # among values that are the user's own: JSON knows no infinity
            return json.dumps(json.loads(json.dumps(document), parse_constant=lambda _: None), **how)

    def model_copy(self, *, update: Mapping[str, Any] = types.MappingProxyType({})) -> Self:
        """The same with other values, which are taken as they are."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self._items(), **update)
        return copy

    def _items(self) -> list[tuple[str, Any]]:
        return [(name, self.__dict__[name]) for name, _ in _readers(type(self))]  # type: ignore[arg-type]


dataclasses.dataclass(frozen=True, kw_only=True)(Record)


@functools.cache
def _readers(kind: type[Record]) -> list[tuple[str, Reader]]:
    """A record's fields, each with the function that makes a value of its type."""
    hints = typing.get_type_hints(kind)
    return [(each.name, _reader(hints[each.name])) for each in dataclasses.fields(kind)]  # type: ignore[arg-type]


def _read(read: Reader, value: Any, place: str | int) -> Any:
    try:
        return read(value)
    except ValidationError as error:
        raise ValidationError(error.why, (place, *error.where)) from None
    except ValueError as error:
        raise ValidationError(str(error), (place,)) from None


def _wrong(wanted: str, value: Any) -> ValidationError:
    return ValidationError(f"{wanted} is wanted, got {'null' if value is None else reprlib.repr(value)}")


@functools.cache
def _reader(kind: Any) -> Reader:
    """The function that makes a value of a type of what a document, or a caller, gives for it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (some,) = (part for part in parts if part is not types.NoneType)
        read = _reader(some)
        return lambda value: None if value is None else read(value)
    if origin is Literal:
        return functools.partial(_one_of, {part: part for part in parts})
    if origin is tuple:
        return functools.partial(_tuple, [_reader(part) for part in parts if part is not ...], parts[-1] is ...)
    if origin is dict:
        return functools.partial(_dict, *map(_reader, parts))
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.model_validate
    if isinstance(kind, type) and issubclass(kind, Enum):
        return functools.partial(_one_of, {member.value: member for member in kind})
    return {float: _float, int: _int, str: _str, bool: _bool, Any: lambda value: value}[kind]


def _one_of(known: dict[Any, Any], value: Any) -> Any:
    try:
        return known[value]
    except (KeyError, TypeError):
        raise _wrong("one of " + ", ".join(map(str, known)), value) from None


def _tuple(reads: list[Reader], alike: bool, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | Mapping | Record) or not isinstance(value, Iterable):
        raise _wrong("an array", value)
    found = list(value)
    if not alike and len(found) != len(reads):
        raise _wrong(f"an array of {len(reads)}", value)
    return tuple(_read(reads[0 if alike else at], part, at) for at, part in enumerate(found))


def _dict(read_key: Reader, read: Reader, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _wrong("an object", value)
    return {_read(read_key, key, str(key)): _read(read, item, str(key)) for key, item in value.items()}


def _float(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong("a number", value) from None
    if not math.isfinite(number):
        raise _wrong("a finite number", value)
    return number


def _int(value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) or float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        raise _wrong("a whole number", value)
    return operator.index(number)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("text", value)
    return str.__str__(value)


def _bool(value: Any) -> bool:
    if isinstance(value, str) or value not in (False, True):
        raise _wrong("true or false", value)
    return bool(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Record):
        return value.model_dump()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value
