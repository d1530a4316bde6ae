"""Hand-written attention in the source of a function, and its statements as a user would edit them.

``softmax(Q K^T) V`` is followed through the assignments of a block of statements: from the softmax back through scales,
masks and casts to the product of queries and keys, and on through dropout to the product with the values. Nothing is
known of what names hold: that an edit computes the same is checked by running it.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from autoopt_strategies.compute.rewriting.source import Refused, function_of, module_name, written

CASTS = ("float", "to", "type_as", "half", "type", "double", "contiguous", "bfloat16")
MODULES = ("torch", "th", "F", "nn.functional", "torch.nn.functional", "functional")
OPERATORS: dict[type, str] = {
    ast.Mult: "mul", ast.Div: "div", ast.Add: "add", ast.Sub: "sub", ast.MatMult: "matmul",
}  # fmt: skip
"""Operators by the names of their functions."""
_CALL = "__attention__"
"""Stands for the call in its statement."""


class _Replaced(ast.NodeTransformer):
    """Puts other expressions in the places of some."""

    def __init__(self, others: dict[ast.AST, ast.expr]) -> None:
        self.others = others

    def visit(self, node: ast.AST) -> Any:
        return self.others.get(node) or self.generic_visit(node)


@dataclass
class Found:
    """Attention in a block of statements.

    ``used``: places in the block of the statements that go. ``returned``: the probabilities where a ``return`` gives
    them, too: None is given instead, which fails in whoever computes with them.
    """

    function: ast.FunctionDef
    block: list[ast.stmt]
    used: set[int] = field(default_factory=set)
    product: Any = None
    queries: Any = None
    values: Any = None
    result: Any = None
    place: int = 0
    scales: list[tuple[str, ast.expr]] = field(default_factory=list)
    added: list[tuple[str, ast.expr]] = field(default_factory=list)
    kept: list[tuple[bool, ast.expr, ast.expr]] = field(default_factory=list)
    dropout: str = ""
    condition: str = ""
    returned: list[ast.expr] = field(default_factory=list)


def variants(text: str, name: str, causal: frozenset[str]) -> list[tuple[str, str]]:
    """Ways to write the attention of a function, as scale and mask, the shortest first.

    The scale is the operator's ``default``, ``given`` as it was written, or, as a tensor, on the ``queries``. The mask
    is ``causal``, ``bool``, a number that is ``added``, or none (empty).

    Args:
        text: of its file.
        name: of the function.
        causal: attributes of ``self`` whose tensor lets each place read those before it alone.

    Raises:
        Refused: it holds none that is understood.
    """
    found = find(function_of(ast.parse(text), name))
    masks = [""]
    if found.kept or found.added:
        masks = ["causal"] if _is_causal(found, causal) else []
        if not found.added and all(
            _hides(fill) or "tri" in " ".join(map(ast.unparse, _resolved(found, mask))) for _, mask, fill in found.kept
        ):
            masks.append("bool")
        masks.append("added")
    scales = ["default", "given", "queries"] if found.scales else ["given"]
    return [(scale, mask) for mask, scale in itertools.product(masks, scales)]


def statements(text: str, name: str, scale: str = "default", mask: str = "") -> list[tuple[int, int, str]]:
    """The edited statements of a function: first line, last line, and the text in their place, empty where they go.

    Args:
        text: of its file.
        name: of the function, qualified.
        scale, mask: of the variant.

    Raises:
        Refused: it holds no attention that can be written so.
    """
    tree = ast.parse(text)
    found = find(function_of(tree, name))
    statement, result = found.block[found.place], found.result
    operator, arguments, order = _call(found, scale, mask, tree)
    others: dict[ast.AST, ast.expr] = {result: ast.copy_location(ast.Name(_CALL), result)}
    others |= {node: ast.Constant(None) for node in found.returned}
    edits = [
        (each.lineno, each.end_lineno or each.lineno, _shown(_Replaced(others).visit(each)))
        for each in found.block
        if isinstance(each, ast.Return) and each is not statement and set(ast.walk(each)) & {*found.returned}
    ]
    shown = _shown(_Replaced(others).visit(statement)).replace("\n", "\n" + " " * statement.col_offset)
    before, _, after = shown.partition(_CALL)
    made = written(f"{before}{operator}", arguments, order + after, statement.col_offset, text)
    edits.append((statement.lineno, statement.end_lineno or statement.lineno, made))
    edits += [(s.lineno, s.end_lineno or s.lineno, "") for s in (found.block[place] for place in sorted(found.used))]
    edits += _idle(found, edits, made)
    begins = [s.lineno for s in ast.walk(found.function) if isinstance(s, ast.stmt)]
    if any(begins.count(first) > 1 for first, _, _ in edits):
        raise Refused("its statements share lines")
    return sorted(edits)


def find(function: ast.FunctionDef) -> Found:
    """The attention in a function.

    Raises:
        Refused: there is none that is understood.
    """
    reasons: list[Refused] = []
    for block, place, node in _softmaxes(function.body):
        found, (_, arguments, keywords) = Found(function, block), _called(node)
        over = _number(keywords.get("dim", (arguments[1:] or [ast.Constant(-1)])[0]))
        try:
            if isinstance(over, int) and over not in (-1, 2, 3):
                raise Refused(f"the softmax runs over dimension {over}, not over the keys at the end")
            _back(found, arguments[0], place)
            _on(found, node, place)
            return found
        except Refused as reason:
            reasons.append(reason)
    raise reasons[0] if reasons else Refused("there is no softmax in its source")


def _softmaxes(block: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int, ast.Call]]:
    """Calls of a softmax with their block of statements and their place in it; those of blocks within come after."""
    for place, statement in enumerate(block):
        nodes = [] if hasattr(statement, "body") else list(ast.walk(statement))
        softmaxes = (node for node in nodes if isinstance(node, ast.Call) and _called(node)[0] == "softmax")
        yield from ((block, place, node) for node in softmaxes)
    for statement in block:
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            for part in ("body", "orelse"):
                yield from _softmaxes(getattr(statement, part, []))


# from the softmax back to the product


def _back(found: Found, node: ast.expr, place: int) -> None:
    if isinstance(node, ast.Name):
        place, value = _assigned(found, node.id, place)
        found.used.add(place)
        _back(found, value, place)
        return
    if (operands := _operands(node)) is not None:
        found.product, found.queries = node, operands[0]
        while isinstance(found.queries, ast.BinOp) and isinstance(found.queries.op, (ast.Mult, ast.Div)):
            found.scales.append((OPERATORS[type(found.queries.op)], found.queries.right))
            found.queries = found.queries.left
        return
    name, arguments, _ = _called(node)
    if name in OPERATORS.values() and len(arguments) == 2:
        reasons = []  # one side leads to the product; the other one is a scale, or is added
        for scores, other in itertools.islice(itertools.permutations(arguments), 2 if name in ("mul", "add") else 1):
            if isinstance(scores, ast.Constant):
                continue
            before = set(found.used), len(found.scales), len(found.added), len(found.kept)
            (found.scales if name in ("mul", "div") else found.added).append((name, other))
            try:
                _back(found, scores, place)
                return
            except Refused as reason:
                reasons.append(reason)
                found.used = before[0]
                del found.scales[before[1] :], found.added[before[2] :], found.kept[before[3] :]
        raise reasons[0]
    if name == "masked_fill" and len(arguments) == 3:
        found.kept.append((False, arguments[1], arguments[2]))
    elif isinstance(node, ast.Call) and name == "where" and len(arguments) == 3:
        if not isinstance(node.func, ast.Attribute) or ast.unparse(node.func.value) in MODULES:
            condition, one, other = arguments
            turned = _fill(one) is not None
            arguments = [other, condition, one] if turned else [one, condition, other]
            found.kept.append((not turned, condition, arguments[2]))
        else:
            found.kept.append((True, arguments[1], arguments[2]))
    elif name not in CASTS:
        what = name or ast.unparse(node)
        raise Refused(f"between the product and the softmax stands {what}, which is not understood")
    _back(found, arguments[0], place)


def _assigned(found: Found, name: str, before: int) -> tuple[int, ast.expr]:
    """The last statement above that gives a name its value, and that value."""
    for place in range(before - 1, -1, -1):
        statement = found.block[place]
        if isinstance(statement, ast.Assign) and [ast.unparse(t) for t in statement.targets] == [name]:
            return place, statement.value
        if isinstance(statement, ast.If) and not statement.orelse and len(statement.body) == 1 and not found.condition:
            inner = statement.body[0]  # if mask is not None: scores = scores + mask
            if isinstance(inner, ast.Assign) and [ast.unparse(t) for t in inner.targets] == [name]:
                found.condition = ast.unparse(statement.test)
                return place, inner.value
        if isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) == name:
            return place, ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value)
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_"):
            if ast.unparse(call.func.value) == name:
                return place, call
        elif name in _names(statement, ast.Store):
            break
    raise Refused(f"its scores come from {name}, which no statement next to the softmax makes of queries and keys")


# from the softmax on to the product with the values


def _on(found: Found, node: ast.expr, place: int) -> None:
    above = {child: parent for parent in ast.walk(found.block[place]) for child in ast.iter_child_nodes(parent)}
    while True:
        parent = above.get(node)
        if isinstance(parent, ast.Attribute) and isinstance(above.get(parent), ast.Call) and parent.attr in CASTS:
            node = above[parent]  # type: ignore[assignment]
        elif isinstance(parent, ast.expr) and (operands := _operands(parent)) is not None:
            one, two, _ = operands
            if one is not node and (two is not node or not isinstance(parent, ast.Call)):
                raise Refused("the probabilities are not multiplied with values along the keys")
            found.result, found.values, found.place = parent, two if one is node else one, place
            return
        elif isinstance(parent, ast.Call) and parent.args and parent.args[0] is node and (drop := _dropout(parent)):
            found.dropout, node = drop, parent
        elif isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            guard = found.block[place]
            if isinstance(guard, ast.If):  # if dropout is not None: weights = dropout(weights)
                if guard.body != [parent] or guard.orelse or not found.dropout:
                    raise Refused(f"what becomes of the probabilities depends on {ast.unparse(guard.test)}")
                rate, mode = found.dropout.split(" if ", 1)
                found.dropout = f"{rate} if {ast.unparse(guard.test)} and {mode}"
            found.used.add(place)
            place, node = _only_read(found, parent.targets[0].id, place)
            above = {child: each for each in ast.walk(found.block[place]) for child in ast.iter_child_nodes(each)}
        elif isinstance(parent, (ast.Return, ast.Tuple)):
            raise Refused("the probabilities are returned to the caller")
        else:
            what = ast.unparse(parent) if parent is not None else "nothing"
            raise Refused(f"between the softmax and the values stands {what}, which is not understood")


def _only_read(found: Found, name: str, after: int) -> tuple[int, ast.expr]:
    """The one place at which a name is read before it gets another value, but for a ``return`` of it as it is."""
    read: list[tuple[int, ast.expr]] = []
    for place in range(after + 1, len(found.block)):
        statement = found.block[place]
        nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
        given = (
            statement.value.elts if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple) else []
        )
        found.returned += [node for node in nodes if node in given]
        read += [(place, node) for node in nodes if isinstance(node.ctx, ast.Load) and node not in given]
        if any(isinstance(node.ctx, ast.Store) for node in nodes):
            break
    if len(read) != 1:
        raise Refused("the probabilities are used a second time, so they have to be computed")
    return read[0]


# expressions


def _called(node: ast.AST | None) -> tuple[str, list[ast.expr], dict[str, ast.expr]]:
    """The name of a function of torch, without the mark of writing in place, its arguments, and those by keyword.

    An operator goes by the name of its function; what is neither has an empty one.
    """
    if isinstance(node, ast.BinOp):
        return OPERATORS.get(type(node.op), ""), [node.left, node.right], {}
    if not isinstance(node, ast.Call):
        return "", [], {}
    keywords = {each.arg: each.value for each in node.keywords if each.arg}
    if isinstance(node.func, ast.Attribute):
        owner = [] if ast.unparse(node.func.value) in (*MODULES, "self") else [node.func.value]
        named = [keywords[name] for name in ("input", "mask", "value", "other") if name in keywords]
        return node.func.attr.rstrip("_"), [*owner, *node.args, *named], keywords
    if isinstance(node.func, ast.Call):  # nn.Softmax(dim=-1)(scores)
        inner, _, given = _called(node.func)
        return inner.lower(), list(node.args), given
    return (node.func.id if isinstance(node.func, ast.Name) else ""), list(node.args), keywords


def _operands(node: ast.AST | None) -> tuple[ast.expr, ast.expr, str] | None:
    """Both operands of a product, and its equation where it is an einsum; None where it is no product."""
    name, arguments, _ = _called(node)
    if name in ("matmul", "bmm") and len(arguments) == 2:
        return arguments[0], arguments[1], ""
    if name == "einsum" and len(arguments) == 3 and isinstance(arguments[0], ast.Constant):
        return arguments[1], arguments[2], str(arguments[0].value).replace(" ", "")
    return None


def _dropout(node: ast.Call) -> str:
    """The rate of dropout in a call, as an expression; empty where it is none."""
    name, _, keywords = _called(node)
    if name == "dropout" and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in MODULES:
        rate = keywords.get("p", node.args[1] if len(node.args) > 1 else ast.Constant(0.5))
        mode = keywords.get("training", node.args[2] if len(node.args) > 2 else ast.Constant(True))
        return f"{ast.unparse(rate)} if {ast.unparse(mode)} else 0.0"
    owner = ast.unparse(node.func)
    if "drop" not in owner.lower() or not (owner.startswith("self.") or owner.isidentifier()):
        return ""
    return f"{owner}.p if {'self' if owner.startswith('self.') else owner}.training else 0.0"


def _number(node: ast.AST) -> int | float | None:
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, (int, float)) else None


def _fill(node: ast.expr) -> str | None:
    """A number that masked scores get, as it is written; None where this is none."""
    text = ast.unparse(node)
    if (number := _number(node)) is not None:
        if number > -1e3:
            raise Refused(f"masked scores become {text}, which leaves them a share")
        return text
    low = text.lower()
    return text if "inf" in low or "finfo" in low or "tensor(-" in low or "full" in low else None


def _hides(fill: ast.expr) -> bool:
    text = ast.unparse(fill).lower()
    _fill(fill)
    return "inf" in text and "finfo" not in text


def _resolved(found: Found, node: ast.expr) -> list[ast.expr]:
    """An expression, and those that give the names in it their values."""
    resolved: list[ast.expr] = []
    seen: set[str] = set()
    waiting = [node]
    values: dict[str, list[ast.expr]] = {}
    for each in ast.walk(found.function):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            values.setdefault(each.targets[0].id, []).append(each.value)
    while waiting:
        resolved.append(waiting.pop())
        for name in {n.id for n in ast.walk(resolved[-1]) if isinstance(n, ast.Name)} - seen:
            seen.add(name)
            if any(word in ast.unparse(v) for v in values.get(name, []) for word in ("tri", "ones", "full", "self.")):
                waiting += values[name]
    return resolved


def _is_causal(found: Found, causal: frozenset[str]) -> bool:
    """Whether the one mask lets each place read those before it, at every length: a table, or one triangle.

    What it is combined with may be nothing in this batch and something in the next one.
    """
    masks = [mask for _, mask, _ in found.kept] + [mask for _, mask in found.added]
    if len(masks) != 1 or found.condition:
        return False
    nodes = [node for part in _resolved(found, masks[0]) for node in ast.walk(part)]
    pairs = [(node.left, node.right) for node in nodes if isinstance(node, ast.BinOp)]
    calls = [_called(node)[0] for node in nodes if isinstance(node, ast.Call)]
    if any(not isinstance(one, ast.Constant) and not isinstance(other, ast.Constant) for one, other in pairs):
        return False
    if any(("logical_" in name and name != "logical_not") or name in ("where", "mul", "add") for name in calls):
        return False
    tables = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
    triangles = calls.count("tril") + calls.count("triu")
    return (tables <= causal and not triangles) if tables else triangles == 1


def _negated(mask: ast.expr) -> str:
    """The places that stay, of a mask of those that go."""
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, (ast.Invert, ast.Not)):
        return ast.unparse(mask.operand)
    if isinstance(mask, ast.Compare) and isinstance(mask.ops[0], ast.Eq) and _number(mask.comparators[0]) is not None:
        return f"{ast.unparse(mask.left)} != {ast.unparse(mask.comparators[0])}"
    text = ast.unparse(mask)
    return f"~{text}" if isinstance(mask, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"~({text})"


def _wrapped(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.BoolOp)) else text


# the call


def _call(found: Found, scale: str, mask: str, tree: ast.Module) -> tuple[str, list[str], str]:
    """The operator's name in a file, its arguments, and what brings its result into the order that it had."""
    (q, k), (v, order) = _queries_and_keys(found), _values(found)
    times = "".join(f" {'*' if kind == 'mul' else '/'} {_wrapped(each)}" for kind, each in reversed(found.scales))
    operands = [_wrapped(q) + times if scale == "queries" else ast.unparse(q), k, v]
    arguments = operands
    if not mask and _is_flat(found.product):  # heads are among the samples, and fused kernels take both
        arguments = [f"{_wrapped(ast.parse(each, mode='eval').body)}.unsqueeze(1)" for each in operands]
        order = f".squeeze(1){order}"
    if mask in ("bool", "added"):
        parts = [_wrapped(each) if stays else _negated(each) for stays, each, _ in found.kept]
        text = parts[0] if len(parts) == 1 else " & ".join(f"({part})" for part in parts)
        text = text if mask == "bool" else f"{_added(found)}.to({_wrapped(q)}.dtype)"
        arguments.append(f"attn_mask={text}" + (f" if {found.condition} else None" if found.condition else ""))
    if found.dropout:
        arguments.append(f"dropout_p={found.dropout}")
    if mask == "causal":
        arguments.append("is_causal=True")
    if scale == "given":
        arguments.append(f"scale={times.removeprefix(' * ') if times.startswith(' *') else '1.0' + times}")
    elif scale == "queries":
        arguments.append("scale=1.0")
    return f"{module_name(tree, 'torch.nn.functional')}.scaled_dot_product_attention", arguments, order


