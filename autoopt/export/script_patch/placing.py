"""Puts edits where the sites of a script say: calls that make things, the model's line, the top of a file."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import libcst as cst

from autoopt.export.script_patch.editing import DATALOADER_POSITIONS, Edits, given
from autoopt.export.script_patch.module import AddedFile, added_file
from autoopt.export.script_patch.naming import (
    alike,
    data_of,
    inline_model,
    named_before,
    named_there,
    same_call,
    unwatched,
)
from autoopt.export.script_patch.source import NoHonestEditError, Source, Spot, entry_of, from_imports, last_import
from autoopt.export.script_patch.values import UNSEEN, Made, UserFiles, keys_of, made_at, read_alone
from autoopt.export.text import literal
from autoopt.records import JsonDict, Place, Site, SiteKind, Sites
from autoopt.simplify.costly import ANOMALIES
from autoopt.strategy import Edit, Recipe

_CALLS: dict[str, tuple[SiteKind, tuple[str, ...]]] = {
    "loader": ("loader_training", DATALOADER_POSITIONS),
    "evaluation": ("loader_validation", DATALOADER_POSITIONS),
    "optimizer": ("optimizer", ("params", "lr")),
    "trainer": ("trainer", ()),
    "wrapper": ("model", ("module", "device_ids")),
}
"""Sites of calls that get arguments, and the names of those that may stand without one."""


class Placing:
    """The files of a script with the edits that were placed so far.

    Args:
        sources: the files that were read so far; edits name the nodes of these.

    Attributes:
        files: edits by file as the sites name them; read when first asked for.
        added: the file that is added next to the script; None where nothing needs it so far.
        environment: variables that the command is started with.
        configured: texts of files that configure the script, as they are and as they become.
        notes: what the user should know of the edits.
    """

    def __init__(self, sites: Sites, sources: dict[str, Source] | None = None) -> None:
        self.sites = sites
        self.files: dict[str, Edits] = {}
        self.added: AddedFile | None = None
        self.environment: JsonDict = {}
        self.configured: dict[str, tuple[str, str]] = {}
        self.touched: Place | None = None
        self.notes: list[str] = []
        self._sources = {} if sources is None else sources
        first = [name for name in (entry_of(sites), *(site.file for site in sites.sites)) if name is not None]
        self.users = UserFiles(sites.command, first, Path(sites.cwd), self._source)

    def on_trial(self) -> Placing:
        """The same files, to which a change's edits can be added and taken back as a whole."""
        trial = copy.copy(self)
        trial.files = {name: edits.copy() for name, edits in self.files.items()}
        trial.touched, trial.notes = None, []
        return trial

    def place(self, edit: Edit) -> None:
        """Adds one edit.

        Raises:
            NoHonestEditError: there is no place for it where a user would write it.
        """
        kind = "arguments" if edit.at in _CALLS else edit.at.removeprefix("training_")
        getattr(self, f"_place_{kind}")(edit)
        fused = any("fused" in named for each in self.files.values() for named in each.arguments.values())
        for site in self.sites.of("trainer") if fused else ():
            edits = self.edits(site.file)
            if site.call != "Trainer" or not edits.source.names(site, site.call):
                continue
            call = edits.source.call(site, site.call)
            there, new = given(call), edits.arguments.get(call, {}).get("precision")
            old = there["precision"].value if "precision" in there else None
            precision = new[0] if new is not None else old
            if "gradient_clip_val" in there and precision is not None and "mixed" in edits.source.code(precision):
                raise NoHonestEditError("Lightning does not clip the gradients of a fused optimizer in mixed precision")

    def trainers_arguments(self, recipe: Recipe) -> JsonDict:
        """A change as arguments of the library's trainer that trains; empty where there is none, or it has no such."""
        trainers = self.sites.of("trainer")
        if not trainers:
            return {}
        if trainers[0].call == "Accelerator":  # the loop is the script's own; of a recipe this alone is an argument
            return {name: value for name, value in (recipe.accelerate or {}).items() if name == "mixed_precision"}
        found = recipe.transformers if trainers[0].call.endswith("TrainingArguments") else recipe.lightning
        return {} if not found or "_note" in found else dict(found)

    def edits(self, file: str) -> Edits:
        """The edits of a file.

        Raises:
            NoHonestEditError: it lies outside the command's folder, or cannot be read.
        """
        if file not in self.files:
            if Path(file).is_absolute():
                raise NoHonestEditError(f"{file} lies outside the folder that the command runs in")
            self.files[file] = Edits(self._source(file))
        return self.files[file]

    def _source(self, file: str) -> Source:
        if file not in self._sources:
            self._sources[file] = Source(Path(self.sites.cwd) / file, file)
        return self._sources[file]

    def site(self, kind: SiteKind) -> Site:
        """The one site of a kind that the user's own lines make.

        Raises:
            NoHonestEditError: there is none, several, or a library makes it.
        """
        found = self.sites_of(kind)
        if len(found) > 1:
            raise NoHonestEditError(f"{len(found)} lines make one: " + ", ".join(f"{s.file}:{s.line}" for s in found))
        return found[0]

    def sites_of(self, kind: SiteKind) -> tuple[Site, ...]:
        """All sites of a kind, one at least, each made by the user's own lines."""
        found = self.sites.of(kind)
        if not found:
            raise NoHonestEditError(f"no {kind.replace('_', ' ')} was found in the script")
        for site in found:
            # a library listens where the user's line makes the object, as Lightning does, or it has made the model
            # that the line gives a name to
            made_there = ("loader_training", "loader_validation", "optimizer")
            seen = site.direct or (site.kind in made_there and self.edits(site.file).source.names(site, site.call))
            if not seen and not (kind == "model" and named_there(self.edits(site.file).source, site) is not None):
                raise NoHonestEditError(f"a library makes it on behalf of {site.file}:{site.line}")
        self.touched = found[0]
        return found

    # arguments of calls

    def _place_arguments(self, edit: Edit) -> None:
        """Arguments of a call; where several lines make loaders or optimizers, each that takes them gets them.

        A learning rate is that of a single optimizer.
        """
        kind, _ = _CALLS[edit.at]
        if edit.lines:  # around the call
            site = self.site(kind)
            edits = self.edits(site.file)
            for part in edit.parts:
                self.import_part(edits.source, part)
            edits.around[self._call(edits.source, site)] += edit.lines
            return
        every = edit.at in ("loader", "evaluation", "optimizer") and "lr" not in edit.arguments
        sites = self.sites_of(kind) if every else (self.site(kind),)
        if edit.at == "optimizer":  # where no class takes them, the first site says so
            sites = tuple(s for s in sites if {*edit.arguments} <= {*(s.takes or s.options)}) or sites
        for site in sites:
            source = self.edits(site.file).source
            if edit.at == "evaluation":
                self._makes_no(site, "loader_training")
            if edit.at == "trainer" and not source.names(site, site.call):
                raise self._made_otherwise(source, site, edit.arguments)
            self._arguments(edit, site)

    def _made_otherwise(self, source: Source, site: Site, arguments: JsonDict) -> NoHonestEditError:
        """The edit for a user to make where a parser makes the object that holds a trainer's arguments."""
        files = [word for word in self.sites.command if word.endswith((".yaml", ".yml", ".json"))]
        if source.names(site, "parse_args_into_dataclasses"):
            words = " ".join(f"--{name} {value}" for name, value in arguments.items())
            text = f"reads it from the command: add {words} to it"
        elif len(files) == 1 and any(source.names(site, f"parse_{kind}_file") for kind in ("yaml", "json")):
            lines = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in arguments.items())
            text = f"reads it from a file: write {lines} into {files[0]}"
        else:
            words = ", ".join(f"{name}={literal(value)}" for name, value in arguments.items())
            text = f"has no call of {site.call}: give what it makes {words}"
        return NoHonestEditError(f"{site.file}:{site.line} {text}", by_hand=True)

    def _makes_no(self, site: Site, other: SiteKind) -> None:
        """Refuses a line of a loader that makes one of the other kind as well."""
        if any(same_call(site, each) for each in self.sites.of(other)):
            raise NoHonestEditError(f"{site.file}:{site.line} makes the loaders of training and validation")

    def _arguments(self, edit: Edit, site: Site) -> None:
        edits, (_, positions) = self.edits(site.file), _CALLS[edit.at]
        call = self._call(edits.source, site)
        named = given(call, positions)
        if not edits.source.names(site, site.call) and {*edit.arguments} - {*named}:
            what = edits.source.code(call.func)
            self._note(f"{site.call} was seen, and {what} may make another, which must take this, too")
        rest, passed = self._passed_on(edits.source, call, site)
        batches = "batch_sampler" in named or (rest is not None and site.options.get("batch_size", 1) is None)
        if batches and {"batch_size", "drop_last"} & {*edit.arguments}:
            raise NoHonestEditError(f"{site.file}:{site.line} gives its DataLoader a batch_sampler")
        unset: JsonDict = {}
        if edit.at in ("loader", "evaluation") and edit.arguments.get("num_workers", 1) == 0:
            # arguments that torch refuses next to no workers, each as it is where nothing sets it
            unset = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
            added = edits.arguments[call] if rest is None else edits.merged[rest]
            for name in {*unset} & {*added} - {*named}:  # by another change of the plan
                del added[name]
            unset = {
                name: value
                for name, value in unset.items()
                if name in added or site.options.get(name, not value) != value
            }
        if passed is not None:
            unset = {name: value for name, value in unset.items() if name in (*named, *passed)}
        arguments = {**unset, **edit.arguments}
        refused = [name for name in arguments if site.takes is not None and name not in (*site.takes, *named)]
        if refused:
            raise NoHonestEditError(f"{site.call} of {site.file}:{site.line} takes no {' and no '.join(refused)}")
        usual: JsonDict = {}  # of a loader that is not given these
        if edit.at in ("loader", "evaluation") and rest is None:
            usual = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None}
        texts = {
            name: self._text(edits.source, value)
            for name, value in arguments.items()
            if name in named or name not in usual or site.options.get(name, usual[name]) != value
        }
        for name, text in texts.items():
            there = named.get(name)
            if there is not None and there.keyword is not None and name in unset:
                edits.argument(call, name, None)
            elif there is not None and not callable(arguments[name]):
                self.set_where_made(call, there, name, text, site, positions)
            elif there is None and rest is not None:
                edits.merged[rest][name] = edits.expression(text)  # whether or not it holds the key already
            else:
                edits.argument(call, name, text, positions)

    def _call(self, source: Source, site: Site) -> cst.Call:
        """The call that made what a site is of; of an optimizer the line may pick the class as it runs."""
        picked = source.picked(site) if site.kind == "optimizer" and not source.names(site, site.call) else None
        return source.call(site, site.call) if picked is None else picked

    @staticmethod
    def _passed_on(source: Source, call: cst.Call, site: Site) -> tuple[cst.Arg | None, set[str] | None]:
        """The mapping that a call passes on with two stars, into which arguments can be merged, and its keys.

        Of none there are no keys; None where they are not known.

        Raises:
            NoHonestEditError: it passes on positions, several mappings, or what was not seen to arrive.
        """
        stars = [argument for argument in call.args if argument.star]
        if not stars:
            return None, set()
        if len(stars) > 1 or stars[0].star == "*":
            what = "arguments on with a star" if stars[0].star == "*" else "several mappings on with two stars"
            raise NoHonestEditError(f"{site.file}:{site.line} passes {what}")
        if not site.options and site.kind != "trainer":  # whose arguments go by their names alone
            raise NoHonestEditError(f"{site.file}:{site.line} passes arguments on with two stars that were not seen")
        return stars[0], keys_of(source, stars[0].value)

    def set_where_made(
        self, call: cst.Call, there: cst.Arg, name: str, text: str, site: Site, positions: tuple[str, ...]
    ) -> None:
        """Changes an argument that the call has, where its value is made, else in its own place: this is what ran.

        What also reaches the training stays.
        """
        edits = self.edits(site.file)
        source = edits.source
        try:
            made = made_at(source, there.value, self.users, text, site.options.get(name, UNSEEN))
        except NoHonestEditError as reason:
            made = Made(source, there.value, f"{reason}; {text} stands in the call in its place")
        evaluations = (each for each in self.sites.of("loader_validation") if each.direct and each.file == source.name)
        training_too = site.kind == "loader_validation" and not read_alone(
            source, made, self.users, [self._call(source, each) for each in evaluations]
        )
        if training_too or (made.configured is None and made.node is there.value):
            edits.argument(call, name, text, positions)
        else:
            self.change(made, text, there)
        self._note(made.note)

    def change(self, made: Made, text: str, on_behalf: cst.CSTNode) -> None:
        """Writes another value where one is made: in the code, or in a file that configures the script."""
        line = made.configured
        if line is None:
            self.edits(made.source.name).replace(made.node, text, on_behalf)
            return
        read = (Path(self.sites.cwd) / line.file).read_bytes().decode()
        before, after = self.configured.get(line.file) or (read, read)
        if before.splitlines()[line.line - 1] != after.splitlines()[line.line - 1]:
            raise NoHonestEditError(f"{line.file}:{line.line} decides another argument, too")
        self.configured = {**self.configured, line.file: (before, line.changed(after, text))}

    def _text(self, source: Source, value: object) -> str:
        """A value as Python; a function by its name, which the file imports."""
        if inspect.isfunction(value):
            return self.import_part(source, f"{value.__module__}:{value.__qualname__}")
        try:
            return literal(value)
        except ValueError:
            raise NoHonestEditError(f"{type(value).__name__} is no value that can be written down") from None

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)

    def _place_dataset(self, edit: Edit) -> None:
        """Wraps what the training's loader is given as its dataset, and the validation's of the same class.

        ``training_dataset``: of the training alone, whose line must make no other loader. Without a line the class is
        edited where it stands, and only the evaluation's loaders get the arguments.
        """
        site = self.site("loader_training")
        source = self.edits(site.file).source
        if edit.at == "training_dataset":
            self._makes_no(site, "loader_validation")
            self._wrap(edit, source, self._call(source, site), "dataset")
            return
        if edit.lines:
            self._wrap(edit, source, *data_of(source, site, self.sites))
        seen = self.sites.of("loader_validation")
        others = [other for other in seen if other.direct and not same_call(site, other)]
        for other in (*others, *unwatched(self.edits(site.file).source, site, seen)):
            if all(alike(site, each) for each in seen if same_call(each, other)):
                self._where_written(Placing._evaluated, edit, other)

    def _place_evaluation_dataset(self, edit: Edit) -> None:
        """Wraps what loaders of evaluations are given as their dataset."""
        for site in self.sites_of("loader_validation"):
            self._makes_no(site, "loader_training")
            self._evaluated(edit, site)

    def _where_written(self, place: Callable[[Placing, Edit, Site], None], edit: Edit, site: Site) -> None:
        """Adds an edit at one more site; that does without where a user would not write it."""
        trial = self.on_trial()
        with suppress(NoHonestEditError):
            place(trial, edit, site)
            self.files, self.added, self.notes = trial.files, trial.added, [*self.notes, *trial.notes]

    def _evaluated(self, edit: Edit, site: Site) -> None:
        """Wraps the dataset of a loader of the validation, which gets the arguments that this takes."""
        if edit.lines:
            source = self.edits(site.file).source
            call = self._call(source, site)
            named = given(call, DATALOADER_POSITIONS)
            # single samples pass to whatever makes batches of them; an edit that makes them itself takes its place
            if "dataset" not in named or ("collate_fn" in named and "collate_fn" in edit.arguments):
                raise NoHonestEditError(f"{site.file}:{site.line} makes batches in a way of its own")
            self._wrap(edit, source, call, "dataset")
        self._arguments(Edit("evaluation", arguments=edit.arguments), site)

    def _place_collate(self, edit: Edit) -> None:
        """Wraps what makes batches of the training's samples, and of evaluations whose batches are made alike."""
        site = self.site("loader_training")
        self._batches(edit, site)
        for other in self.sites.of("loader_validation") if edit.at == "collate" else ():
            if other.direct and not same_call(site, other) and alike(site, other, "collate_fn"):
                self._where_written(Placing._batches, edit, other)

    def _batches(self, edit: Edit, site: Site) -> None:
        source = self.edits(site.file).source
        call = self._call(source, site)
        _, passed = self._passed_on(source, call, site)
        if (passed is None or "collate_fn" in passed) and "collate_fn" not in given(call, DATALOADER_POSITIONS):
            raise NoHonestEditError(f"{site.file}:{site.line} may pass a collate_fn on with two stars")
        self._wrap(edit, source, call, "collate_fn")

    def _wrap(
        self, edit: Edit, source: Source, call: cst.Call, name: str, positions: Sequence[str] = DATALOADER_POSITIONS
    ) -> None:
        """Wraps an argument, a ``collate_fn`` also where the call does not have it."""
        edits = self.edits(source.name)
        there = given(call, positions).get(name)
        if name in edits.arguments.get(call, {}):
            code = source.code(edits.arguments[call][name][0] or cst.Name("None"))
        elif there is not None and source.code(there.value) != "None":
            code = source.code(there.value)
        else:
            code = self._import(source, "torch.utils.data", "default_collate")
        for part in edit.parts:
            self.import_part(source, part)
        text = edit.lines[0].replace(f"{{{edit.at.removeprefix('training_').removeprefix('evaluation_')}}}", code)
        edits.argument(call, name, text, positions)

    def import_part(self, source: Source, part: str) -> str:
        """Makes sure that a class or function stands in the file next to the script, and that a file imports it."""
        self.added = (self.added or added_file(self.sites)).with_part(part)
        return self._import(source, self.added.module, part.rpartition(":")[2])

    def _import(self, source: Source, module: str, name: str = "", above: Spot | None = None) -> str:
        """Makes sure that a file imports a module, where needed above one of its lines, or a name from it.

        Returns:
            What it is called there.

        Raises:
            NoHonestEditError: the name is something else in this file.
        """
        if name and (module, name, name) not in from_imports(source):
            if any(node.value == name for node in source.all_of(cst.Name)):
                raise NoHonestEditError(f"{source.name} has another {name}")
            self.edits(source.name).import_from(last_import(source), module, name)
        known = name or source.module_name(module, above)
        if known is None:
            self.edits(source.name).insert(last_import(source), [f"import {module}"], below=True)
        return known or module

    def _place_moves(self, edit: Edit) -> None:
        """Sets arguments where the loop over the training loader moves what it is given."""
        moved = False
        for place in self.site("loader_training").used:
            edits, source = self.edits(place.file), self.edits(place.file).source
            for loop in source.all_of(cst.For):
                names = {name.value for name in source.all_of(cst.Name, loop.target)}
                for call in source.all_of(cst.Call, loop.body) if source.lines(loop).start.line == place.line else ():
                    if source.called(call) not in ("to", "cuda") or not isinstance(call.func, cst.Attribute):
                        continue
                    if names & {name.value for name in source.all_of(cst.Name, call.func.value)}:
                        moved = True
                        for name, value in edit.arguments.items():
                            edits.argument(call, name, self._text(source, value))
        if not moved:
            raise NoHonestEditError("no line of the loop over the loader moves its batch to the device")

    # lines

    def _place_model(self, edit: Edit) -> None:
        """Lines below the one that gives a model its name; where several are trained, each gets them."""
        for site in self.sites_of("model"):
            source, spot, name, below = self._name_of(site)
            self._lines(edit, source, spot, {"model": name}, below=below)

    def _place_loader_made(self, edit: Edit) -> None:
        """Lines below the statement that gives the training's loader its name."""
        site = self.site("loader_training")
        source = self.edits(site.file).source
        named = named_there(source, site)
        if named is None:
            raise NoHonestEditError(f"{site.file}:{site.line} makes the loader without giving it a name")
        self._makes_no(site, "loader_validation")
        self._lines(edit, source, named[0], {"loader": named[1]})

    def _lines(
        self, edit: Edit, source: Source, spot: Spot, names: dict[str, str], *, below: bool = True, apart: bool = False
    ) -> None:
        """The lines of an edit at a statement, with what stands for the names and the modules there."""
        modules = {each: self._import(source, each, above=spot if apart else None) for each in edit.imports}
        for part in edit.parts:
            self.import_part(source, part)
        lines = edit.lines
        for name, text in {"torch": "torch", **modules, **names}.items():
            lines = tuple(line.replace(f"{{{name}}}", text) for line in lines)
        self.edits(source.name).insert(spot, lines, below=below, apart=apart)

    def _name_of(self, site: Site) -> tuple[Source, Spot, str, bool]:
        """The statement at which a model has its name, that name, and whether it has it below the statement only.

        Raises:
            NoHonestEditError: no single statement gives it one, and it cannot be given one.
        """
        source = self.edits(site.file).source
        if site.options.get("lazy"):
            raise NoHonestEditError(f"{site.file}:{site.line} makes parameters that get their shapes in a first call")
        assigned = named_there(source, site)
        if assigned is not None:
            return source, *assigned, True
        for used in site.used:  # made by a function that returns it: where it gets the name under which it is called
            caller = self.edits(used.file).source
            found = named_before(caller, site, used)
            if found is not None:
                return caller, *found, True
        inline = inline_model(source, site)
        if inline is None:
            raise NoHonestEditError(f"{site.file}:{site.line} makes the model without giving it a name")
        spot, expression, name = inline
        self.edits(source.name).insert(spot, [f"{name} = {source.code(expression)}"], below=False)
        self.edits(source.name).replace(expression, name)
        return source, spot, name, False

    def _place_step(self, edit: Edit) -> None:
        site = self.site("step")
        source = self.edits(site.file).source
        self._lines(edit, source, source.spot(source.call(site, "step")), {})

    def _place_start(self, edit: Edit) -> None:
        step = self.sites.of("step") or self.sites.of("optimizer", "model")
        entry = entry_of(self.sites) or (step[0].file if step else None)
        if entry is None:
            raise NoHonestEditError("it is not known which file begins the script")
        source = self.edits(entry).source
        last = last_import(source)
        self._lines(edit, source, last, {}, apart=True)
        self.touched = self.touched or source.place(last.statement)

    def _place_left_out(self, edit: Edit) -> None:
        """Removes statements that consist of a call; a block that a call detects anomalies in detects none."""
        for site in self.sites.of("forced"):
            if f"{site.file}:{site.line} {site.call}" not in edit.lines:
                continue
            source = self.edits(site.file).source
            call = source.call(site, site.call)
            spot = source.spot(call)
            if site.call in ANOMALIES and not _always(source, call):
                raise NoHonestEditError(f"{site.file}:{site.line} detects anomalies where your own setting says so")
            if source.alone(spot.statement) is call:
                self.edits(site.file).remove(spot)
            elif site.call in ANOMALIES:
                name = f"{self._import(source, 'torch')}.{ANOMALIES[0].partition('.')[2]}"
                self.edits(site.file).replace(call, f"{name}(False)")
            else:
                raise NoHonestEditError(f"{site.file}:{site.line} does something with what {site.call}() returns")
            self.touched = self.touched or site
        if self.touched is None:
            raise NoHonestEditError("the script was not seen to make these calls: " + ", ".join(edit.lines))

    def _place_function(self, edit: Edit) -> None:
        """Puts edited statements of a function in the place of its own, with expressions that others have edited."""
        file, name = edit.lines
        source, edits = self.edits(file).source, self.edits(file)
        inside = {node: new for node, new in edits.replaced.items() if isinstance(new, cst.BaseExpression)}
        code = Edits(source, replaced={**inside}).code()
        module, _, edited = edit.parts[0].partition(":")
        try:
            found = getattr(import_module(module), edited)(code, name, **edit.arguments)
        except Exception as reason:  # the file is another one than that which was examined
            raise NoHonestEditError(f"{name} in {file}: {reason}") from None
        for part in edit.parts[1:]:
            self.import_part(source, part)
        for first, _, text in found:
            spot = source.statement(first)
            if text:
                edits.replace_statement(spot, text)
                self.touched = source.place(spot.statement)
            else:
                edits.remove(spot)

    def _place_call(self, edit: Edit) -> None:
        file, line, name, text = edit.lines
        source = self.edits(file).source
        calls = [call for call in source.all_of(cst.Call) if source.called(call) == name]
        ranges = [source.lines(call) for call in calls]
        there = [c for c, r in zip(calls, ranges, strict=True) if r.start.line <= int(line) <= r.end.line]
        if len(there) != 1:
            raise NoHonestEditError(f"{file}:{line} has {len(there)} calls of {name} on its lines")
        for part in edit.parts:
            self.import_part(source, part)
        arguments = ", ".join(
            source.code(argument.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for argument in there[0].args
        )
        code = {"call": source.code(there[0]), "called": source.code(there[0].func), "arguments": arguments}
        text = re.sub(r"\{(call|called|arguments)\}", lambda found: code[found[1]], text)
        self.edits(file).replace(there[0], text)
        self.touched = source.place(source.line_of(there[0]).statement)


def _always(source: Source, call: cst.Call) -> bool:
    """Whether a call switches detection on whatever the script's own settings are."""
    tests = [each.test for each in source.above(call) if isinstance(each, cst.If)]
    if any("__name__" not in source.code(test) for test in tests):
        return False
    mode = next((each.value for each in call.args if each.keyword is None or each.keyword.value == "mode"), None)
    return mode is None or source.code(mode) == "True"
