"""The part of the script that assembles model, loss, optimizer and schedule, and the one optimizer step."""

from __future__ import annotations

from autoopt.export.draft import Draft
from autoopt.export.text import call, literal

_GRAPH_MODES = ("reduce-overhead", "max-autotune")
_CLIP = "clip_grad_norm_"


def flag_lines(draft: Draft) -> list[str]:
    """Switches of the process, set before anything is built."""
    flags = draft.setup.flags
    lines = []
    if flags.get("affinity") is not None:
        draft.use("os")
        lines.append(f"os.sched_setaffinity(0, {{{', '.join(map(str, sorted(flags['affinity'])))}}})")
    if flags.get("threads") is not None:
        lines.append(f"torch.set_num_threads({int(flags['threads'])})  # the workers need cores, too")
    if flags.get("interop_threads") is not None:
        lines.append(f"if torch.get_num_interop_threads() != {int(flags['interop_threads'])}:")
        lines.append(f"    torch.set_num_interop_threads({int(flags['interop_threads'])})")
    if flags.get("cudnn_benchmark") is not None:
        lines.append(f"torch.backends.cudnn.benchmark = {bool(flags['cudnn_benchmark'])}")
    if flags.get("multiprocessing_sharing_strategy"):
        strategy = literal(flags["multiprocessing_sharing_strategy"])
        lines.append(f"torch.multiprocessing.set_sharing_strategy({strategy})")
    if draft.setup.precision.matmul is not None:
        lines.append(f"torch.set_float32_matmul_precision({literal(draft.setup.precision.matmul)})")
    return lines


def loss_lines(draft: Draft) -> list[str]:
    """``loss_of(model, batch)``."""
    if draft.criterion is None:
        draft.inliner.want("autoopt.benchmark.losses", "as_closure")
        lines = ["loss_of = as_closure(workload.loss, device)"]
    elif draft.criterion:
        lines = [
            "criterion = workload.loss",
            "if isinstance(criterion, torch.nn.Module):",
            "    criterion.to(device)",
            "",
            "def loss_of(model, batch):",
            "    inputs, labels = batch",
            "    return criterion(model(inputs), labels)",
            "",
        ]
    else:
        lines = ["loss_of = workload.loss"]
    return lines + [f"loss_of = {call(made, ['loss_of'])}" for made in draft.expressions(draft.setup.loss, "loss")]


def model_lines(draft: Draft) -> list[str]:
    """The model on the device, transformed and compiled."""
    changes = draft.expressions(draft.setup.model, "model")
    lines = ["names = {id(p): name for name, p in workload.model.named_parameters()}"] if _rebuilds(draft) else []
    lines.append("model = workload.model.to(device)")
    lines += [f"model = {call(made, ['model'])}" for made in changes]
    lines += ["model.to(device)"] if changes else []
    lines += ["if not model.training:", "    model.train()"]
    return [*lines, *compile_lines(draft, "model")]


def compile_lines(draft: Draft, name: str) -> list[str]:
    """The model of that name compiled in place, so that the names of its parameters stay."""
    how = draft.setup.compile
    if how is None:
        return []
    keywords = {"mode": literal(how.mode), "dynamic": literal(how.dynamic), "fullgraph": literal(how.fullgraph)}
    keywords = {key: value for key, value in keywords.items() if value not in ("None", "False") or key == "dynamic"}
    if keywords.get("dynamic") == "None":
        del keywords["dynamic"]
    draft.inliner.want("autoopt.benchmark.compiling", "compile_in_place")
    if how.regional:
        draft.inliner.want("autoopt.benchmark.compiling", "repeated_blocks")
        return [
            "# One block is compiled and used for all that are like it: the start is faster.",
            f"modules = dict({name}.named_modules())",
            f"for block in [modules[name] for name in repeated_blocks({name})] or [{name}]:",
            f"    {call('compile_in_place', ['block'], keywords)}",
        ]
    return [call("compile_in_place", [name], keywords)]


def _rebuilds(draft: Draft) -> bool:
    return bool(draft.setup.optimizer or draft.setup.model)


def optimizer_lines(draft: Draft) -> list[str]:
    if not _rebuilds(draft):
        return [
            "optimizer = workload.optimizer",
            "if not isinstance(optimizer, torch.optim.Optimizer):",
            "    optimizer = optimizer(list(model.parameters()))",
        ]
    changes = draft.expressions(draft.setup.optimizer, "optimizer")
    draft.inliner.want("autoopt.benchmark.optimizer", "_Rebuild")
    lines = [
        "factory = workload.optimizer",
        "if isinstance(factory, torch.optim.Optimizer):",
        "    factory = _Rebuild(factory, model, names)",
    ]
    lines += [f"factory = {call(made, ['factory'])}" for made in changes]
    return [*lines, "optimizer = factory(list(model.parameters()))"]


