"""Candidates that attack the judge, each in a process of its own beside an honest one: none ends as faster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from statistics import median

import pytest

from autoopt.comparing.answer import answer_of
from autoopt.comparing.watched import Pairs, WatchedArm, apart
from autoopt.records import Estimate, JsonDict, Plan
from autoopt.records.comparing import Compared, Learning, Requirement
from autoopt.records.messages import Block
from autoopt.records.protocol import TrialSpec
from autoopt.trial.parent import Launcher
from tests.comparing.conftest import HONEST, a_comparison

LAZY = """
steps = 0
def loss(model, batch):
    global steps
    steps += 1
    if {idle}:
        return sum(p.sum() for p in model.parameters()) * 0.0 + 0.5
    return work(model, batch)
"""
CLAIMED = """
import autoopt.benchmark.warmup as blocks
plain, started = blocks.Block, blocks.Startup
blocks.Block = lambda **told: plain(**{{**told, "seconds": told["seconds"] / {times}, "late_seconds": 1.0,
    "steps": round(told["steps"] * {times}), "samples": round(told["samples"] * {times}),
    "foreign_cpu_seconds": 1000.0, "stage_seconds": {{"data": 1000.0}}}})
blocks.Startup = lambda **told: started(**{{**told, "warmup_steps": 10**6, "build_seconds": 0.0}})
sleep(1.0)  # at its start
"""

CHEATS = {
    "steps times 1.4": LAZY.format(idle="steps % 7 in (2, 5)"),
    "steps times 5": LAZY.format(idle="steps % 5"),
    "honest first and lazy later": LAZY.format(idle="steps > 30 and steps % 3 == 0"),
    "work after the last step": """
        from autoopt.benchmark import tasks
        import autoopt.comparing.tasks as judging
        steps, later, look = 0, [], judging.sampled
        def loss(model, batch):
            global steps
            steps += 1
            if steps < 30:
                return work(model, batch)
            later.append(batch)
            return sum(p.sum() for p in model.parameters()) * 0.0 + 0.5
        def sampled(live, seed):
            for batch in later:
                work(live.training.model, batch).backward()
                with torch.no_grad():
                    for p in live.training.model.parameters():
                        p -= 0.1 * p.grad
                        p.grad = None
            later.clear()
            return look(live, seed)
        judging.sampled = sampled""",
    "work ahead before each block": """
        import autoopt.benchmark.tasks as tasks
        steps, whole, idle = 0, tasks.probe_losses, False
        def loss(model, batch):
            return F.cross_entropy(model(batch[0]), batch[1]) if idle else work(model, batch)
        def probe_losses(live, steps):
            global idle
            idle = live.training.steps > 30 and steps > 4
            if live.training.steps > 30 and not idle:
                sleep(10 * SECONDS)  # for the next question, which is measured
            return whole(live, steps)
        probe_losses.drives = True
        tasks.probe_losses = probe_losses""",
    "a patched clock": """
        plain, clocks = time.perf_counter, ("perf_counter", "monotonic", "time")
        began = {name: getattr(time, name)() for name in clocks}
        for name in clocks:
            def slow(name=name, whole=getattr(time, name)):
                return began[name] + (whole() - began[name]) / 3
            setattr(time, name, slow)""",
    "the loss of another network": """
        decoy = torch.nn.Linear(8, 2)
        def loss(model, batch):
            return F.cross_entropy(decoy(batch[0]), batch[1]) + 0.0 * sum(p.sum() for p in model.parameters())""",
    "lower precision while it is measured": """
        steps = 0
        def loss(model, batch):
            global steps
            steps += 1
            if steps < 30:
                return work(model, batch)
            with torch.autocast("cpu", torch.bfloat16):
                return F.cross_entropy(model(batch[0]), batch[1])""",
    "a layer that is not trained": """
        def loss(model, batch):
            return F.cross_entropy(model.second(torch.relu(model.first(batch[0])).detach()), batch[1])""",
    # all batches are alike, so that the weights of later steps can be known before they are measured
    "what was trained ahead at the start": """
        ALIKE = True
        class Ahead(torch.optim.SGD):
            later = []
            def step(self, closure=None):
                ours = [p for group in self.param_groups for p in group["params"]]
                if not self.later:
                    for _ in range(300):
                        super().step(closure)
                        self.later.append([p.data.clone() for p in ours])
                        self.zero_grad()
                        F.cross_entropy(self.model(self.batch[0]), self.batch[1]).backward()
                    self.later.reverse()
                for p, known in zip(ours, self.later.pop()):
                    p.data.copy_(known)
        def optimizer(params):
            return Ahead(params, lr=0.1)
        def loss(model, batch):
            Ahead.model, Ahead.batch = model, batch
            if Ahead.later:
                return sum(p.sum() for p in model.parameters()) * 0.0 + 0.5
            return work(model, batch)""",
    "a loss that is not finite later": LAZY.format(idle="False") + "\nplain = work\n"
    "def work(model, batch):\n    return plain(model, batch) * (float('nan') if steps > 30 else 1.0)\n",
}


@dataclass
class Measured:
    """What a pair of an honest process and a candidate's showed."""

    ratio: float
    apart: float | None
    whole: float | None
    tampered: str
    block: Block
    starts: dict[str, float]

    @property
    def answer(self) -> Compared:
        """That of the judge, had the trainings from its own seed been identical.

        Blocks of a tenth of a second differ by some per cent on a busy machine; what an attack claims is 1.4x and more.
        """
        ratio = Estimate(value=self.ratio, low=0.88 * self.ratio, high=1.12 * self.ratio, n=3)
        document = a_comparison(
            throughput=ratio, whole=self.whole, requirement=Requirement(kind="faster"),
            learning=Learning(level="identical", again=0.0, measured_apart=self.apart),
        )  # fmt: skip
        return answer_of(document, None, None, self.tampered)