def _queries_and_keys(found: Found) -> tuple[ast.expr, str]:
    _, two, equation = _operands(found.product) or (None, found.product, "")
    if not equation:
        return found.queries, _transposed(two)
    left, _, out = equation.partition("->")
    first, _, second = left.partition(",")
    summed = "".join(({*first} & {*second}) - {*out})
    if len(out) not in (3, 4) or len(summed) != 1 or sorted(first) != sorted(out[:-1] + summed):
        raise Refused(f"the einsum {equation} is no product of queries and keys")
    keys = _ordered(two, second, out[:-2] + out[-1] + summed)
    return _ordered(found.queries, first, out[:-1] + summed), ast.unparse(keys)


def _is_flat(product: ast.expr) -> bool:
    """Whether a product is known to be of three dimensions."""
    _, _, equation = _operands(product) or (None, None, "")
    return _called(product)[0] == "bmm" or len(equation.partition("->")[2]) == 3


def _ordered(node: ast.expr, letters: str, wanted: str) -> ast.expr:
    if sorted(letters) != sorted(wanted):
        raise Refused("the einsum is over dimensions that its operands do not share")
    if letters == wanted:
        return node
    order = tuple(letters.index(each) for each in wanted)
    moved = tuple(place for place, each in enumerate(order) if place != each)
    how = f"transpose{moved}" if len(moved) == 2 else f"permute{order}"
    return ast.parse(f"{_wrapped(node)}.{how}", mode="eval").body


