"""A module's forward captured by ``torch.export`` on the arguments of a real call: a graph of ATen operators.

Plain Python (branches, loops, unpacking, buffers sliced by length) is run through, and sizes stay symbols. What the
capture took for granted (sizes, flags) is kept beside the graph. What cannot be captured is refused with the reason.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.attention.forward import attribute

PLAIN = (bool, int, float, str, type(None))
"""Types of attributes that a forward may decide by."""


class Refused(Exception):  # noqa: N818 - reads as the sentence that the user gets
    """This is not attention that can be rewritten, and why.

    Attributes:
        outside: whether the reason may be gone where the module that calls this one is looked at.
        sizes: whether it may be gone with other sizes.
    """

    def __init__(self, reason: str, *, outside: bool = False, sizes: bool = False) -> None:
        super().__init__(reason)
        self.outside, self.sizes = outside, sizes


@dataclass
class Captured:
    """A captured forward.

    Attributes:
        graph: placeholders are the tensors of the call, in order; parameters and buffers are ``get_attr`` nodes; the
            output is what the module returns.
        inputs: the placeholders.
        hints: sizes of the call, by their symbols.
        limits: the largest size that a rewriting is known to hold for, by its symbol.
        calls: by the path of a module inside, whether it maps one tensor to one tensor.
        flags: numbers and truth values that were read of modules, by the modules' paths.
        written: names of attributes that were set, by the modules' paths.
        lower: whether it may run under autocast as far as is known (it does not switch it itself).
        relaxed: symbols of sizes that the capture excludes and that are allowed, because the proof is made at them.
    """

    graph: fx.Graph
    inputs: list[fx.Node]
    hints: dict[Any, int] = field(default_factory=dict)
    limits: dict[Any, int] = field(default_factory=dict)
    calls: dict[str, bool] = field(default_factory=dict)
    flags: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    lower: bool = True
    relaxed: set[Any] = field(default_factory=set)

    @property
    def shapes(self) -> Any:
        """The environment of symbolic sizes; None where no input has a symbolic one."""
        fakes = [node.meta["val"] for node in self.inputs]
        return next((fake.fake_mode.shape_env for fake in fakes), None)


def bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included.

    Raises:
        Refused: a call with any number of positional arguments.
    """
    found = inspect.signature(module.forward).bind(*args, **kwargs)
    found.apply_defaults()
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= found.arguments[name]
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            given[name] = found.arguments[name]
        elif found.arguments[name]:
            raise Refused("it is called with any number of arguments")
    return given


def described(given: Any, where: str = "") -> Any:
    """A call as plain data: ``{"shape", "dtype"}`` for a tensor, tuples and lists by name, plain values as they are.

    Raises:
        Refused: an argument that is neither a tensor nor plain.
    """
    if isinstance(given, torch.Tensor):
        return {"shape": list(given.shape), "dtype": str(given.dtype).removeprefix("torch.")}
    if type(given) in (tuple, list):
        return {type(given).__name__: [described(item, where) for item in given]}
    if given is None or isinstance(given, (bool, int, float, str)):
        return given
    raise Refused(f"its argument {where} is a {type(given).__name__}", outside=True)


