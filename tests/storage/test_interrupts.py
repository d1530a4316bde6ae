"""Signals while a run is going on."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from autoopt.storage.interrupts import Interrupts


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
        assert interrupts.received == ["SIGINT", "SIGINT", "SIGTERM"]


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
