"""The part of the script that runs the steps: how many, in which order, with checkpoints."""

from __future__ import annotations

from autoopt.export.assembly import (
    after_step_lines,
    flag_lines,
    loss_lines,
    model_lines,
    optimizer_lines,
    schedule_lines,
    step_lines,
)
from autoopt.export.draft import Draft
from autoopt.export.text import indented, literal


def train_function(draft: Draft, build: str) -> str:
    """``train(args)``: a generator over the optimizer steps."""
    lines = [
        '"""Trains; yields (step, loss, metrics) after each optimizer step.',
        "",
        "The loss is still on the device; metrics are empty where nothing was evaluated.",
        '"""',
        "device = torch.device(args.device)",
        *flag_lines(draft),
        "seed_everything(args.seed)",
        *_build(draft, build),
        *_loaders(draft),
        *length_lines(draft),
        "",
        *loss_lines(draft),
        *model_lines(draft),
        *optimizer_lines(draft),
        *schedule_lines(draft),
    ]
    if draft.setup.precision.loss_scaling:
        lines.append("scaler = torch.amp.GradScaler(device.type)")
    lines += ["", *step_lines(draft), *_state(draft), *_steps(draft)]
    return "def train(args):\n" + indented("\n".join(lines))


def _build(draft: Draft, build: str) -> list[str]:
    if not draft.adapted:
        return [f"workload = {build}()"]
    draft.use("autoopt.adapters", "adapt")
    return [
        f"# {build}() gives objects of {draft.adapted}: taken apart into model, data, loss and optimizer.",
        f"workload = adapt({build}())",
    ]


def _loaders(draft: Draft) -> list[str]:
    if draft.odd_loader:
        lines = ["loaded = training_loader(workload, args.seed)", "loader = loaded.loader"]
        if draft.has_evaluate:
            lines.append("checked = validation_loader(workload, args.seed)")
        return lines
    lines = ["loader, own = training_loader(workload)"]
    if draft.has_evaluate:
        made = "validation_loader(workload)"
        lines.append(
            f"valid_loader, valid_own = {made if draft.facts else f'{made} if workload.evaluate else (None, {{}})'}"
        )
    return lines


def length_lines(draft: Draft) -> list[str]:
    """How many optimizer steps the run and an epoch have; the same samples, whatever the batch."""
    batch, cadence = draft.setup.batch, draft.setup.cadence
    if draft.known_length or draft.moves_batch:
        draft.use("math", "ceil")
    accumulation = literal(batch.accumulation) if batch.accumulation else "workload.accumulation"
    lines = [f"accumulation = {accumulation}"]
    if not draft.known_length:
        lines += ["total = your_total = workload.max_steps"]
        lines += _ratio_by_size(draft) if draft.moves_batch else ["ratio = 1.0"] * draft.whole_schedule
        if draft.moves_batch:
            lines.append("total = max(1, ceil(your_total / ratio - 1e-9))")
        own = "workload.evaluate_every or max(1, your_total // 10)"
    else:
        lines += _known(draft)
        own = "workload.evaluate_every or " + ("your_steps" if draft.moves_batch else "steps_per_epoch")
    if cadence.evaluate_every:
        own = literal(cadence.evaluate_every)
    elif draft.moves_batch:
        own = f"max(1, round(({own}) / ratio))"
    return [*lines, f"evaluate_every = args.evaluate_every or {own}"]


def _known(draft: Draft) -> list[str]:
    lines = ["steps_per_epoch = max(1, ceil(len(loader) / accumulation))"]
    if not draft.moves_batch:
        lines += [
            "epochs = args.epochs or workload.max_epochs",
            "total = max(1, ceil(epochs * steps_per_epoch)) if epochs else workload.max_steps",
        ]
        return lines + (["your_total, ratio = total, 1.0"] if draft.whole_schedule else [])
    if draft.own_loader:
        lines.append("your_batches = len(workload.train_data)")
    elif draft.own_loader is False:
        lines.append("your_batches = ceil(len(workload.train_data) / workload.batch_size)")
    else:
        lines.append("your_batches = ceil(len(workload.train_data) / (workload.batch_size or 1))")
    return [
        *lines,
        "your_steps = max(1, ceil(your_batches / workload.accumulation))",
        "ratio = your_steps / steps_per_epoch  # of your steps that one of these stands for",
        "epochs = args.epochs or workload.max_epochs",
        "your_total = max(1, ceil(epochs * your_steps)) if epochs else workload.max_steps",
        "total = max(1, ceil(your_total / ratio - 1e-9))",
    ]


def _ratio_by_size(draft: Draft) -> list[str]:
    theirs = "workload.train_data.batch_size" if draft.own_loader else "workload.batch_size"
    return [f"ratio = loader.batch_size * accumulation / ({theirs} * workload.accumulation)"]


