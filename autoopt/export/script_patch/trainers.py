"""The objects in which libraries' trainers are given their arguments, where a call does not simply name these."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from autoopt.export.script_patch.editing import Edits, given
from autoopt.export.script_patch.source import NoHonestEditError, Source
from autoopt.export.text import literal
from autoopt.records import JsonDict, Site, Sites


def made_otherwise(source: Source, site: Site, arguments: JsonDict, command: Sequence[str]) -> NoHonestEditError:
    """The edit for a person to make where a parser makes the object that holds a trainer's arguments.

    Args:
        source: the file of the site.
        site: of the object.
        arguments: that it is to get.
        command: words of the script's command, which may name the file that is parsed.
    """
    files = [word for word in command if word.endswith((".yaml", ".yml", ".json"))]
    if source.names(site, "parse_args_into_dataclasses"):
        words = " ".join(f"--{name} {value}" for name, value in arguments.items())
        told = f"reads it from the command: add {words} to it"
    elif len(files) == 1 and any(source.names(site, f"parse_{kind}_file") for kind in ("yaml", "json")):
        lines = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in arguments.items())
        told = f"reads it from a file: write {lines} into {files[0]}"
    else:
        words = ", ".join(f"{name}={literal(value)}" for name, value in arguments.items())
        told = f"has no call of {site.call}: give what it makes {words}"
    return NoHonestEditError(f"{site.file}:{site.line} {told}", by_hand=True)


def unclipped(sites: Sites, edits: Callable[[str], Edits], files: Mapping[str, Edits]) -> bool:
    """Whether edits make Lightning refuse to clip gradients, which a fused optimizer may have scaled.

    Args:
        sites: of the script.
        edits: those of a file, read when first asked for.
        files: those that there are so far.
    """
    fused = any("fused" in named for each in files.values() for named in each.arguments.values())
    for site in sites.of("trainer") if fused else ():
        source = edits(site.file).source
        if site.call != "Trainer" or not source.names(site, site.call):
            continue
        call = source.call(site, site.call)
        there, new = given(call), files[site.file].arguments.get(call, {}).get("precision")
        old = there["precision"].value if "precision" in there else None
        precision = new[0] if new is not None else old
        if "gradient_clip_val" in there and precision is not None and "mixed" in source.code(precision):
            return True
    return False