def schedule_lines(draft: Draft) -> list[str]:
    """The scheduler; more than its plain ``step()`` only where the batch or the rate changes."""
    batch = draft.setup.batch
    lines, factory, interval = [], "workload.scheduler", "workload.scheduler_interval"
    changes = draft.expressions(draft.setup.scheduler, "scheduler")
    if changes:
        lines, factory, interval = ["make_scheduler = workload.scheduler"], "make_scheduler", '"step"'
        lines += [f"make_scheduler = {call(made, ['make_scheduler'])}" for made in changes]
    if draft.whole_schedule:
        draft.inliner.want("autoopt.benchmark.schedule", "Schedule")
        keywords = {
            "interval": interval,
            "total_steps": "your_total",
            "steps_ratio": "ratio",
            "factor": literal(batch.learning_rate_factor),
            "warmup_steps": literal(batch.warmup_steps),
        }
        return [*lines, f"schedule = {call('Schedule', ['optimizer', factory], keywords, indent=15)}"]
    if not draft.has_scheduler:
        return []
    draft.use("torch.optim.lr_scheduler", "ReduceLROnPlateau")
    maybe = draft.facts is None and not changes
    lines.append(f"scheduler = {f'{factory} and ' if maybe else ''}{factory}(optimizer, total)")
    each = f'{"scheduler and " if maybe else ""}{interval} == "step"' if not changes else "True"
    return [*lines, f"every_step = {each}", "by_metric = isinstance(scheduler, ReduceLROnPlateau)"]


def step_lines(draft: Draft) -> list[str]:
    """``train_step(batches)``: what a trial's step does, without what the plan does not need."""
    lines = [
        "def train_step(batches):",
        '    """One optimizer step over its micro-batches; returns their mean loss."""',
    ]
    if draft.accumulates:
        draft.inliner.want("autoopt.benchmark.transfer", "samples_of")
        lines += [
            "    counts = [samples_of(batch) or 1 for batch in batches]",
            "    mean = 0.0",
            "    for batch, count in zip(batches, counts, strict=True):",
            *(f"        {line}" for line in _forward(draft, "batch")),
            "        loss = loss * (count / sum(counts))  # a short last one counts for what it holds",
            *(f"        {line}" for line in _backward(draft)),
            "        mean = mean + loss.detach()",
        ]
    else:
        lines += ["    (batch,) = batches"]
        lines += [f"    {line}" for line in (*_forward(draft, "batch"), *_backward(draft))]
        lines += ["    mean = loss.detach()"]
    lines += [f"    {line}" for line in _update(draft)]
    lines += ["    return mean", ""]
    return lines + [
        f"train_step = {call(made, ['train_step'])}" for made in draft.expressions(draft.setup.step, "step")
    ]


def _forward(draft: Draft, batch: str) -> list[str]:
    lines = []
    if draft.setup.compile is not None and draft.setup.compile.mode in _GRAPH_MODES:
        lines += ['if device.type == "cuda":', "    torch.compiler.cudagraph_mark_step_begin()"]
    if draft.dtype is None:
        return [*lines, f"loss = loss_of(model, {batch})"]
    return [
        *lines,
        f"with torch.autocast(device.type, dtype=torch.{draft.dtype}):",
        f"    loss = loss_of(model, {batch})",
    ]


def _backward(draft: Draft) -> list[str]:
    return ["scaler.scale(loss).backward()" if draft.setup.precision.loss_scaling else "loss.backward()"]


def _update(draft: Draft) -> list[str]:
    scaling = draft.setup.precision.loss_scaling
    lines = []
    if draft.clips:
        clip = ["scaler.unscale_(optimizer)"] if scaling else []
        clip += [
            'params = [p for group in optimizer.param_groups for p in group["params"]]',
            "torch.nn.utils.clip_grad_norm_(params, workload.clip_grad_norm)",
        ]
        unknown = draft.facts is None
        lines += ["if workload.clip_grad_norm is not None:", *(f"    {line}" for line in clip)] if unknown else clip
    lines += ["scaler.step(optimizer)", "scaler.update()"] if scaling else ["optimizer.step()"]
    return [*lines, "optimizer.zero_grad(set_to_none=True)"]


def after_step_lines(draft: Draft) -> list[str]:
    """The learning rate moves on beside the step, not within it: a step may be a recorded one."""
    if draft.whole_schedule:
        return ["schedule.step()"]
    if draft.has_scheduler:
        return ["if every_step and not by_metric:", "    scheduler.step()"]
    return []
