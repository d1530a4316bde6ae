"""The parts of the exported Trainer code that are the same for every plan; only those that are needed are printed."""

TITLE = {
    "lightning": "What Lightning's arguments cannot say of the plan that autoopt measured for {spec}.",
    "transformers": "What TrainingArguments cannot say of the plan that autoopt measured for {spec}.",
}

LIGHTNING_CLASS = '''
class Optimized(lightning.Callback):
    """Changes a training when it is set up: ``Trainer(..., callbacks=[Optimized()])``."""
'''

LIGHTNING_SETUP = """
    def setup(self, trainer, pl_module, stage):
        if stage != "fit":
            return
"""

WRAP_LOADER = """
for owner in filter(None, (trainer.datamodule, pl_module)):
    if is_overridden("{name}_dataloader", owner):
        owner.{name}_dataloader = {made}(owner.{name}_dataloader)
"""

WRAP_CONFIGURE = """
# The model is on its device when the optimizer is asked for: what changes it comes just before.
configure = pl_module.configure_optimizers
pl_module.configure_optimizers = lambda: self.configured(trainer, pl_module, configure)
"""

LIGHTNING_CHECK = """
    def on_train_start(self, trainer, pl_module):
        if not training_loader.used:
            raise RuntimeError("the plan changes the loader: give fit() a module or datamodule that makes it")
"""

LOADER = '''
def {name}(make):
    """Your DataLoader with what the plan changes; `make` gives yours."""

    def made():
        theirs = make()
        if isinstance(theirs, (list, tuple)) and len(theirs) == 1:
            (theirs,) = theirs
        if type(theirs) is not DataLoader:
            raise TypeError(f"the plan changes a DataLoader; yours is a {{type(theirs).__name__}}")
{inside}
        for generator in own.values():
            generator.manual_seed(torch.initial_seed() % 2**63)
        {name}.used = True
        return changed

    return made


{name}.used = False
'''

PARTS = '''
def parts(made):
    """The optimizer and the configuration of its scheduler, from what configure_optimizers gives."""
    schedule = None
    if isinstance(made, dict):
        made, schedule = made["optimizer"], made.get("lr_scheduler")
    elif isinstance(made, (tuple, list)):
        optimizers, schedules = made if isinstance(made[0], (tuple, list)) else (made, [])
        (made,) = optimizers
        schedule = schedules[0] if schedules else None
    if schedule is not None and not isinstance(schedule, dict):
        schedule = {"scheduler": schedule}
    return made, schedule
'''

SAME = '''
def same(before, after):
    """A Trainer keeps the model that it has: a change has to be made in place."""
    if after is not before:
        raise RuntimeError(f"{type(before).__name__} became another object; wrap it before the Trainer gets it")
'''

SCALED = '''
def scaled(optimizer, factor, warmup_steps):
    """Multiplies the learning rate of each step, on top of whatever schedule sets it.

    The warm-up counts the steps of this process: a run that is resumed warms up once more.
    """
    kept = {"step": 0, "rates": []}

    def before(optimizer, args, kwargs):
        kept["rates"] = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, kept["rates"], strict=True):
            group["lr"] = rate * multiplier(kept["step"], factor, warmup_steps)

    def after(optimizer, args, kwargs):
        for group, rate in zip(optimizer.param_groups, kept["rates"], strict=True):
            group["lr"] = rate
        kept["step"] += 1

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
'''

TRANSFORMERS = '''
def optimized(trainer):
    """Your Trainer, changed in place; call it between making the Trainer and ``train()``."""
'''

WRAP_CREATE = """
create = trainer.create_optimizer

def create_optimizer(*args, **kwargs):
    optimizer = create(*args, **kwargs)
    {scaled}
    return optimizer

trainer.create_optimizer = create_optimizer
"""
