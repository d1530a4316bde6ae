"""Native operators: activations, normalizations, some convolutions, packed LSTMs and dropout, as torch is fastest."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from autoopt import Applies, Case, Edit, Estimate, Example, Recipe, Risk, Setup, Strategy, Wrap
from autoopt_strategies.compute.rewriting.source import (
    Edits,
    Refused,
    body_of,
    edits_of,
    function_of,
    module_name,
    part_of,
    rewrite_functions,
    written,
)
from autoopt_strategies.predictions import LEAST_SAVING, operator_share, ratio_there, tried_or_at_most
from autoopt_strategies.trying import Setting, tried_on_copies

OPERATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "gelu_tanh": ("gelu", ("{x}", 'approximate="tanh"')),
    "gelu": ("gelu", ("{x}",)),
    "silu": ("silu", ("{x}",)),
    "mish": ("mish", ("{x}",)),
    "rms_norm": ("rms_norm", ("{x}", "{shape}", "{weight}", "eps={eps}")),
    "layer_norm": ("layer_norm", ("{x}", "{shape}", "{weight}", "{bias}", "eps={eps}")),
}
"""Functions of ``torch.nn.functional`` with the arguments that a patch prints."""
CALLS = ("convolutions", "recurrent")
"""Keys of a setting that name calls of torch's own modules, which ``rewriting.native.KINDS`` computes otherwise."""
PARTS = ("functions", *CALLS, "dropout")
"""All keys of a setting."""


def transforms(setting: Setting) -> list[Callable[[Any], Any]]:
    """``model -> model`` of a setting, in their order."""
    found: list[Callable[[Any], Any]] = []
    if setting.get("functions"):
        found.append(Wrap.of(rewrite_functions, functions=setting["functions"], statements=statements))
    for kind in CALLS:
        if setting.get(kind):
            from autoopt_strategies.compute.rewriting.native import calls_otherwise

            found.append(Wrap.of(calls_otherwise, kind=kind, paths=setting[kind]["paths"]))
    if setting.get("dropout"):
        found.append(_by_bits(setting["dropout"]))
    return found


def _by_bits(dropout: Any) -> Callable[[Any], Any]:
    """``model -> model``.

    Args:
        dropout: ``functions``, where the model calls those as well; else its layers alone.
    """
    from autoopt_strategies.compute.rewriting.layers import draw_by_bits, functions_by_bits

    return functions_by_bits if dropout == "functions" else draw_by_bits


EXAMPLE = {"functions": [{"file": "model.py", "module": "model", "function": "NewGELU.forward", "native": "gelu_tanh"}]}


class NativeOperators(Strategy):
    """Computes hand-written operators by torch's own ones.

    What it does: GELU (both forms), SiLU, Mish, RMSNorm and LayerNorm that a module writes out become one call in its
        ``forward``. A convolution whose kernel spans the whole width of its input becomes a product of its weights
        with windows of rows; an LSTM or GRU over packed sequences computes padded ones on a CPU. What a module computes
        decides, not its source: outputs and gradients are compared on the real input and on others, and each operator
        is timed on that input. On a CPU ``nn.Dropout``, and ``F.dropout`` within the model, draw sixteen random bits
        for each element of their masks, where that is faster.
    When it helps: activations written as several operations, each of which reads and writes the tensor; Kim's
        sentence classifier on a CPU; ``pack_padded_sequence`` on a CPU, where torch takes step by step; transformers
        with dropout on a CPU, which draw a number for each element.
    When it does not: a model of torch's own layers without dropout; a compiled model, whose operations are fused
        already.
    What it costs: results differ in the last bits; an LSTM's last cell states are not at hand. Dropout draws other
        random numbers, and leaves out a share that is rounded to a 65536th.
    Source: https://docs.pytorch.org/docs/stable/nn.functional.html;
        Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014.
    """

    name = "native_operators"
    title = "native operators"
    stages = frozenset({"forward", "backward"})
    risk = Risk.NUMERIC
    example = Example(EXAMPLE, inspected=EXAMPLE, losses=1e-4)

    def applies(self, case: Case) -> Applies:
        found = case.inspected(self.name)
        if any(found.get(kind) for kind in PARTS):
            return Applies.yes()
        if found.get("error"):
            return Applies.no(f"looking for operators failed: {found['error']}")
        return Applies.no("no hand-written operator was found that torch's own computes faster")

    def predict(self, case: Case, setting: Setting) -> Estimate | None:
        """Seconds of forward and backward with it on a copy; else what all such operators take is the most it saves."""
        share = operator_share(case, kinds=("elementwise",), names=("conv", "lstm", "gru", "bernoulli", "dropout"))
        return tried_or_at_most(case, ratio_there(case, self.name), share)

    def settings(self, case: Case) -> list[Setting]:
        found = case.inspected(self.name)
        return [{kind: found[kind] for kind in PARTS if found.get(kind)}]

    def apply(self, setup: Setup, setting: Setting) -> Setup:
        return reduce(lambda one, change: one.with_model(change), transforms(setting), setup)

    def recipe(self, setting: Setting) -> Recipe:
        functions = setting.get("functions", [])
        lines = [f"# in {each['function']}: torch's own {each['native']}" for each in functions]
        edits = [*edits_of(functions, statements)]
        for kind in (each for each in CALLS if setting.get(each)):
            from autoopt_strategies.compute.rewriting.native import KINDS

            name, part = KINDS[kind].function.__name__, part_of(KINDS[kind].function)
            lines += [f"# {path}: {name}({path}, ...)" for path in setting[kind]["paths"]]
            for each in setting[kind]["places"]:
                place = (each["file"], str(each["line"]), each["called"])
                edits.append(Edit("call", (*place, f"{name}({{called}}, {{arguments}})"), parts=(part,)))
        if setting.get("dropout"):
            change = _by_bits(setting["dropout"])
            lines.append(f"{change.__name__}(model)  # dropout: random bits for its masks")
            edits.append(Edit("model", (f"{change.__name__}({{model}})",), parts=(part_of(change),)))
        return Recipe.noted("\n".join(lines), edits=tuple(edits))

    def inspect(self, live: Any) -> Setting:
        """Operators that a model writes out and that torch has equal and faster, and what they bring on a copy."""
        from autoopt_strategies.compute.rewriting.layers import calls_functions, dropouts_of
        from autoopt_strategies.compute.rewriting.native import survey_operators

        training = live.training
        batch = training.next()[0]
        found = survey_operators(training.model, training.loss, batch)
        if live.device.kind == "cpu":
            functions = calls_functions(partial(training.loss, copy.deepcopy(training.model), batch))
            dropout = "functions" if functions else bool(dropouts_of(training.model))
            if dropout and (live.ratio_with(_by_bits(dropout)) or 1.0) < 1.0 - LEAST_SAVING:
                found["dropout"] = dropout
        changes = transforms(found)
        if changes:
            found |= tried_on_copies(live, changes)
        return found


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
    body, targets = body_of(function), list[ast.AST]()
    for each in body[:-1]:  # local names get values, and nothing else happens
        one = each.target if isinstance(each, (ast.AugAssign, ast.AnnAssign)) else each
        for target in each.targets if isinstance(each, ast.Assign) else [one]:
            targets += target.elts if isinstance(target, ast.Tuple) else [target]
    if not body or not isinstance(body[-1], ast.Return) or not all(isinstance(each, ast.Name) for each in targets):
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