def _transposed(node: ast.expr) -> str:
    """The keys of an expression that has their last two dimensions swapped."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "transpose":
        given = [_number(each) for each in node.args]
        if len(given) == 2 and set(given) in ({-2, -1}, {2, 3}, {3, -2}, {2, -1}):
            return ast.unparse(node.func.value)
    if isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
        return ast.unparse(node.value)
    return f"{_wrapped(node)}.transpose(-2, -1)"


def _values(found: Found) -> tuple[str, str]:
    """The values, and what brings the operator's result into the order of the product with them."""
    one, _, equation = _operands(found.result) or (None, None, "")
    if not equation:
        return ast.unparse(found.values), ""
    left, _, out = equation.partition("->")
    first, _, second = left.partition(",")
    weights, values = (first, second) if found.values is not one else (second, first)
    if len(weights) not in (3, 4) or len(set(values) - set(weights)) != 1:
        raise Refused(f"the einsum {equation} is no product with values")
    wide = (set(values) - set(weights)).pop()
    ordered = _ordered(found.values, values, weights[:-2] + weights[-1] + wide)
    return ast.unparse(ordered), ast.unparse(_ordered(ast.Name(_CALL), weights[:-1] + wide, out)).removeprefix(_CALL)


def _added(found: Found) -> str:
    """A mask of numbers that are added to the scores."""
    added = " ".join(f"{'-' if kind == 'sub' else '+'} {_wrapped(each)}" for kind, each in reversed(found.added))
    text = added.removeprefix("+ ")
    for stays, mask, fill in reversed(found.kept):
        fill_text = ast.unparse(fill)
        if "finfo" in fill_text:  # of the scores, which are gone
            fill_text = f"torch.finfo({ast.unparse(found.queries or fill)}.dtype).min"
        if not text:
            where = (ast.unparse(mask), "0.0", fill_text) if stays else (ast.unparse(mask), fill_text, "0.0")
            text = f"torch.where({', '.join(where)})"
        else:
            gone = f"~{_wrapped(mask)}" if stays else ast.unparse(mask)
            text = f"({text}).masked_fill({gone}, {fill_text})"
    return text if text.endswith(")") or text.isidentifier() else f"({text})"


