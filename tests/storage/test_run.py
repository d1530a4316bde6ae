"""Durable steps: measured once, whatever happens in between."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.errors import DocumentError, Interrupted, TrialFailed, UsageError
from autoopt.events import Announcer, Event, PhaseStarted, RunEnded, Stopped, TrialEnded, TrialProgress, Warned
from autoopt.records import JsonDict, Record, Result, Verdict
from autoopt.storage import run as run_module
from autoopt.storage.interrupts import Interrupts
from autoopt.storage.journal import read_journal
from autoopt.storage.run import KILLED, Run
from autoopt.storage.run_directory import RunDirectory

PRINT = {"code": {"sources": {"a.py": "1"}}, "environment": {"torch": "2.13.0"}, "device": {}, "options": {}}


class Figure(Record):
    value: float


class Seconds:
    """A clock that a test moves; a new process starts it somewhere else."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Killed(BaseException):
    """Stands for SIGKILL: nothing that runs afterwards may write."""


@pytest.fixture(scope="module", autouse=True)
def unsynced() -> Iterator[None]:
    """What has reached the disk is cut by hand here: to wait for it took most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def new(path: Path, clock: Callable[[], float] | None = None, **options: object) -> Run:
    path.mkdir(exist_ok=True)
    return Run.create(RunDirectory(path), PRINT, dict(options), monotonic=clock or Seconds())


def again(path: Path, clock: Callable[[], float] | None = None) -> Run:
    run = Run.resume(RunDirectory(path), monotonic=clock or Seconds(5.0))
    run.check_fingerprint(PRINT)
    return run


def kill(run: Run, kind: str = "trial", **key: object) -> None:
    """A step during which the process is killed."""

    def measure() -> Figure:
        run._journal.close()
        raise Killed

    with pytest.raises((Killed, OSError)):
        run.step(kind, dict(key), measure, Figure)


def never() -> Figure:
    raise AssertionError("measured again")


def test_a_step_is_measured_once_and_read_back(tmp_path: Path) -> None:
    with new(tmp_path) as run:
        assert run.step("trial", {"n": 1, "m": 2}, lambda: Figure(value=1.5), Figure).value == 1.5
    with again(tmp_path) as run:
        assert run.step("trial", {"m": 2, "n": 1}, never, Figure).value == 1.5


def test_a_repeated_key_is_another_step(tmp_path: Path) -> None:
    with new(tmp_path) as run:
        assert [run.step("t", {}, lambda v=v: Figure(value=v), Figure).value for v in (1, 2)] == [1, 2]
    with again(tmp_path) as run:
        assert [run.step("t", {}, never, Figure).value for _ in range(2)] == [1, 2]
        assert run.step("t", {}, lambda: Figure(value=3), Figure).value == 3


def test_a_failure_is_recorded_and_replayed(tmp_path: Path) -> None:
    def fail() -> Figure:
        raise TrialFailed("out_of_memory", "no room", detail="log", where="step")

    with new(tmp_path) as run, pytest.raises(TrialFailed):
        run.step("trial", {}, fail, Figure)
    with again(tmp_path) as run, pytest.raises(TrialFailed) as caught:
        run.step("trial", {}, never, Figure)
    error = caught.value
    assert (error.kind, error.message, error.detail, error.where) == ("out_of_memory", "no room", "log", "step")


def state(boot: str | None, oom_kills: int | None) -> JsonDict:
    return {"boot": boot, "oom_kills": oom_kills}


@pytest.mark.parametrize(
    "machines",
    [
        [state("a", 0), state("b", 0), state("c", 0)],
        [state("a", 0), state("a", 1), state("a", 2)],
        [state("a", 5), state("b", 0), state("b", 1)],
    ],
    ids=["booted", "out of memory", "both"],
)
def test_a_step_that_takes_the_machine_down_twice_is_not_tried_a_third_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: list[JsonDict]
) -> None:
    for number, then in enumerate(machines[:2]):
        monkeypatch.setattr(run_module, "machine", lambda then=then: then)
        kill(again(tmp_path) if number else new(tmp_path))
    monkeypatch.setattr(run_module, "machine", lambda: machines[2])
    for _ in range(2):
        with again(tmp_path) as run, pytest.raises(TrialFailed, match=KILLED) as caught:
            run.step("trial", {}, never, Figure)
        assert caught.value.kind == "crashed"


@pytest.mark.parametrize("machines", [[state("a", 0), state("b", 0)], [state("a", 3)], [state(None, None)]])
def test_a_step_during_which_somebody_kills_the_run_is_always_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: list[JsonDict]
) -> None:
    for number in range(20):
        monkeypatch.setattr(run_module, "machine", lambda number=number: machines[number * len(machines) // 20])
        kill(again(tmp_path) if number else new(tmp_path))
    with again(tmp_path) as run:
        assert run.step("trial", {}, lambda: Figure(value=1), Figure).value == 1


def test_a_step_broken_off_by_the_user_does_not_count_as_crashed(tmp_path: Path) -> None:
    def stop() -> Figure:
        raise Interrupted("Ctrl-C")

    for open_run in (new, again, again):
        with open_run(tmp_path) as run, pytest.raises(Interrupted):
            run.step("trial", {}, stop, Figure)
    with again(tmp_path) as run:
        assert run.step("trial", {}, lambda: Figure(value=1), Figure).value == 1


def test_downtime_is_not_charged(tmp_path: Path) -> None:
    clock = Seconds(1000.0)
    with new(tmp_path, clock) as run:
        clock.now += 30
        assert run.clock.elapsed() == 30
        run.step("trial", {}, lambda: setattr(clock, "now", clock.now + 12) or Figure(value=1), Figure)
    clock.now += 86_400
    with again(tmp_path, clock) as run:
        assert run.clock.elapsed() == 0, "what is decided before the first step is decided as at first"
        run.step("trial", {}, never, Figure)
        assert run.clock.elapsed() == 42
        clock.now += 5
        assert run.clock.elapsed() == 47


def test_the_clock_stands_at_each_recorded_time_while_a_run_is_read_back(tmp_path: Path) -> None:
    clock = Seconds()
    seen = []
    with new(tmp_path, clock) as run:
        for n in range(3):
            run.step("trial", {"n": n}, lambda: setattr(clock, "now", clock.now + 10) or Figure(value=1), Figure)
            seen.append(run.clock.elapsed())
    with again(tmp_path, clock) as run:
        for n in range(3):
            run.step("trial", {"n": n}, never, Figure)
            clock.now += 0 if n == 2 else 7  # reading back takes time, too
            assert run.clock.elapsed() == seen[n]


def test_a_clock_that_jumps_back_never_takes_time_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Seconds(1000.0)
    with new(tmp_path, clock) as run:
        clock.now -= 500
        monkeypatch.setattr("time.time", lambda: -1e12)
        assert run.clock.elapsed() == 0


def test_what_has_changed_is_named_and_refused(tmp_path: Path) -> None:
    new(tmp_path, seed=3).close()
    changed = {**PRINT, "environment": {"torch": "2.14.0"}, "code": {"sources": {"a.py": "2", "b.py": "3"}}}
    with Run.resume(RunDirectory(tmp_path)) as run, pytest.raises(UsageError) as caught:
        run.check_fingerprint(changed)
    for part in ("environment torch: 2.13.0, now 2.14.0", "code sources a.py: 1, now 2", "code sources b.py: nothing"):
        assert part in caught.value.message
    assert "--accept-changed" in caught.value.hint
    with Run.resume(RunDirectory(tmp_path)) as run:
        assert run.options == {"seed": 3}
        run.check_fingerprint(changed, accept_changed=True)
        assert run.fingerprint == changed
    assert next(r for r in read_journal(tmp_path / "journal.jsonl") if r["type"] == "resumed")["changed"]


def test_events_are_written_down_once(tmp_path: Path) -> None:
    def follow(run: Run, *later: Event) -> list[bool]:
        heard: list[Event] = []
        announce = Announcer(run.announced)
        announce.subscribe(heard.append)
        announce.subscribe(run.note)
        announce(PhaseStarted(phase="benchmark"))
        run.step("trial", {}, lambda: Figure(value=1), Figure)
        announce(TrialProgress(id=1, note="block 3"))
        for event in later:
            announce(event)
        return [event.replayed for event in heard]

    x, y = Warned(text="x"), Warned(text="y")
    with new(tmp_path) as run:
        assert follow(run, x) == [False, False, False]
    with again(tmp_path) as run:
        assert follow(run, x, x) == [True, False, True, False], "one of the two was told before"
    with again(tmp_path) as run:
        assert follow(run, x, y, x) == [True, False, True, False, True]
    events = [r["event"] for r in read_journal(tmp_path / "journal.jsonl") if r["type"] == "event"]
    assert events == ["PhaseStarted", "Warned", "Warned", "Warned"]


def test_seconds_do_not_make_another_event_and_an_end_is_never_an_old_one(tmp_path: Path) -> None:
    result = Result.model_validate_json((Path(__file__).parents[1] / "golden" / "interrupted.json").read_text())
    trial = result.trials[0]
    with new(tmp_path) as run:
        for event in (TrialEnded(trial=trial), Stopped(stop=result.stop), RunEnded(result=result, run_directory="r")):
            run.note(event)
    with again(tmp_path) as run:
        assert run.announced(TrialEnded(trial=trial.model_copy(update={"seconds": 1e6 / 7})))
        other = trial.model_copy(update={"verdict": Verdict.FAILED})
        assert not run.announced(TrialEnded(trial=other))
        assert not run.announced(Stopped(stop=result.stop))
        assert not run.announced(RunEnded(result=result, run_directory="r"))


def test_a_run_that_was_interrupted_may_go_on_and_one_that_ended_says_so(tmp_path: Path) -> None:
    with new(tmp_path) as run:
        run.finish("interrupted", complete=False)
    with again(tmp_path) as run:
        assert not run.finished
        run.finish("exhausted")
    with again(tmp_path) as run:
        assert run.finished


def test_a_run_killed_before_its_first_record_says_so(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(DocumentError, match="killed before it began"):
        again(tmp_path)


def test_a_document_of_another_shape_is_one_line(tmp_path: Path) -> None:
    class Other(Record):
        name: str

    with new(tmp_path) as run:
        run.step("trial", {}, lambda: Other(name="x"), Other)
    with again(tmp_path) as run, pytest.raises(DocumentError, match="is no Figure: .* is missing"):
        run.step("trial", {}, never, Figure)


def search(run: Run, log: list[int], steps: int) -> float:
    """A loop that decides by what it measured and by the clock, as the real one does."""
    total = 0.0
    for n in range(steps):

        def measure(n: int = n, total: float = total) -> Figure:
            log.append(n)
            if n % 3 == 2:
                raise TrialFailed("crashed", f"signal {n}")
            return Figure(value=n + total)

        try:
            total += run.step("trial", {"n": n, "total": total}, measure, Figure).value
        except TrialFailed:
            total += 0.5
    return total


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 10**6), max_size=6), steps=st.integers(1, 8))
def test_cut_anywhere_any_number_of_times_it_ends_with_the_same_result_and_repeats_nothing(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], steps: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with new(folder / "whole") as run:
        expected = search(run, [], steps)
    path = folder / "cut"
    log: list[int] = []
    with new(path) as run:
        search(run, log, steps)
    head = len((path / "journal.jsonl").read_bytes().partition(b"\n")[0]) + 1
    for cut in cuts:
        data = (path / "journal.jsonl").read_bytes()
        kept = data[: head + cut % (len(data) - head + 1)]
        (path / "journal.jsonl").write_bytes(kept)
        done = sum(1 for line in kept.splitlines(keepends=True) if b'"type":"end"' in line and line.endswith(b"}\n"))
        failed = sum(
            1 for line in kept.splitlines(keepends=True) if b'"type":"failed"' in line and line.endswith(b"}\n")
        )
        log.clear()
        with again(path) as run:
            result = search(run, log, steps)
        if KILLED.encode() not in (path / "journal.jsonl").read_bytes():
            assert result == expected
            assert log == list(range(done + failed, steps)), (
                "each step that was on disk is read back, the rest measured"
            )


# Signals while a run is going on.


def send(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


def test_the_first_ctrl_c_asks_and_the_second_stops() -> None:
    told = []
    with Interrupts(lambda: told.append(1)) as interrupts:
        assert not interrupts.stopping()
        send("SIGINT")
        assert interrupts.stopping()
        assert told == [1]
        with pytest.raises(KeyboardInterrupt):
            send("SIGINT")
    assert told == [1]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_who_does_not_wait_is_answered_at_once(name: str) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored, and would stay so
    try:
        with Interrupts() as interrupts:
            with pytest.raises(KeyboardInterrupt, match=name):
                send(name)
            assert interrupts.stopping()
    finally:
        signal.signal(number, before)


def test_writing_the_last_result_is_not_broken_off() -> None:
    with Interrupts() as interrupts, interrupts.shielded():
        for name in ("SIGINT", "SIGINT", "SIGTERM"):
            send(name)
        assert interrupts.stopping()


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send("SIGHUP")
            assert not interrupts.stopping()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_it_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: Interrupts().__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_message_to_a_terminal_that_is_gone_costs_nothing() -> None:
    def gone() -> None:
        raise OSError(5, "Input/output error")

    with Interrupts(gone) as interrupts:
        send("SIGINT")
        assert interrupts.stopping()
