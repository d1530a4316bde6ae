"""Operators that torch has faster: written out by a model, or calls of torch's own modules; found by what they compute.

They are tried on real and random inputs, and timed on copies.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.native_operators import OPERATORS, statements
from autoopt_strategies.compute.rewriting.source import Refused, rewrite_functions, users_path, with_method
from autoopt_strategies.compute.rewriting.survey import (
    DROPOUT,
    Call,
    Given,
    Sought,
    bound,
    compare,
    one_smaller,
    passes_ratio,
    same,
    survey,
    tensors_of,
    twin,
    users_frame,
    watched,
    with_tensors,
)
from autoopt_strategies.predictions import LEAST_SAVING
from autoopt_strategies.trying import first_line

SCALES = (0.01, 1.0, 10.0)
"""Of random inputs: small ones tell one epsilon from another, large ones an activation from one like it."""
ROUNDING = 5e-6
"""The largest difference of two spellings of a formula, in units of the largest number."""
NORMS = ("rms_norm", "layer_norm")
_LARGEST_EPS = 0.1
Position = tuple[str, int, int, int, int]
"""File of a call, its lines and its columns."""


def survey_operators(model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> dict[str, Any]:
    """The hand-written operators of a model that torch has faster, checked and timed on copies with a real batch.

    Returns:
        ``functions`` for :func:`rewrite_functions`; ``convolutions`` and ``recurrent`` for :func:`calls_otherwise`; and
        ``refused``: reasons by the names of classes.
    """
    copied = copy.deepcopy(model)

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            loss(copied, batch)

    def few(value: torch.Tensor) -> torch.Tensor:  # enough to compare what is computed for each sample, and sooner done
        return value[:2].clone() if value.dim() else value

    calls = _calls(copied, run)
    first = {path: (code, pytree.tree_map_only(torch.Tensor, few, call)) for path, (code, call) in calls.items()}
    seen = survey(copied, first, Sought(statements, _variants, _random, ROUNDING, each=True))
    refused = {type(copied.get_submodule(path)).__name__: why for path, why in seen["refused"].items()}
    functions = []
    for wanted in seen["functions"]:
        path = next(path for path, its in seen["modules"].items() if its == wanted)
        module = copied.get_submodule(path)
        changed = rewrite_functions(twin(module), (wanted,), statements)
        ratio = passes_ratio(twin(module), changed, bound(module, *calls[path][1]))
        if ratio < 1.0 - LEAST_SAVING:
            functions.append(wanted)
        else:
            refused[wanted["function"]] = f"{wanted['native']} takes {ratio:.2f} times as long on this input"
    calls_of, why = survey_calls(copied, run)
    found: dict[str, Any] = {"functions": functions, **calls_of}
    refused |= why
    changed = rewrite_functions(copied, functions, statements)
    for kind, places in calls_of.items():
        changed = calls_otherwise(changed, kind, places.get("paths", ()))
    if any(found.values()) and not same(model, changed, loss, batch):
        refused[""] = "the rewritten model gives another loss or other gradients on a batch"
        found = dict.fromkeys(found)
    return {**found, "refused": refused}


def _calls(model: nn.Module, run: Callable[[], Any]) -> dict[str, tuple[CodeType, Call]]:
    """Modules of the user's that turned one tensor into another of its shape, their ``forward`` and its call.

    A class of which a module was not called, or was called otherwise, is left out.
    """
    sought = {
        path: module
        for path, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        and isinstance(type(module).forward, FunctionType)
        and not any(True for child in module.children() for _ in child.parameters())
    }
    found: dict[str, tuple[CodeType, Call]] = {}
    others: set[CodeType] = set()

    def seen(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if path not in sought:
            return
        code, given = type(module).forward.__code__, [*args, *kwargs.values()]
        one = len(given) == 1 and all(isinstance(each, torch.Tensor) for each in (*given, output))
        if one and given[0].is_floating_point() and (output.shape, output.dtype) == (given[0].shape, given[0].dtype):
            found.setdefault(path, (code, (args, dict(kwargs))))
        else:
            others.add(code)

    with watched(model, after=seen):
        run()
    others |= {type(module).forward.__code__ for path, module in sought.items() if path not in found}
    return {path: call for path, call in found.items() if call[0] not in others}


def _variants(module: nn.Module, method: Any, given: Given) -> Iterator[Mapping[str, str]]:
    """Native operators that take exactly the parameters that a module has.

    Raises:
        Refused: it does more than compute.
    """
    _only_computes(module, given)
    own = dict(module.named_parameters())
    width = tensors_of(given)[0].shape[-1:]
    if not own:
        yield from ({"native": name} for name in OPERATORS if name not in NORMS)
    if len(own) > 2 or any(parameter.shape != width for parameter in own.values()):
        return
    numbers = [name for name, value in vars(module).items() if isinstance(value, float) and 0 <= value < _LARGEST_EPS]
    numbers += [
        repr(value) for value in method.__code__.co_consts if isinstance(value, float) and 0 < value < _LARGEST_EPS
    ]
    for names, eps in itertools.product(itertools.permutations(own), [*numbers, "0.0"]):
        weight, bias = (*names, "", "")[:2]
        for native in NORMS if not bias else ("layer_norm",):
            yield {"native": native, "weight": weight, "bias": bias, "eps": eps}


def _only_computes(module: nn.Module, given: Given) -> None:
    """Checks that a module gives the same every time, without dropout, and leaves its input and itself as they are.

    Raises:
        Refused: it does not.
    """

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in DROPOUT:
                raise Refused("it holds dropout")
            return func(*args, **(kwargs or {}))

    tried = twin(module).train()
    before = _state(tried)
    call = with_tensors(given, [tensor.detach().clone() for tensor in tensors_of(given)])
    with torch.no_grad(), torch.random.fork_rng(), Watch():
        one, other = tried(**call), tried(**call)
    if not torch.equal(one, other):
        raise Refused("it gives other numbers each time")
    after = _state(tried)
    if after[0] != before[0] or any(a is not b for a, b in zip(after[1], before[1], strict=False)):
        raise Refused("it keeps something of its calls")
    if any(a._version for a in tensors_of(call)):
        raise Refused("it writes into its input")


def _state(module: nn.Module) -> tuple[list[Any], list[torch.Tensor]]:
    """What a module and those within hold, with how often each tensor was written into; and the tensors."""
    held = [item for each in module.modules() for item in vars(each).items() if not item[0].startswith("_")]
    tensors = [value for _, value in held if isinstance(value, torch.Tensor)]
    tensors += [*module.parameters(), *module.buffers()]
    plain = [(name, None if isinstance(value, torch.Tensor) else repr(value)) for name, value in held]
    return [*plain, *(tensor._version for tensor in tensors)], tensors


def _random(given: Given) -> list[Given]:
    """Random inputs of several sizes."""
    tensor = tensors_of(given)[0]
    values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor.device, tensor.dtype)
    return [with_tensors(given, [values * scale]) for scale in SCALES]


# calls of torch's own modules that are faster computed in another way


def convolved(conv: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """A convolution over whole rows of its input, as a product of its weights with windows of rows."""
    rows, size = x.transpose(1, 2).flatten(2), conv.kernel_size[0]
    places = rows.size(1) - size + 1
    windows = torch.cat([rows[:, i : i + places] for i in range(size)], dim=2)
    weight = conv.weight.transpose(1, 2).flatten(1)
    return F.linear(windows, weight, conv.bias).transpose(1, 2).unsqueeze(3)


def padded(rnn: Any, packed: Any, hx: Any = None) -> Any:
    """An LSTM or GRU over packed sequences, computed over padded ones: on a CPU torch takes packed steps one by one.

    Backward directions read each sequence from its own end. Dropout between layers draws as it does for packed ones.

    Returns:
        The packed outputs and the last hidden states; an LSTM's last cell states are None.
    """
    kind = nn.LSTM if isinstance(rnn, nn.LSTM) else nn.GRU
    if not isinstance(packed, PackedSequence):
        return kind.forward(rnn, packed, hx)
    x, lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes))  # (time, batch, features)
    step, row = torch.arange(x.size(0)).unsqueeze(1), torch.arange(x.size(1))
    inside = step < lengths
    places = inside.flatten().nonzero().squeeze(1)
    backward = torch.where(inside, lengths - 1 - step, step)
    lower = torch.is_autocast_enabled("cpu") and x.dtype != torch.float32  # as packed steps round
    ways, hidden = 1 + rnn.bidirectional, []
    zeros = x.new_zeros(ways * rnn.num_layers, x.size(1), rnn.hidden_size)
    first = (zeros, zeros)[: 1 + (kind is nn.LSTM)]
    if hx is not None:
        hx = rnn.permute_hidden(hx, packed.sorted_indices)
        first = hx if kind is nn.LSTM else (hx,)
    for layer in range(rnn.num_layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            state = [each[at : at + 1].contiguous() for each in first]
            given = x[backward, row] if way else x
            how = (rnn.all_weights[at], rnn.bias, 1, 0.0, rnn.training, False, False)
            with torch.autocast("cpu", enabled=lower):
                out = torch.lstm(given, state, *how)[0] if kind is nn.LSTM else torch.gru(given, state[0], *how)[0]
            hidden.append(out[lengths - 1, row])
            outputs.append(out[backward, row] if way else out)
        x = torch.cat(outputs, 2)
        data = x.flatten(0, 1)[places]
        if rnn.dropout and rnn.training and layer < rnn.num_layers - 1:
            data = F.dropout(data, rnn.dropout)
            x = x.new_zeros(x.size(0) * x.size(1), x.size(2)).index_copy(0, places, data).view_as(x)
    last = torch.stack(hidden)
    if packed.unsorted_indices is not None:
        last = last[:, packed.unsorted_indices]
    return packed._replace(data=data), (last, None) if kind is nn.LSTM else last


@dataclass(frozen=True)
class Kind:
    """Modules whose call may be computed otherwise.

    Attributes:
        types: of the modules.
        function: ``(module, *arguments)``, which computes the same.
        fits: whether a module of them and its call are such.
        calls: of a copy and its call, a module of tensors that calls it, and the calls on which both are compared; the
            first is timed.
        words: what it is computed as.
    """

    types: tuple[type[nn.Module], ...]
    function: Callable[..., Any]
    fits: Callable[[Any, Given], bool]
    calls: Callable[[nn.Module, Given], Iterator[tuple[Callable[[nn.Module], nn.Module], Given]]]
    words: str


def _over_rows(conv: nn.Conv2d, given: Given) -> bool:
    """Whether a kernel spans the width of its input, and moves along its height alone, row by row."""
    x = given["input"]
    alone = conv.stride[0] == 1 and conv.dilation == (1, 1) and conv.groups == 1
    return alone and conv.padding == (0, 0) and x.dim() == 4 and x.shape[3] == conv.kernel_size[1] > 1


def _rows(conv: nn.Module, given: Given) -> Iterator[tuple[Callable[[nn.Module], nn.Module], Given]]:
    for each in (given, one_smaller(conv, given)):
        yield lambda module: module, each


def _packed(rnn: nn.RNNBase, given: Given) -> bool:
    """Whether an LSTM or GRU, without a projection, takes packed sequences on the CPU."""
    packed = given["input"]
    fits = isinstance(packed, PackedSequence) and not rnn.proj_size
    return fits and packed.data.device.type == "cpu" and packed.data.is_floating_point()


class _OfPacked(nn.Module):
    """A recurrent network of a packed sequence's data and first states, as one tensor of outputs and last ones."""

    def __init__(self, rnn: nn.Module, like: PackedSequence) -> None:
        super().__init__()
        self.rnn, self.like = rnn, like

    def forward(self, data: torch.Tensor, hx: Any) -> torch.Tensor:
        outputs, last = self.rnn(self.like._replace(data=data), hx)
        return torch.cat([outputs.data.flatten(), (last if isinstance(last, torch.Tensor) else last[0]).flatten()])


