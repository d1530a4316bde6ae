"""Native operators that a hand-written activation or normalization may be, and a ``forward`` that calls one."""

from __future__ import annotations

import ast

from autoopt_strategies.compute.rewriting.source import Edits, Refused, function_of, module_name, written

OPERATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gelu_tanh": ("gelu", ("{x}", 'approximate="tanh"')),
    "gelu": ("gelu", ("{x}",)),
    "silu": ("silu", ("{x}",)),
    "mish": ("mish", ("{x}",)),
    "rms_norm": ("rms_norm", ("{x}", "{shape}", "{weight}", "eps={eps}")),
    "layer_norm": ("layer_norm", ("{x}", "{shape}", "{weight}", "{bias}", "eps={eps}")),
}
"""Functions of ``torch.nn.functional`` with the arguments that a patch prints."""


def statements(text: str, name: str, native: str, weight: str = "", bias: str = "", eps: str = "") -> Edits:
    """The statements of a function of one tensor, replaced by one call.

    Args:
        text: of its file.
        name: of the function, qualified.
        native: one of ``OPERATORS``.
        weight, bias: attributes of ``self``; empty where there is none.
        eps: an attribute of ``self``, or a number.

    Raises:
        Refused: its statements do more than compute what is returned.
    """
    tree = ast.parse(text)
    function = function_of(tree, name)
    named = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if len(named) != 2:
        raise Refused(f"{name} takes more than one tensor")
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body or not isinstance(body[-1], ast.Return) or not all(map(_computes, body[:-1])):
        raise Refused("its statements do more than compute what is returned")
    if len({function.lineno, *(each.lineno for each in body)}) <= len(body):
        raise Refused("its statements share lines")
    if bad := [each for each in (weight, bias) if each and not each.isidentifier()]:
        raise Refused(f"{bad[0]!r} is no name of an attribute")
    own = {key: f"{named[0]}.{value}" if value else "None" for key, value in (("weight", weight), ("bias", bias))}
    number = f"{named[0]}.{eps}" if eps.isidentifier() else repr(float(eps or 0.0))
    shape = f"{own['weight']}.shape" if weight else f"{named[1]}.shape[-1:]"
    operator, templates = OPERATORS[native]
    made = [each.format(x=named[1], shape=shape, eps=number, **own) for each in templates]
    while len(made) > 2 and made[-2] == "None":  # the last one goes by its name
        del made[-2]
    last = body[-1]
    call = written(f"return {module_name(tree, 'torch.nn.functional')}.{operator}", made, "", last.col_offset, text)
    edits = [(each.lineno, each.end_lineno or each.lineno, "") for each in body[:-1]]
    return [*edits, (last.lineno, last.end_lineno or last.lineno, call)]


def _computes(statement: ast.stmt) -> bool:
    """Whether a statement gives local names values, and nothing else."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = [statement.target]
    else:
        return False
    names = [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return all(isinstance(each, ast.Name) for each in names)