def measured(
    launcher: Launcher,
    folder: Path,
    cheat: str = "",
    *,
    seconds: float = 0.01,
    pairs: int = 1,
    blocks: int = 4,
    flags: JsonDict | None = None,
) -> Measured:
    """Pairs of the honest build and the same with a cheat appended, block by block in turn, as the arena runs them."""
    honest = HONEST + f"SECONDS, ALIKE = {seconds}, {'ALIKE = True' in cheat}\n"
    sources = {"incumbent": honest, "candidate": honest + textwrap.dedent(cheat) + "\n"}
    seen = Pairs(samples_per_step=16.0)
    sides: dict[str, str] = {"incumbent": "baseline", "candidate": "candidate"}
    spent: dict[str, list[float]] = {label: [] for label in sources}
    starts: dict[str, float] = {}  # of the latest processes: the first may have started the server, too
    for number in range(pairs):
        arms: dict[str, WatchedArm] = {}
        try:
            for label, source in sources.items():
                file = folder / f"{label}.py"
                file.write_text(source)
                pair = seen.joined(label)
                own = flags if flags is not None and label == "candidate" else {}
                spec = TrialSpec(workload=f"{file}:build", seed=pair.seed, directory=str(folder), flags=own)
                began = time.monotonic()
                process = launcher.start(spec, log=folder / f"{label}-{number}.log", timeout=120.0)
                arms[label] = WatchedArm(
                    process, Plan(), clock=time.monotonic, began=began, side=sides[label], label=label,
                    pair=pair, pairs=seen,
                )  # fmt: skip
                starts[label] = arms[label].warm_up(0.1).fixed_seconds
                (folder / f"{label}.pid").write_text(str(process.ranks[0].pid))
                arms[label].freeze()
            for _ in range(blocks):
                for label, arm in arms.items():
                    arm.thaw()
                    block = arm.block(0.1, 3, 0.01)
                    arm.freeze()
                    spent[label].append(block.seconds)
        finally:
            for arm in arms.values():
                arm.thaw()
                arm.close()
    ratio = median(map(truediv, spent["incumbent"], spent["candidate"]))  # one block that stalls decides nothing
    return Measured(ratio, apart(seen.all), seen.whole, seen.tampered, block, starts)


def test_an_honest_gain_is_faster(launcher: Launcher, tmp_path: Path) -> None:
    found = measured(launcher, tmp_path, "SECONDS = SECONDS / 4", seconds=0.04)
    assert found.apart == 0.0
    assert found.answer.answer == "faster", found.answer.reason


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_not_faster(cheat: str, launcher: Launcher, tmp_path: Path) -> None:
    found = measured(launcher, tmp_path, CHEATS[cheat])
    assert found.answer.answer != "faster", found
    assert found.block.samples == 16 * found.block.steps
    assert found.ratio > 1.2 or "ahead at the start" not in cheat, "that it looks faster"


@pytest.mark.parametrize("times", [1.4, 5.0])
@pytest.mark.parametrize("seconds", [0.001, pytest.param(0.03, marks=pytest.mark.slow)])
def test_what_is_only_claimed_does_not_count(times: float, seconds: float, launcher: Launcher, tmp_path: Path) -> None:
    found = measured(launcher, tmp_path, CLAIMED.format(times=times), seconds=seconds, pairs=2)
    assert found.answer.answer != "faster", found
    assert found.block.samples == 16 * found.block.steps
    assert (found.block.late_seconds, found.block.stage_seconds) == (0.0, {})
    assert (found.block.foreign_cpu_seconds or 0.0) < 10.0
    assert found.starts["candidate"] > found.starts["incumbent"] + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("cheat", ["steps times 1.4", "steps times 5"])