def _shown(statement: ast.stmt) -> str:
    """A statement as text, without parentheses around the values that it returns."""
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
        return f"return {', '.join(map(ast.unparse, statement.value.elts))}"
    return ast.unparse(statement)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names that get a value in a node (``ast.Store``), or whose value is read there (``ast.Load``)."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def _idle(found: Found, edits: list[tuple[int, int, str]], made: str) -> list[tuple[int, int, str]]:
    """Statements that made what nobody reads any more, such as a mask.

    Raises:
        Refused: what goes is read elsewhere.
    """
    statement = ast.parse("def f():\n " + made)
    gone = {line for first, last, _ in edits for line in range(first, last + 1)}
    left = [n for n in ast.walk(found.function) if isinstance(n, ast.Name) and n.lineno not in gone]
    read, stored = _names(statement, ast.Load), _names(statement, ast.Store)
    read |= {n.id for n in left if isinstance(n.ctx, ast.Load)}
    stored |= {n.id for n in left if isinstance(n.ctx, ast.Store)}
    removed = {name for place in found.used for name in _names(found.block[place], ast.Store)}
    if again := sorted(removed & read - stored):
        raise Refused(f"{again[0]} is used a second time, so it has to be computed")
    masks = [*(mask for _, mask, _ in found.kept), *(mask for _, mask in found.added)]
    unread = {name for mask in masks for name in _names(mask, ast.Load)} - read
    return [
        (each.lineno, each.end_lineno or each.lineno, "")
        for each in found.block
        if isinstance(each, ast.Assign) and each.lineno not in gone and set() < _names(each, ast.Store) <= unread
    ]
