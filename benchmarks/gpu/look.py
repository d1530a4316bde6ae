"""Parts of a first look at a CUDA device; any of them may fail, and the others go on."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "benchmarks" / "gpu" / "cases"
Found = dict[str, Any]


@dataclass
class Look:
    """How it is looked.

    Args:
        device: its name.
        toy: the smallest sizes: a check of the code on any machine.
        ends: on ``perf_counter``: when this part should be over.
    """

    device: str
    toy: bool
    ends: float

    def left(self, least: float = 1.0) -> float:
        """Seconds that are left."""
        return max(least, self.ends - perf_counter())

    def case(self, name: str) -> str:
        """The import string of one of ``benchmarks.gpu``'s cases."""
        return f"{CASES / (name + '.py')}:{'build_toy' if self.toy else 'build'}"


def machine(look: Look) -> Found:
    """Versions, and the device's clocks at rest and after some seconds of products."""
    import torch

    found: Found = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    if look.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(look.device)
        found |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "cudnn": torch.backends.cudnn.version(),
            "at_rest": _smi(),
        }
        sustained(_product(look, "bf16", 8192), 3.0, look)
        found["after_work"] = _smi()
    found["threads"] = torch.get_num_threads()
    return found


def _smi() -> Found:
    names = ("driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "persistence_mode")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        reported = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"not measured": str(error)}
    return dict(zip(names, (value.strip() for value in reported.splitlines()[0].split(",")), strict=False))


def start_up(look: Look) -> Found:
    """Seconds of what every trial begins with, each in processes of its own: the median of three."""
    first = f"import torch; torch.zeros(1, device={look.device!r}); "
    program = {
        "interpreter": "pass",
        "import_torch": "import torch",
        "open_device": first,
        "first_product": first + f"a = torch.ones(64, 64, device={look.device!r}); (a @ a).sum().item()",
    }
    found: Found = {name: _median_of(lambda code=code: _run_python(code), 3) for name, code in program.items()}
    found["trials"] = _trial_starts(look)
    return found


def _run_python(code: str) -> float:
    began = perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)
    return perf_counter() - began


def _median_of(once: Callable[[], float], times: int) -> float:
    return statistics.median(once() for _ in range(times))


def _trial_starts(look: Look) -> list[Found]:
    """From the start of a trial of ``tiny`` to its first answer, and to a step: the first with a new fork server."""
    found = []
    with trials(look) as start:
        for _ in range(3):
            began = perf_counter()
            with start("tiny") as process:
                ready = perf_counter() - began
                process.call("autoopt.benchmark.tasks:run_block", timeout=120.0, seconds=0.0, min_steps=1)
                found.append({"ready_seconds": ready, "first_step_seconds": perf_counter() - began})
    return found


@contextmanager
def trials(look: Look) -> Iterator[Callable[..., Any]]:
    """``start(case, *changes)``: a trial's process as a search starts it."""
    from autoopt.records import Change, Plan
    from autoopt.records.protocol import TrialSpec
    from autoopt.trial.parent import Launcher

    with tempfile.TemporaryDirectory() as logs, Launcher() as launcher:

        def start(case: str, *changes: tuple[str, Found]) -> Any:
            plan = Plan(changes=tuple(Change(strategy=name, setting=setting) for name, setting in changes))
            spec = TrialSpec(
                workload=look.case(case), plan=plan, device=look.device, directory=str(ROOT), search_path=(str(ROOT),)
            )
            return launcher.start(spec, log=Path(logs) / "trial.log", timeout=look.left(60.0))

        yield start


def device_tests(look: Look) -> Found:
    """``tests/gpu`` to the end."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu", "-m", "gpu"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=look.left(30.0))
    except subprocess.TimeoutExpired as expired:
        out = expired.stdout or b""
        return {"exit_code": None, "tail": (out if isinstance(out, str) else out.decode()).splitlines()[-20:]}
    return {"exit_code": done.returncode, "tail": done.stdout.splitlines()[-20:]}


def peaks(look: Look) -> Found:
    """The doctor's peaks beside rates that are sustained for seconds, and their quotients."""
    import torch

    from autoopt.simplify.peaks import measure

    reported = measure(torch.device(look.device), time_limit=2.0 if look.toy else 6.0)
    seconds, side = (0.1, 256) if look.toy else (3.0, 8192)
    names = {"fp32": "matmul_fp32", "tf32": "matmul_tf32", "bf16": "matmul_bf16", "fp16": "matmul_fp16"}
    found: Found = {}
    for precision, name in names.items():
        if precision == "tf32" and not look.device.startswith("cuda"):
            continue
        rate = 2 * side**3 / sustained(_product(look, precision, side), seconds, look)
        found[precision] = _beside(getattr(reported, f"{name}_flops_per_second"), rate)
    count = (1 << 20) if look.toy else (1 << 30)
    source = torch.zeros(count, device=look.device)
    target = torch.empty_like(source)
    rate = 2 * 4 * count / sustained(lambda: target.copy_(source), seconds, look)
    found["memory"] = _beside(reported.memory_bytes_per_second, rate)
    return found


