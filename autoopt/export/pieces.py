"""The parts of the exported script that are the same for every plan; only those that are needed are printed."""

SEEDING = '''
def seed_everything(seed):
    """Seeds Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def mix(*parts):
    """A seed made of several, far from that of any other combination."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_state():
    """Where every generator stands; plain data and tensors, so that a checkpoint can hold it."""
    kind, keys, *rest = np.random.get_state()
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    state["numpy"] = (kind, torch.from_numpy(keys.astype(np.int64)), *rest)
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state):
    """Puts every generator where it stood."""
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
'''

TO_DEVICE = '''
def to_device(batch, device):
    """The batch with every tensor on the device, however they are nested."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device{non_blocking})
    if isinstance(batch, Mapping):
        return type(batch)({{key: to_device(value, device) for key, value in batch.items()}})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
'''

MOVED = '''
def moved(batches, device):
    """The batches, each on the device when it is asked for."""
    for batch in batches:
        yield to_device(batch, device)
'''

COPIED_AHEAD = '''
def moved(batches, device, ahead={ahead}):
    """The batches on the device; there, later ones are copied while it computes on this one."""
    if device.type != "cuda":
        for batch in batches:
            yield to_device(batch, device)
        return
    stream = torch.cuda.Stream(device)
    ready = deque()
    for batch in batches:
        with torch.cuda.stream(stream):
            copy = to_device(batch, device)
            done = torch.cuda.Event()
            done.record()
        ready.append((copy, done, batch))  # the source has to live until its copy is done
        if len(ready) > ahead:
            yield arrived(*ready.popleft()[:2])
    while ready:
        yield arrived(*ready.popleft()[:2])


def arrived(batch, done):
    """The batch, safe to use on the stream that computes."""
    stream = torch.cuda.current_stream()
    stream.wait_event(done)
    for _, tensor in tensors(batch):
        if tensor.is_cuda:
            tensor.record_stream(stream)
    return batch
'''

GROUPS = '''
def groups(batches, size):
    """Micro-batches of one optimizer step at a time; the last of an epoch may have fewer."""
    batches = iter(batches)
    while group := list(islice(batches, size)):
        yield group
'''

LOADER_LIKE = '''
def loader_like(theirs, dataset, own, **changes):
    """Your DataLoader once more, with the options that changed.

    What draws the order of samples and had no generator gets one in `own`: the order
    then depends on the seed alone, not on the workers or on what else draws numbers.
    """
    if type(theirs) is not DataLoader:
        return theirs  # a class of your own makes its own loader
    kept = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")
    kept += ("persistent_workers", "multiprocessing_context")
    options = {name: getattr(theirs, name) for name in kept} | changes
    if not options["num_workers"]:  # these are for workers alone
        for name in ("timeout", "prefetch_factor", "persistent_workers"):
            options.pop(name)
        options.pop("multiprocessing_context")
    if theirs._auto_collation or theirs.collate_fn is not default_convert:
        options.setdefault("collate_fn", theirs.collate_fn)
    if theirs.generator is None:
        own["workers"] = torch.Generator()
    options["generator"] = own.get("workers", theirs.generator)
    if isinstance(dataset, IterableDataset):
        options.setdefault("batch_size", theirs.batch_size)
        options.setdefault("drop_last", theirs.drop_last)
        return DataLoader(dataset, **options)
    sampler = getattr(theirs.batch_sampler, "sampler", theirs.sampler)
    if type(sampler) is RandomSampler:
        if sampler.generator is None:
            own["order"] = torch.Generator()
        sampler = RandomSampler(
            dataset if sampler.data_source is theirs.dataset else sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=own.get("order", sampler.generator),
        )
    elif type(sampler) is SequentialSampler:
        sampler = SequentialSampler(dataset)
    if theirs.batch_size is None and theirs.batch_sampler is not None:
        size = options.pop("batch_size", theirs.batch_sampler.batch_size)
        drop_last = options.pop("drop_last", theirs.batch_sampler.drop_last)
        batches = BatchSampler(sampler, size, drop_last)
        return DataLoader(dataset, batch_sampler=batches, **options)
    options.setdefault("batch_size", theirs.batch_size)
    if theirs.batch_size is not None:
        options.setdefault("drop_last", theirs.drop_last)
    return DataLoader(dataset, sampler=sampler, **options)
'''

ON_DEVICE = '''
class OnDevice:
    """Batches on the device, as often as they are read."""

    def __init__(self, loader, device, start):
        self.loader, self.device, self.start = loader, device, start

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self.start(0)
        for batch in self.loader:
            yield to_device(batch, self.device)
'''

EVALUATE = '''
def evaluate(workload, model, batches{device}):
    """Your metrics; training goes on afterwards as if nothing had happened."""
    modes = [(module, module.training) for module in model.modules()]
    generators = random_state()
    model.eval()
    with torch.no_grad(){autocast}:
        metrics = workload.evaluate(model, batches)
    set_random_state(generators)
    for module, mode in modes:
        module.training = mode
    return metrics
'''

SAVE = '''
def save(path, state):
    """Writes a checkpoint so that a reader finds the old one or the new one, never a part."""
    part = f"{path}.part"
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
'''

ARGUMENTS = """
def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=float, help="instead of your planned length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--checkpoint", help="file that is written along the way")
    parser.add_argument("--checkpoint-every", type=int, {checkpoint_every})
    parser.add_argument("--resume", help="checkpoint to go on from")
    parser.add_argument("--evaluate-every", type=int, help="steps between evaluations")
    parser.add_argument("--until-target", action="store_true", help="end at your target")
    parser.add_argument("--target", type=float, help="end where the metric of your target reaches this")
    return parser.parse_args(words)


def default_device():
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
"""

MAIN = """
def main():
    args = arguments()
    began = time.perf_counter()
    for step, loss, metrics in train(args):
        if metrics:
            shown = "  ".join(f"{name} {float(value):.4f}" for name, value in metrics.items())
            spent = time.perf_counter() - began
            print(f"step {step}  {spent:.1f} s  loss {loss.item():.4f}  {shown}", flush=True)
    print(f"{step} steps in {time.perf_counter() - began:.1f} s, last loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
"""