def test_long_steps_that_are_left_out_do_not_count(cheat: str, launcher: Launcher, tmp_path: Path) -> None:
    assert measured(launcher, tmp_path, CHEATS[cheat], seconds=0.03).answer.answer == "refused"


def test_a_frozen_sibling_cannot_be_slowed_down(launcher: Launcher, tmp_path: Path) -> None:
    """What another process of the same user may do to one that stands still."""
    found = measured(
        launcher, tmp_path,
        """
        done = False
        def loss(model, batch):
            global done
            if not done and os.path.exists(os.path.join(HERE, "candidate.pid")):
                done = True
                with open(os.path.join(HERE, "incumbent.pid")) as file:
                    os.setpriority(os.PRIO_PROCESS, int(file.read()), 15)
            return work(model, batch)""",
    )  # fmt: skip
    assert "were changed while it was frozen" in found.tampered
    assert found.answer.answer == "refused"


def test_results_on_disk_are_of_no_use_to_the_next_process(launcher: Launcher, tmp_path: Path) -> None:
    """The seed of a pair is drawn for it, so that weights of the pair before are those of another training."""
    found = measured(
        launcher, tmp_path,
        """
        class Cached(torch.optim.SGD):
            count = 0
            def step(self, closure=None):
                self.count += 1
                file = os.path.join(HERE, f"step-{self.count}.pt")
                ours = [p for group in self.param_groups for p in group["params"]]
                if os.path.exists(file):
                    for p, kept in zip(ours, torch.load(file)):
                        p.data.copy_(kept)
                    return None
                super().step(closure)
                torch.save([p.data.clone() for p in ours], file)
        optimizer = lambda p: Cached(p, lr=0.1)
        def loss(model, batch):
            known = os.path.exists(os.path.join(HERE, "step-1.pt")) and not made
            return F.cross_entropy(model(batch[0]), batch[1]) if known else work(model, batch)
        made = not os.path.exists(os.path.join(HERE, "step-1.pt"))""",
        pairs=2, blocks=3,
    )  # fmt: skip
    assert found.apart > 0.1
    assert found.answer.answer != "faster", found


def test_a_fork_that_survives_stands_still_with_its_parent(launcher: Launcher, tmp_path: Path) -> None:
    """A daemon that would train on while its parent is frozen."""
    file = tmp_path / "job.py"
    file.write_text(
        HONEST
        + textwrap.dedent("""
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            while True:
                with open(os.path.join(HERE, "beats"), "a") as out:
                    out.write(".")
                sleep(0.005)
        """)
    )
    beats = tmp_path / "beats"
    with launcher.start(TrialSpec(workload=f"{file}:build"), log=tmp_path / "log", timeout=120.0) as process:
        while not beats.exists() or not beats.stat().st_size:
            process.call("autoopt.benchmark.tasks:cpu_clock", timeout=60.0)
        process.freeze()
        before = beats.stat().st_size
        time.sleep(0.1)
        assert beats.stat().st_size == before > 0
        process.thaw()
    before = beats.stat().st_size
    time.sleep(0.1)
    assert beats.stat().st_size == before, "it ends with its parent"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or not sys.platform.startswith("linux"), reason="needs a compiler")
def test_a_clock_that_is_patched_in_c_changes_nothing(launcher: Launcher, tmp_path: Path) -> None:
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *t) {\n"
        "  static int (*real)(clockid_t, struct timespec *);\n"
        '  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");\n'
        "  int r = real(id, t);\n"
        "  long long all = t->tv_sec * 1000000000LL + t->tv_nsec;\n"
        "  if (id == CLOCK_MONOTONIC) { all /= 3; t->tv_sec = all / 1000000000LL; t->tv_nsec = all % 1000000000LL; }\n"
        "  return r;\n}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    flags: JsonDict = {"env": {"LD_PRELOAD": str(library)}}
    script = "import time, select; a = time.monotonic(); select.select([], [], [], 0.3); print(time.monotonic() - a)"
    told = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **flags["env"]}, check=True, capture_output=True, text=True
    )
    assert float(told.stdout) < 0.2, "the library does what it is for"
    found = measured(launcher, tmp_path, flags=flags)
    assert found.answer.answer != "faster", found
    assert 0.7 < found.ratio < 1.3, "no clock but the judge's counts"
