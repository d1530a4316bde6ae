"""The training run of an exported script: the same steps as a trial's, without what the plan does not need."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from autoopt.adapters import adapt
from autoopt.benchmark.batch_iterator import behind
from autoopt.benchmark.compiling import compile_blocks, compile_in_place
from autoopt.benchmark.evaluation import evaluating
from autoopt.benchmark.flags import keep_freed_memory
from autoopt.benchmark.loader import recollate, reorder
from autoopt.benchmark.losses import Loss
from autoopt.benchmark.optimizer import rebuilding
from autoopt.benchmark.schedule import Schedule
from autoopt.benchmark.seeding import mix, random_state, seed_everything, set_random_state
from autoopt.benchmark.training_step import TrainingStep
from autoopt.export.printed import plan
from autoopt.export.printed.data import (
    OnDevice,
    groups,
    moved,
    odd_training_loader,
    odd_validation_loader,
    training_loader,
    validation_loader,
)


def set_switches() -> None:
    """The switches of the process, before anything is built."""
    if plan.affinity is not None:
        os.sched_setaffinity(0, plan.affinity)
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)  # the workers need cores, too
    if plan.interop_threads is not None and torch.get_num_interop_threads() != plan.interop_threads:
        torch.set_num_interop_threads(plan.interop_threads)
    if plan.cudnn_benchmark is not None:
        torch.backends.cudnn.benchmark = plan.cudnn_benchmark
    for switch in plan.attention_switches:
        switch(False)
    if plan.keep_freed_memory is not None:
        keep_freed_memory()
    if plan.multiprocessing_sharing_strategy is not None:
        torch.multiprocessing.set_sharing_strategy(plan.multiprocessing_sharing_strategy)  # type: ignore[no-untyped-call]
    if plan.matmul is not None:
        torch.set_float32_matmul_precision(plan.matmul)


def make_loss(workload: Any, device: torch.device) -> Loss:
    """``loss_of(model, batch)``."""
    loss_of: Loss = workload.loss
    if plan.criterion:
        loss_of = criterion_loss(loss_of, device)
    for change in plan.loss:
        loss_of = change(loss_of)
    return loss_of


def criterion_loss(criterion: Any, device: torch.device) -> Loss:
    """A criterion for (input, label) batches."""
    if isinstance(criterion, nn.Module):
        criterion.to(device)

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, labels = batch
        loss: torch.Tensor = criterion(model(inputs), labels)
        return loss

    return loss_of


def make_model(workload: Any, device: torch.device) -> nn.Module:
    """The model on the device, as the plan has it."""
    model: nn.Module = workload.model.to(device)
    if plan.model:
        for change in plan.model:
            model = change(model)
        model.to(device)
    if not model.training:
        model.train()
    if plan.compiles:
        compile_model(model)
    return model


def compile_model(model: nn.Module) -> None:
    """Compiles in place, so that the names of parameters stay."""
    if plan.regional:
        compile_blocks(model, **plan.compile_options)
    else:
        compile_in_place(model, **plan.compile_options)


def make_optimizer(workload: Any, model: nn.Module, names: dict[int, str] | None = None) -> torch.optim.Optimizer:
    """Your optimizer over the model as it is now."""
    factory = workload.optimizer
    if plan.rebuilds:
        if isinstance(factory, torch.optim.Optimizer):
            factory = rebuilding(factory, model, names or {})
        for change in plan.optimizer:
            factory = change(factory)
    else:
        if isinstance(factory, torch.optim.Optimizer):
            return factory
    optimizer: torch.optim.Optimizer = factory(list(model.parameters()))
    return optimizer


def your_batches(workload: Any) -> int:
    """Batches of an epoch as you planned it."""
    if plan.own_loader:
        return len(workload.train_data)
    return ceil(len(workload.train_data) / (workload.batch_size or 1))


def evaluate(workload: Any, model: nn.Module, batches: Any, device: torch.device) -> Any:
    """Your metrics; training goes on afterwards as if nothing had happened."""
    with evaluating(model):
        if plan.dtype is None:
            return workload.evaluate(model, batches)
        with torch.autocast(device.type, dtype=plan.dtype):
            return workload.evaluate(model, batches)


def save(path: str, state: dict[str, Any]) -> None:
    """Writes a checkpoint so that a reader finds the old one or the new one, never a part."""
    part = f"{path}.part"
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def graph_marker(device: torch.device) -> Callable[[], None] | None:
    """The call that notifies CUDA graphs that a step begins; there are none on other devices."""
    return torch.compiler.cudagraph_mark_step_begin if device.type == "cuda" else None


class Run:
    """A training run of your workload, from its seed on."""

    def __init__(self, args: argparse.Namespace) -> None:
        if plan.sets_switches:
            set_switches()
        self.args, self.device = args, torch.device(args.device)
        seed_everything(args.seed)
        workload: Any = plan.build()
        if plan.adapted:
            workload = adapt(workload)  # the objects of a Trainer
        self.workload = workload
        self.make_loaders()
        self.accumulation: int = workload.accumulation if plan.accumulation is None else plan.accumulation
        self.count_steps()
        loss_of = make_loss(workload, self.device)
        names = {id(p): name for name, p in workload.model.named_parameters()} if plan.rebuilds else None
        self.model = make_model(workload, self.device)
        self.optimizer = make_optimizer(workload, self.model, names=names)
        if plan.has_scheduler:
            self.make_scheduler()
        self.scaler = torch.amp.GradScaler(self.device.type) if plan.scales_loss else None
        self.train_step: Any = TrainingStep(
            self.model,
            loss_of,
            self.optimizer,
            autocast=None if plan.dtype is None else torch.autocast(self.device.type, dtype=plan.dtype),
            scaler=self.scaler,
            clip=workload.clip_grad_norm if plan.clips else None,
            begin=graph_marker(self.device) if plan.marks_steps else None,
        )
        for change in plan.step:
            self.train_step = change(self.train_step)
        self.step = self.epoch = self.batch = 0
        self.generators: list[torch.Tensor] = []
        self.resumed: dict[str, Any] | None = None
        seed_everything(mix(args.seed, "steps") % 2**32)  # whatever was drawn so far
        if args.resume:
            self.resume(torch.load(args.resume, map_location="cpu", weights_only=True))

    def make_loaders(self) -> None:
        """The loaders; where they have generators of their own, an epoch and an evaluation seed them."""
        workload = self.workload
        if plan.odd_loader:
            self.loaded = odd_training_loader(workload, self.args.seed)
            self.loader = self.loaded.loader
            if plan.has_evaluate:
                checked = odd_validation_loader(workload, self.args.seed)
                self.valid = OnDevice(checked.loader, self.device, checked.generators.start_epoch)
        else:
            self.loader, self.own = training_loader(workload)
            if plan.own_loader:
                sampler = getattr(self.loader.batch_sampler, "sampler", self.loader.sampler)
                found = (self.loader.generator, getattr(sampler, "generator", None))
                self.yours = [g for g in found if g is not None and g not in self.own.values()]
            if plan.has_evaluate:
                valid_loader, valid_own = validation_loader(workload)

                def start(epoch: int) -> None:
                    for name, generator in valid_own.items():
                        generator.manual_seed(mix(self.args.seed, "valid", name, epoch))

                self.valid = OnDevice(valid_loader, self.device, start)
        for change in plan.sampler:
            reorder(self.loader, change)
        for change in plan.collate:
            recollate(self.loader, change)

    def count_steps(self) -> None:
        """Optimizer steps of the run and between evaluations; the same samples, whatever the batch."""
        workload, args = self.workload, self.args
        if plan.whole_schedule:
            self.ratio = 1.0
        if plan.known_length:
            steps_per_epoch = max(1, ceil(len(self.loader) / self.accumulation))
            your_steps = steps_per_epoch
            if plan.moves_batch:
                your_steps = max(1, ceil(your_batches(workload) / workload.accumulation))
                self.ratio = your_steps / steps_per_epoch  # of your steps that one of these stands for
            epochs = args.epochs or workload.max_epochs
            self.your_total = max(1, ceil(epochs * your_steps)) if epochs else workload.max_steps
        else:
            self.your_total = workload.max_steps
            if plan.moves_batch:
                yours = workload.train_data.batch_size if plan.own_loader else workload.batch_size
                size: Any = self.loader.batch_size
                self.ratio = size * self.accumulation / (yours * workload.accumulation)
        self.total = self.your_total
        if plan.moves_batch:
            self.total = max(1, ceil(self.your_total / self.ratio - 1e-9))
        if plan.evaluate_every is None:
            usual = your_steps if plan.known_length else max(1, self.your_total // 10)
            every: int = workload.evaluate_every or usual
            if plan.moves_batch:
                every = max(1, round(every / self.ratio))
            self.evaluate_every = args.evaluate_every or every
        else:
            self.evaluate_every = args.evaluate_every or plan.evaluate_every

    def make_scheduler(self) -> None:
        """The schedule of the learning rate."""
        make, interval = self.workload.scheduler, self.workload.scheduler_interval
        if plan.scheduler:
            interval = "step"
            for change in plan.scheduler:
                make = change(make)
        if plan.whole_schedule:
            self.scheduler: Any = Schedule(
                self.optimizer,
                make,
                interval=interval,
                total_steps=self.your_total,
                steps_ratio=self.ratio,
                factor=plan.learning_rate_factor,
                warmup_steps=plan.warmup_steps,
            )
        else:
            self.scheduler = make(self.optimizer, self.total)
            self.moves = "metric" if isinstance(self.scheduler, ReduceLROnPlateau) else interval

    def state(self) -> dict[str, Any]:
        """All that is needed to go on with the same losses."""
        state: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if plan.has_scheduler:
            state["scheduler"] = self.scheduler.state_dict()
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        place = (self.step, self.epoch, self.batch)
        return {**state, "random": random_state(), "place": place, "generators": self.generators}

    def resume(self, state: dict[str, Any]) -> None:
        """Goes to where a checkpoint was written."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if plan.has_scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.step, self.epoch, self.batch = state["place"]
        self.resumed = state

    def start_epoch(self) -> Iterator[Any]:
        """The batches of the epoch, in the order that depends on seed and epoch alone."""
        if plan.odd_loader:
            if self.resumed:
                self.loaded.generators.set_state(self.resumed["generators"])
            self.loaded.generators.start_epoch(self.epoch)
            self.generators = self.loaded.generators.state()
        else:
            if plan.own_loader:
                if self.resumed:
                    for generator, at in zip(self.yours, self.resumed["generators"], strict=True):
                        generator.set_state(at)
                self.generators = [generator.get_state() for generator in self.yours]
            for name, generator in self.own.items():
                generator.manual_seed(mix(self.args.seed, "train", name, self.epoch))
        loader: Any = self.loader
        for part in (loader.sampler, loader.batch_sampler, loader.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
        if plan.own_loader and loader.persistent_workers and loader._iterator is not None:
            # such a loader does not draw its workers' seed again; your generator moves on
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        batches: Iterator[Any] = (
            behind(loader, self.batch if self.resumed else 0) if plan.same_samples else iter(loader)
        )
        if self.resumed:  # what was trained already is passed over
            if not plan.same_samples:
                for _ in islice(batches, self.batch):
                    pass
            set_random_state(self.resumed["random"])
            self.resumed = None
        return batches

    def steps(self) -> Iterator[tuple[int, torch.Tensor, dict[str, Any]]]:
        """Trains to the planned end; see ``train``."""
        args = self.args
        while self.step < self.total:
            for group in groups(moved(self.start_epoch(), self.device), self.accumulation):
                loss = self.train_step(group)
                if plan.whole_schedule:
                    self.scheduler.step()
                else:
                    if plan.has_scheduler and self.moves == "step":
                        self.scheduler.step()
                self.step += 1
                self.batch += len(group)
                metrics = self.evaluated() if plan.has_evaluate else {}
                last = self.step == self.total
                every = args.checkpoint_every or (plan.checkpoint_every or self.evaluate_every)
                if args.checkpoint and (last or self.step % every == 0):
                    save(args.checkpoint, self.state())
                yield self.step, loss, metrics
                if plan.has_evaluate and metrics and self.enough(metrics):
                    return
                if last:
                    return
            self.epoch, self.batch = self.epoch + 1, 0
            if plan.whole_schedule:
                self.scheduler.epoch()
            else:
                if plan.has_scheduler and self.moves == "epoch":
                    self.scheduler.step()

    def evaluated(self) -> dict[str, Any]:
        """Your metrics where it is time for them, else none."""
        workload = self.workload
        if self.step % self.evaluate_every != 0 and self.step != self.total:
            return {}
        metrics: dict[str, Any] = evaluate(workload, self.model, self.valid, self.device)
        if plan.has_scheduler and workload.target:
            value = float(metrics[workload.target.metric])
            if plan.whole_schedule:
                self.scheduler.evaluated(value)
            else:
                if self.moves == "metric":
                    self.scheduler.step(value)
        return metrics

    def enough(self, metrics: dict[str, Any]) -> bool:
        """Whether your target's metric is what the command line asks for."""
        args, target = self.args, self.workload.target
        if not target:
            return False
        value = metrics[target.metric]
        if args.until_target and target.reached(value):
            return True
        if args.target is None:
            return False
        return bool(value >= args.target if target.direction == "max" else value <= args.target)


def train(args: argparse.Namespace) -> Iterator[tuple[int, torch.Tensor, dict[str, Any]]]:
    """Trains; yields (step, loss, metrics) after each optimizer step.

    The loss is still on the device; metrics are empty where nothing was evaluated.
    """
    yield from Run(args).steps()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=float, help="instead of your planned length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--checkpoint", help="file that is written along the way")
    parser.add_argument("--checkpoint-every", type=int, help="steps between checkpoints")
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--evaluate-every", type=int, help="steps between evaluations")
    parser.add_argument("--until-target", action="store_true", help="end at your target")
    parser.add_argument("--target", type=float, help="end where the metric of your target reaches this")
    return parser.parse_args(words)


def default_device() -> str:
    """The fastest that is there."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def main() -> None:
    """Trains, and reports each evaluation."""
    args = arguments()
    began = time.perf_counter()
    for step, loss, metrics in train(args):
        if metrics:
            shown = "  ".join(f"{name} {float(value):.4f}" for name, value in metrics.items())
            spent = time.perf_counter() - began
            print(f"step {step}  {spent:.1f} s  loss {loss.item():.4f}  {shown}", flush=True)
    print(f"{step} steps in {time.perf_counter() - began:.1f} s, last loss {loss.item():.4f}")