def tensors_of(given: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call, in the order of :func:`described`."""
    return [leaf for leaf in pytree.tree_leaves(list(given.values())) if isinstance(leaf, torch.Tensor)]


def with_tensors(given: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
    """The same call with other tensors."""
    rest = iter(tensors)
    flat, spec = pytree.tree_flatten(list(given.values()))
    flat = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    return dict(zip(given, pytree.tree_unflatten(flat, spec), strict=True))


def one_smaller(module: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """The call with sizes one smaller wherever the module takes them.

    A batch as long as a buffer would make that length the only one: captured a little shorter, any length fits.
    """
    tensors = [tensor.detach() for tensor in tensors_of(given)]
    free = {size for tensor in tensors for size in tensor.shape[: max(1, tensor.dim() - 1)] if size > 3}
    for size in sorted(free):
        everywhere = [(place, each) for place, item in enumerate(tensors) for each in range(item.dim())]
        places = [(place, each) for place, each in everywhere if tensors[place].shape[each] == size]
        # A length may be equal to a width, which cannot be smaller: all of one size, those of one place, one alone.
        groups = [places, *([pair for pair in places if pair[1] == each] for each in sorted({x for _, x in places}))]
        for group in [*groups, *([pair] for pair in places)]:
            trial = list(tensors)
            for place, dimension in group:
                trial[place] = trial[place].narrow(dimension, 0, size - 1)
            if runs(module, with_tensors(given, trial)):
                tensors = trial
                break
    return with_tensors(given, tensors)


def runs(module: nn.Module, given: dict[str, Any]) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(), silent():
            module(**given)
    except Exception:
        return False
    return True


class Call(nn.Module):
    """A module with the plain arguments of a call: takes the tensors alone."""

    def __init__(self, module: nn.Module, given: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.given = module, given

    def forward(self, tensors: list[torch.Tensor]) -> Any:
        return self.module(**with_tensors(self.given, tensors))


def capture(module: nn.Module, given: dict[str, Any]) -> Captured:
    """The graph of a module's forward, in the mode that the module is in.

    Raises:
        Refused: it cannot be captured.
    """
    tensors = [tensor.detach().contiguous() for tensor in tensors_of(given)]  # strides would be symbols too
    if not tensors:
        raise Refused("it is called without a tensor")
    shapes = [dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) for tensor in tensors]
    calls: dict[str, bool] = {}
    flags: dict[str, dict[str, Any]] = {}
    written: dict[str, str] = {}
    try:
        with silent(), torch.enable_grad(), noting_calls(module, calls), noting_flags(module, flags, written):
            program = torch.export.export(Call(module, given), (tensors,), dynamic_shapes=(shapes,), strict=False)
    except Exception as error:
        raise Refused(f"its forward cannot be captured: {first_line(error)}", outside=True) from None
    if any(str(spec.kind).endswith("MUTATION") for spec in program.graph_signature.output_specs):
        raise Refused("its forward writes into buffers or its input")
    captured = tidied(module, program)
    captured.calls, captured.flags, captured.written = calls, flags, written
    for node, tensor in zip(captured.inputs, tensors, strict=True):
        for symbol, size in zip(node.meta["val"].shape, tensor.shape, strict=True):
            if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_Symbol:
                captured.hints[symbol.node.expr] = size
    return captured


@contextmanager
def noting_flags(module: nn.Module, flags: dict[str, dict[str, Any]], written: dict[str, str]) -> Iterator[None]:
    """Notes which plain attributes are read of a module and of those inside it, and which are set.

    The capture settles what was read; what was set would be set no more.
    """
    kinds = {path: (child, type(child)) for path, child in module.named_modules()}
    paths = {id(child): path for path, (child, _) in kinds.items()}

    def watched(kind: Any) -> type:
        def read(self: Any, name: str) -> Any:
            value = kind.__getattribute__(self, name)
            if not name.startswith("_") and isinstance(value, PLAIN):
                flags.setdefault(paths[id(self)], {})[name] = value
            return value

        def write(self: Any, name: str, value: Any) -> None:
            written[paths[id(self)]] = name
            kind.__setattr__(self, name, value)

        body = {"__getattribute__": read, "__setattr__": write, "__module__": kind.__module__}
        return type(kind.__name__, (kind,), body)

    try:
        for child, kind in kinds.values():
            object.__setattr__(child, "__class__", watched(kind))
        yield
    finally:
        for child, kind in kinds.values():
            object.__setattr__(child, "__class__", kind)


@contextmanager
def noting_calls(module: nn.Module, calls: dict[str, bool]) -> Iterator[None]:
    """Notes of each module inside whether every call of it gives one tensor and gets one."""

    def noted(path: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        simple = len(args) == 1 and not kwargs and all(isinstance(item, torch.Tensor) for item in (args[0], output))
        calls[path] = simple and calls.get(path, True)

    handles = [
        child.register_forward_hook(
            lambda _, args, kwargs, output, path=path: noted(path, args, kwargs, output), with_kwargs=True
        )
        for path, child in module.named_modules()
        if path
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


@contextmanager
def silent() -> Iterator[None]:
    """Without what the capture says of sizes that it settled: they are guarded."""
    logger = logging.getLogger("torch._export")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def tidied(module: nn.Module, program: Any) -> Captured:
    """The program's graph with attributes of the module in place of lifted inputs, and without what only checks."""
    graph: fx.Graph = program.graph_module.graph
    graph.owning_module = None  # its attributes are the module's, not the program's
    captured = Captured(graph, [])
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if str(spec.kind).endswith("USER_INPUT"):
            captured.inputs.append(node)
            continue
        if node.users:
            with graph.inserting_after(nodes[-1]):
                made = constant(module, graph, str(spec.target).removeprefix("module."), program)
            made.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(made)
        graph.erase_node(node)
    inline_regions(captured, program.graph_module)
    for node in list(graph.nodes):
        if called(node) in ("lift_fresh_copy", "detach") and node.args[0].meta.get("constant"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif called(node, overload=True).endswith("_"):
            written_in_place(node)
        elif called(node) == "_assert_tensor_metadata" or str(node.target).startswith("aten._assert"):
            graph.erase_node(node)
    shape_output(graph, program.call_spec.out_spec)
    graph.eliminate_dead_code()
    return captured


def constant(module: nn.Module, graph: fx.Graph, path: str, program: Any) -> fx.Node:
    """A parameter, a buffer, a tensor kept as an attribute, or a tensor made in the forward of numbers."""
    tensor = program.constants.get(f"module.{path}")
    try:
        found = attribute(module, path)
    except AttributeError:
        found = None
    if found is not None and (tensor is None or found is tensor or torch.equal(found, tensor)):
        return graph.get_attr(path)
    if tensor is None or tensor.numel() > 64:
        raise Refused("its forward holds a table of numbers that is no attribute of the module")
    keywords = {"dtype": tensor.dtype, "device": tensor.device}
    if tensor.dim() == 0:
        made = graph.call_function(torch.ops.aten.full.default, ([], tensor.item()), keywords)
    else:
        raise Refused("its forward makes a tensor of numbers that is no attribute of the module")
    made.meta["constant"] = True
    return made


def called(node: Any, *, overload: bool = False) -> str:
    """The name of the ATen operator that a node calls, the mark of writing in place left out unless asked for."""
    target = getattr(node, "target", None)
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    name = str(target.overloadpacket.__name__)
    return name if overload or name.startswith("__") else name.rstrip("_")


def written_in_place(node: fx.Node) -> None:
    """Later readers of a tensor that was written into read the result of the writing."""
    first = node.args[0]
    if isinstance(first, fx.Node) and first.op == "call_function":
        first.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node and not user < node)


def inline_regions(captured: Captured, root: nn.Module) -> None:
    """Regions without gradients are put in place, their results detached; those that switch autocast are noted."""
    graph = captured.graph
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name == "wrap_with_set_grad_enabled":
            inner, given, detached = node.args[1], node.args[2:], not node.args[0]
        elif name == "wrap_with_autocast":
            inner, given, detached = node.args[4], node.args[5:], False
            captured.lower = False
        else:
            continue
        put_in_place(graph, node, getattr(root, str(inner.target)).graph, given, detached)


def put_in_place(graph: fx.Graph, node: fx.Node, inner: fx.Graph, given: tuple[Any, ...], detached: bool) -> None:
    mapping: dict[Any, Any] = dict(zip([each for each in inner.nodes if each.op == "placeholder"], given, strict=True))
    with graph.inserting_before(node):
        results: Any = graph.graph_copy(inner, mapping) or ()
        for user in list(node.users):
            result: Any = results[user.args[1]]
            if detached and isinstance(result, fx.Node):
                held = graph.call_function(torch.ops.aten.detach.default, (result,))
                held.meta = dict(result.meta)
                result = held
            user.replace_all_uses_with(result)
            graph.erase_node(user)
    graph.erase_node(node)


def shape_output(graph: fx.Graph, spec: Any) -> None:
    """The output as the module gives it.

    Raises:
        Refused: it is in something other than tuples, lists and dicts.
    """
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    allowed = {tuple, list, dict, None}

    def check(part: Any) -> None:
        if not part.is_leaf() and part.type not in allowed:
            raise Refused(f"it returns a {part.type.__name__}")
        for inner in part.children() if hasattr(part, "children") else part.children_specs:
            check(inner)

    check(spec)
    output.args = (pytree.tree_unflatten(list(output.args[0]), spec),)