def _beside(told: float | None, sustained_rate: float) -> Found:
    return {"told": told, "sustained": sustained_rate, "ratio": None if not told else told / sustained_rate}


def _product(look: Look, precision: str, side: int) -> Callable[[], Any]:
    import torch

    from autoopt.benchmark.flags import matmul_precision

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    a, b = (torch.randn(side, side, device=look.device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)

    def product() -> Any:
        with matmul_precision("high" if precision == "tf32" else "highest"):
            return torch.mm(a, b, out=out)

    return product


def sustained(work: Callable[[], Any], seconds: float, look: Look) -> float:
    """Seconds of one call, of many for so long, after as long a warm-up of a tenth."""
    for limit in (0.1 * seconds, seconds):
        wait(look)
        began, calls = perf_counter(), 0
        while perf_counter() - began < limit:
            for _ in range(10):
                work()
            calls += 10
            wait(look)
        passed = perf_counter() - began
    return passed / calls


def wait(look: Look) -> None:
    """Until the device has done all."""
    import torch

    if look.device.startswith("cuda"):
        torch.cuda.synchronize(look.device)


BARE = (("tiny", ()), ("gpt2", ()), ("tiny", (("cuda_graphs", {"whole": True}),)))


def loop_cost(look: Look) -> Found:
    """The measured loop beside a loop by hand over the same training, block by block: what measuring costs."""
    found: Found = {}
    for name, changes in BARE:
        title = " + ".join((name, *(strategy for strategy, _ in changes)))
        try:
            found[title] = _beside_a_bare_loop(look, name, changes)
        except Exception as error:
            found[title] = failed(error)
    return found


def _beside_a_bare_loop(look: Look, name: str, changes: Any) -> Found:
    from autoopt.benchmark.tasks import run_block
    from autoopt.benchmark.trial_context import TrialContext
    from autoopt.records import Change, Plan
    from autoopt.records.protocol import TrialSpec
    from autoopt.registry import load_strategies

    plan = Plan(changes=tuple(Change(strategy=strategy, setting=setting) for strategy, setting in changes))
    spec = TrialSpec(workload=look.case(name), plan=plan, device=look.device, search_path=(str(ROOT),))
    live = TrialContext(spec, load_strategies())
    seconds = 0.05 if look.toy else 1.5
    try:
        bare, measured = _bare(live, look), []
        run_block(live, seconds, 5)
        steps = max(5, round(seconds * 5 / max(bare(5), 1e-9)))
        by_hand = []
        for turn in range(2 if look.toy else 6):
            for mine in (True, False) if turn % 2 else (False, True):
                if mine:
                    block = run_block(live, 0.0, steps)
                    measured.append(block["seconds"] / block["steps"])
                else:
                    by_hand.append(bare(steps) / steps)
    finally:
        live.close()
    ratios = [one / other for one, other in zip(measured, by_hand, strict=True)]
    return {"measured_step": measured, "bare_step": by_hand, "ratio": statistics.median(ratios), "steps": steps}


def _bare(live: Any, look: Look) -> Callable[[int], float]:
    """``bare(steps)``: seconds of steps by hand. One that is recorded as a whole is called as it is."""
    from autoopt.benchmark.transfer import mover

    training = live.training
    whole, move = bool(training.setup.step), mover(training.device.torch, non_blocking=False)
    batches: Any = iter(())

    def following() -> Any:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(training.loader.loader)
            batch = next(batches)
        return batch if move is None else move(batch)

    def bare(steps: int) -> float:
        wait(look)
        began = perf_counter()
        for _ in range(steps):
            batch = following()
            if whole:
                training.one_step([batch])
                continue
            training.optimizer.zero_grad()
            training.loss(training.model, batch).backward()
            training.optimizer.step()
        wait(look)
        return perf_counter() - began

    return bare


def failed(error: BaseException) -> Found:
    """The text in place of figures."""
    return {"not measured": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