def _state(draft: Draft) -> list[str]:
    """``state()`` for checkpoints, and going on from one."""
    schedule = "schedule" if draft.whole_schedule else "scheduler" if draft.has_scheduler else ""
    maybe = draft.facts is None and schedule == "scheduler"
    lines = ["step = epoch = batch = 0"]
    if draft.odd_loader:
        lines.append("generators = []")
    elif draft.own_loader is not False:
        lines += [
            'sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)',
            'found = (loader.generator, getattr(sampler, "generator", None))',
            "yours = [g for g in found if g is not None and g not in own.values()]",
            "generators = []",
        ]
    lines += ["", "def state():", "    return {"]
    lines += ['        "model": model.state_dict(),', '        "optimizer": optimizer.state_dict(),']
    if schedule:
        lines.append(f'        "schedule": {schedule}{" and scheduler" if maybe else ""}.state_dict(),')
    if draft.setup.precision.loss_scaling:
        lines.append('        "scaler": scaler.state_dict(),')
    lines += [
        '        "random": random_state(),',
        '        "place": (step, epoch, batch),',
        *(['        "generators": generators,'] if draft.own_loader is not False else []),
        "    }",
        "",
        "resumed = None",
        'seed_everything(mix(args.seed, "steps") % 2**32)  # whatever was drawn so far',
        "if args.resume:",
        '    resumed = torch.load(args.resume, map_location="cpu", weights_only=True)',
        '    model.load_state_dict(resumed["model"])',
        '    optimizer.load_state_dict(resumed["optimizer"])',
    ]
    if schedule and maybe:
        lines += ["    if scheduler:", '        scheduler.load_state_dict(resumed["schedule"])']
    elif schedule:
        lines.append(f'    {schedule}.load_state_dict(resumed["schedule"])')
    if draft.setup.precision.loss_scaling:
        lines.append('    scaler.load_state_dict(resumed["scaler"])')
    return [*lines, '    step, epoch, batch = resumed["place"]']


def _epoch_start(draft: Draft) -> list[str]:
    if draft.odd_loader:
        return [
            "if resumed:",
            '    loaded.generators.set_state(resumed["generators"])',
            "loaded.generators.start_epoch(epoch)",
            "generators = loaded.generators.state()",
            "for shield in loaded.shields:",
            "    shield.epoch = epoch",
        ]
    lines = []
    if draft.own_loader is not False:
        lines += [
            "if resumed:",
            '    for generator, at in zip(yours, resumed["generators"], strict=True):',
            "        generator.set_state(at)",
            "generators = [generator.get_state() for generator in yours]",
        ]
    return [
        *lines,
        "for name, generator in own.items():",
        '    generator.manual_seed(mix(args.seed, "train", name, epoch))',
    ]


def _steps(draft: Draft) -> list[str]:
    draft.use("itertools", "islice")
    lines = ["", *_validation(draft), "while step < total:"]
    inner = _epoch_start(draft)
    inner += _told(draft)
    inner += [
        "batches = iter(loader)",
        "if resumed:  # read over what was trained already",
        "    for _ in islice(batches, batch):",
        "        pass",
        '    set_random_state(resumed["random"])',
        "    resumed = None",
        "for group in groups(moved(batches, device), accumulation):",
        "    loss = train_step(group)",
        *(f"    {line}" for line in after_step_lines(draft)),
        "    step += 1",
        "    batch += len(group)",
        "    metrics = {}",
        *(f"    {line}" for line in _after_step(draft)),
        "    yield step, loss, metrics",
        *(f"    {line}" for line in _ends(draft)),
        "    if step >= total:",
        "        return",
        "epoch, batch = epoch + 1, 0",
    ]
    if draft.whole_schedule:
        inner.append("schedule.epoch()")
    elif draft.has_scheduler:
        inner += [f"if {_maybe(draft)}not every_step and not by_metric:", "    scheduler.step()"]
    return lines + [f"    {line}" for line in inner]


def _maybe(draft: Draft) -> str:
    return "scheduler and " if draft.facts is None else ""


def _told(draft: Draft) -> list[str]:
    """Samplers and datasets that want to know the epoch; and the number that persistent workers do not draw."""
    lines = [
        "for part in (loader.sampler, loader.batch_sampler, loader.dataset):",
        '    if hasattr(part, "set_epoch"):',
        "        part.set_epoch(epoch)",
    ]
    if draft.own_loader is not False:
        lines += [
            "if loader.persistent_workers and loader._iterator is not None:",
            "    # such a loader does not draw its workers' seed again; your generator moves on",
            "    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)",
        ]
    return lines


def _validation(draft: Draft) -> list[str]:
    if not draft.has_evaluate:
        return []
    if draft.odd_loader:
        return ["valid = OnDevice(checked.loader, device, checked.generators.start_epoch)", ""]
    return [
        "def start_validation(epoch):",
        "    for name, generator in valid_own.items():",
        '        generator.manual_seed(mix(args.seed, "valid", name, epoch))',
        "",
        "valid = OnDevice(valid_loader, device, start_validation)",
        "",
    ]


def _after_step(draft: Draft) -> list[str]:
    lines = []
    if draft.has_evaluate:
        autocast = ", device" if draft.dtype else ""
        due = "step % evaluate_every == 0 or step == total"
        due = due if draft.facts else f"({due})"
        lines += [
            f"if {'' if draft.facts else 'workload.evaluate and '}{due}:",
            f"    metrics = evaluate(workload, model, valid{autocast})",
        ]
        if draft.whole_schedule:
            lines += ["    if workload.target:", "        schedule.evaluated(float(metrics[workload.target.metric]))"]
        elif draft.has_scheduler:
            lines += [
                "    if by_metric and workload.target:",
                "        scheduler.step(metrics[workload.target.metric])",
            ]
    own = draft.setup.cadence.checkpoint_every
    every = f"(args.checkpoint_every or {own or 'evaluate_every'})"
    return [
        *lines,
        f"if args.checkpoint and (step % {every} == 0 or step == total):",
        "    save(args.checkpoint, state())",
    ]


def _ends(draft: Draft) -> list[str]:
    if not draft.has_evaluate:
        return []
    return [
        "if metrics and workload.target:",
        '    value, most = metrics[workload.target.metric], workload.target.direction == "max"',
        "    if args.until_target and workload.target.reached(value):",
        "        return",
        "    if args.target is not None and (value >= args.target if most else value <= args.target):",
        "        return",
    ]
