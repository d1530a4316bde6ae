"""Mixed precision of a script that has an autocast of its own, which was seen to be off."""

from __future__ import annotations

import libcst as cst

from autoopt.export.script_patch.editing import given
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.records import Site
from autoopt.setup import Precision

_POSITIONS = ("device_type", "dtype", "enabled", "cache_enabled")


def turn_on(placing: Placing, precision: Precision, device: str) -> None:
    """Turns the script's autocast on, where the value that turns it off is made.

    Args:
        placing: gets the edits.
        precision: dtype, and whether gradients are scaled.
        device: type of the device, such as ``cuda``.

    Raises:
        NoHonestEditError: it is not the one around the model, or its line does not say what is to be changed.
    """
    sites = placing.sites.of("autocast")
    site, dtype = sites[0], str(precision.dtype)
    placing.touched = site
    by_hand = NoHonestEditError(
        f"{site.file}:{site.line} has an autocast of its own: write enabled=True, dtype=torch.{dtype} there",
        by_hand=True,
    )
    if len(sites) > 1 or precision.loss_scaling or site.options.get("device") != device:
        raise by_hand
    edits = placing.edits(site.file)
    source = edits.source
    found = _with_call(source, site)
    if found is None:  # one that was made elsewhere
        raise by_hand
    block, call = found
    positions = _POSITIONS if source.code(call.func) in ("torch.autocast", "torch.amp.autocast") else ()
    named, name = given(call, positions), source.module_name("torch")
    enabled, kept = named.get("enabled"), named.get("dtype")
    other = site.options.get("dtype") != dtype
    fixed = kept is None or isinstance(kept.value, cst.Attribute)  # such as torch.float16
    if enabled is None or not _around_model(placing, source, block) or (other and (name is None or not fixed)):
        raise by_hand
    placing.set_where_made(edits, call, enabled, "enabled", "True", site, positions)
    if other:
        edits.argument(call, "dtype", cst.parse_expression(f"{name}.{dtype}"), positions)


def _with_call(source: Source, site: Site) -> tuple[cst.With, cst.Call] | None:
    """The ``with`` that enters a site's autocast, and the call that makes it; None where it makes none itself."""
    for block in source.all_of(cst.With):
        for item in block.items:
            call, lines = item.item, source.lines(item.item)
            # some interpreters tell the lines of the whole block, others those of the call
            here = site.line in (source.lines(block).start.line, lines.start.line)
            if here and isinstance(call, cst.Call) and source.called(call) == site.call:
                return block, call
    return None


def _around_model(placing: Placing, source: Source, block: cst.With) -> bool:
    """Whether a model's training call, or a line that leads there, stands in a block."""
    lines = source.lines(block)
    models = placing.sites.of("model")
    places = [place for model in models for way in (model.used, *model.callers) for place in way]
    return any(place.file == source.name and lines.start.line <= place.line <= lines.end.line for place in places)