def _sequences(rnn: nn.Module, given: Given) -> Iterator[tuple[Callable[[nn.Module], nn.Module], Given]]:
    packed = given["input"]
    data, lengths = pad_packed_sequence(packed)
    yield partial(_OfPacked, like=packed), {"data": packed.data, "hx": given["hx"]}
    if len(lengths) > 1:
        fewer = pack_padded_sequence(data[:, 1:], (lengths[1:] + 1) // 2, enforce_sorted=False)
        yield partial(_OfPacked, like=fewer), {"data": fewer.data, "hx": None}


KINDS = {
    "convolutions": Kind((nn.Conv2d,), convolved, _over_rows, _rows, "a product of windows"),
    "recurrent": Kind((nn.LSTM, nn.GRU), padded, _packed, _sequences, "padded steps"),
}
"""By the key of a setting that names their places."""


def otherwise(module: nn.Module, kind: str) -> nn.Module:
    """The same module, computed so."""
    function = KINDS[kind].function

    def forward(self: nn.Module, input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, input, *args, **kwargs)

    module.__class__ = with_method(type(module), "forward", forward)
    return module


def calls_otherwise(model: Any, kind: str, paths: Iterable[str]) -> Any:
    """The model, in place, some of whose modules are computed otherwise.

    Args:
        kind: one of ``KINDS``.
        paths: of the modules.
    """
    for path in paths:
        otherwise(model.get_submodule(path), kind)
    return model


def survey_calls(model: nn.Module, run: Callable[[], Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Calls that are faster computed otherwise, checked and timed on copies.

    Args:
        run: one forward pass of the model on a real batch.

    Returns:
        For each of ``KINDS`` the ``paths`` in the model and the ``places`` in the source that call them and nothing
        else, empty where there is none; and reasons against others by paths.
    """
    fitting: dict[str, tuple[str, Given]] = {}
    called: dict[Position, set[str]] = defaultdict(set)

    def seen(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        frame = users_frame()
        lines = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        called[(frame.f_code.co_filename, *(each or 0 for each in lines))].add(path)  # type: ignore[index]
        for name, kind in KINDS.items():
            if type(module) in kind.types and kind.fits(module, given := bound(module, args, kwargs)):
                fitting.setdefault(path, (name, given))

    with watched(model, before=seen):
        run()
    refused: dict[str, str] = {}
    ratios: dict[str, float] = {}
    for path, (kind, given) in fitting.items():
        try:
            ratios[path] = _ratio(kind, model.get_submodule(path), given)
        except Exception as error:  # what it computes is another thing, or a copy cannot be tried
            words = "" if isinstance(error, Refused) else "it cannot be tried on a copy: "
            refused[path] = words + (first_line(error) if words else str(error))
    found: dict[str, Any] = {kind: {} for kind in KINDS}
    for position, modules in called.items():
        kinds = {fitting[path][0] for path in modules if path in fitting}
        if not kinds:
            continue
        if not modules <= {*ratios} or len(kinds) > 1:
            refused |= dict.fromkeys(modules & {*ratios}, "its line calls other modules, too")
            continue
        ratio, kind = sum(ratios[path] for path in modules) / len(modules), kinds.pop()
        if ratio > 1.0 - LEAST_SAVING:
            refused |= dict.fromkeys(modules, f"{KINDS[kind].words} takes {ratio:.2f} times as long on this input")
            continue
        paths, places = found[kind].setdefault("paths", []), found[kind].setdefault("places", [])
        paths += [path for path in sorted(modules) if path not in paths]
        places.append(_place(position))
    return found, refused


def _ratio(kind: str, module: nn.Module, given: Given) -> float:
    """Seconds of a module that is computed otherwise over those as it is.

    Raises:
        Refused: it computes something else.
    """
    plain, changed = twin(module), otherwise(twin(module), kind)
    calls = [*KINDS[kind].calls(plain, given)]
    for whole, each in calls:
        compare(whole(plain), whole(changed), each)
    whole, first = calls[0]
    compare(whole(plain), whole(changed), first, torch.bfloat16)
    return passes_ratio(whole(plain), whole(changed), first)


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
