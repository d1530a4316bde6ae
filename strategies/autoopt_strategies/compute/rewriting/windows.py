"""Convolutions whose kernel spans the rows of their input, as a product of weights and windows of rows."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.common import LEAST_SAVING, first_line
from autoopt_strategies.compute.rewriting.source import Refused, users_path, with_method
from autoopt_strategies.compute.rewriting.survey import (
    Given,
    bound,
    compare,
    one_smaller,
    passes_ratio,
    twin,
    users_frame,
    watched,
)

Position = tuple[str, int, int, int, int]
"""File of a call, its lines and its columns."""


def convolved(conv: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """A convolution over whole rows of its input, as a product of its weights with windows of rows."""
    rows, size = x.transpose(1, 2).flatten(2), conv.kernel_size[0]
    places = rows.size(1) - size + 1
    windows = torch.cat([rows[:, i : i + places] for i in range(size)], dim=2)
    weight = conv.weight.transpose(1, 2).flatten(1)
    return F.linear(windows, weight, conv.bias).transpose(1, 2).unsqueeze(3)


def by_windows(conv: nn.Conv2d) -> nn.Conv2d:
    """The same convolution, computed so."""

    def forward(self: nn.Conv2d, input: torch.Tensor) -> torch.Tensor:
        return convolved(self, input)

    conv.__class__ = with_method(nn.Conv2d, "forward", forward)
    return conv


@dataclass(frozen=True)
class MultiplyWindows:
    """``model -> model`` whose convolutions over whole rows are products of weights and windows.

    Args:
        paths: of the convolutions.
    """

    paths: tuple[str, ...]

    def __call__(self, model: Any) -> Any:
        for path in self.paths:
            by_windows(model.get_submodule(path))
        return model


def survey_convolutions(model: nn.Module, run: Callable[[], Any]) -> dict[str, Any]:
    """Convolutions that are faster as products, checked and timed on copies.

    Args:
        run: one forward pass of the model on a real batch.

    Returns:
        ``found``: ``paths`` in the model and ``places`` in the source that call them and nothing else, empty where
        there is none; ``refused``: reasons by paths.
    """
    convolutions, called = _calls(model, run)
    refused: dict[str, str] = {}
    ratios: dict[str, float] = {}
    for path, given in convolutions.items():
        try:
            ratios[path] = _ratio(model.get_submodule(path), given)
        except Exception as error:  # what it computes is another thing, or a copy cannot be tried
            words = "" if isinstance(error, Refused) else "it cannot be tried on a copy: "
            refused[path] = words + (first_line(error) if words else str(error))
    paths: list[str] = []
    places: list[dict[str, Any]] = []
    for position, modules in called.items():
        if not modules & {*convolutions}:
            continue
        if not modules <= {*ratios}:
            refused |= dict.fromkeys(modules & {*ratios}, "its line calls other modules, too")
            continue
        ratio = sum(ratios[path] for path in modules) / len(modules)
        if ratio > 1.0 - LEAST_SAVING:
            refused |= dict.fromkeys(modules, f"a product of windows takes {ratio:.2f} times as long on this input")
            continue
        paths += [path for path in sorted(modules) if path not in paths]
        places.append(_place(position))
    return {"found": {"paths": paths, "places": places} if paths else {}, "refused": refused}


def _calls(model: nn.Module, run: Callable[[], Any]) -> tuple[dict[str, Given], dict[Position, set[str]]]:
    """Convolutions over whole rows with their calls, and the modules that each place in the source calls."""
    convolutions: dict[str, Given] = {}
    called: dict[Position, set[str]] = defaultdict(set)

    def seen(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        frame = users_frame()
        lines = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        called[(frame.f_code.co_filename, *(each or 0 for each in lines))].add(path)  # type: ignore[index]
        if type(module) is nn.Conv2d:
            given = bound(module, args, kwargs)
            if _over_rows(module, given["input"]):
                convolutions.setdefault(path, given)

    with watched(model, before=seen):
        run()
    return convolutions, called


def _over_rows(conv: nn.Conv2d, x: torch.Tensor) -> bool:
    """Whether a kernel spans the width of its input, and moves along its height alone, row by row."""
    alone = conv.stride[0] == 1 and conv.dilation == (1, 1) and conv.groups == 1
    return alone and conv.padding == (0, 0) and x.dim() == 4 and x.shape[3] == conv.kernel_size[1] > 1


def _ratio(conv: nn.Module, given: Given) -> float:
    """Seconds of a convolution as a product over those as it is.

    Raises:
        Refused: it computes something else.
    """
    plain, changed = twin(conv), by_windows(twin(conv))  # type: ignore[arg-type]
    for each in (given, one_smaller(plain, given)):
        compare(plain, changed, each)
    compare(plain, changed, given, torch.bfloat16)
    return passes_ratio(plain, changed, given)


def _place(position: Position) -> dict[str, Any]:
    """A place in the source as an edit of a patch names it: file, line, and the last name of what is called."""
    file, line, end_line, column, end_column = position
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        tree = ast.Module([], [])
    place = (line, end_line, column, end_column)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    at = (each.func for each in calls if (each.lineno, each.end_lineno, each.col_offset, each.end_col_offset) == place)
    func = next(at, None)
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return {"file": users_path(file), "line": line, "called": name}
