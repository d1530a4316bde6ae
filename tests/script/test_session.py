"""Steps of a script as its hooks report them to the session, and which loaders its training reads."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from autoopt.benchmark import clock as clock_module
from autoopt.script import session
from autoopt.script.loaders import Roles
from autoopt.script.session import Goal, Session


class Time:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    for module in (clock_module, session):
        monkeypatch.setattr(module, "perf_counter", time)
    return time


def training() -> tuple[Session, Goal]:
    """A session on the CPU that trains to no end."""
    found = Session(stops=False)
    found.train_on(torch.device("cpu"))
    found.deferred_cost.begin()
    found.clock.every = 50
    found.clock.start()
    found.goal = found._goal = Goal(session.LossRecorder(True), enough=lambda *_: False)
    return found, found.goal


def test_a_metric_that_is_printed_and_logged_is_told_once(time: Time) -> None:
    """Else its crossing of the target would confirm itself."""
    script, goal = training()
    for value in (0.5, 0.5004, 0.6):
        script.metric(value)
    assert [told for _, _, told in goal.metrics] == [0.5, 0.6]


def test_what_a_step_has_computed_before_its_second_batch_is_not_booked_beside_the_steps(time: Time) -> None:
    script, goal = training()
    for number in range(40):
        time.now += 0.001 * (number % 3)
        for _ in range(2):
            script.data_begin()
            time.now += 0.002 + 0.001 * (number % 5)
            script.data_end()
            script.count(4)
            script.forward_begin(prepared=False)
            time.now += 0.01
        script.mark("forward")
        script.loss(torch.tensor(float(number)))
        script.step_end()
    assert script.clock is not None
    goal.put(script.clock.stop())
    lap = goal.lap()
    waits = sum(2 * (0.002 + 0.001 * (number % 5)) for number in range(40))
    assert lap.stages["data"] == pytest.approx(waits)
    assert lap.stages["other"] < 0.1 * (lap.seconds - waits)
    assert goal.captured.losses() == tuple(map(float, range(40)))
    assert script.samples == 40 * 8


# Loaders that the training reads, by what becomes of their batches.


def loader() -> DataLoader[int]:
    return DataLoader([1, 2, 3])  # type: ignore[arg-type]


def read(roles: Roles, one: DataLoader[int], *, reader: int | None = None, samples: int = 4) -> None:
    """The next batch of a loader, as the hooks tell of it."""
    number = id(one) if reader is None else reader
    if roles.trains(one):
        roles.given(number, None, samples)
    else:
        roles.reads_on(number, one)
        roles.given(number, one, samples)


def test_a_single_batch_of_validation_shows_when_there_is_no_other() -> None:
    roles, valid = Roles(), loader()
    read(roles, valid)
    roles.evaluated()
    roles.reads_on(id(valid), valid)  # which has none left
    assert roles.trained() is None
    assert roles.of(valid) is False


def test_batches_that_are_also_looked_at_without_training_are_trained_on() -> None:
    roles, labelled, other = Roles(), loader(), loader()
    for _ in range(3):
        read(roles, labelled, samples=4)
        read(roles, other, samples=8)
        roles.evaluated()  # labels are guessed first
        assert roles.trained() == 8
        roles.step_ended()
    assert roles.training == [labelled, other]


def test_a_batch_that_is_read_ahead_counts_when_it_is_trained_on() -> None:
    roles, train = Roles(), loader()
    read(roles, train)
    counted = []
    for step in range(3):
        if step < 2:
            read(roles, train, samples=4 - step)
        counted.append(roles.trained())
        roles.step_ended()
    assert counted == [4, 4, 3]


def test_loaders_of_each_epoch_have_the_role_of_their_line() -> None:
    roles = Roles()

    def epoch() -> tuple[DataLoader[int], DataLoader[int]]:
        train = loader()
        roles.made(train)
        valid = loader()
        roles.made(valid)
        return train, valid

    train, valid = epoch()
    assert roles.serves_training(train)
    read(roles, train)
    roles.trained()
    for _ in range(2):
        read(roles, valid)
        roles.evaluated()
    roles.step_ended()
    train, valid = epoch()
    assert (roles.of(train), roles.of(valid)) == (True, False)
    with torch.no_grad():
        assert roles.serves_training(train)
    assert not roles.serves_training(valid)
    del train, valid
    assert roles.training == [], "what a script gives up is not kept"


class Drawn(Dataset[int]):
    """Negative samples that are drawn for each epoch; a count is no content."""

    def __init__(self) -> None:
        self.items, self.epoch = [0], 0

    def draw(self) -> None:
        self.items, self.epoch = [1], self.epoch + 1

    def __getitem__(self, index: int) -> int:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


@pytest.mark.parametrize("change", ["none", "count", "draw"])
def test_a_dataset_that_is_changed_before_another_loader_is_made_of_it_is_known(change: str) -> None:
    roles, dataset = Roles(), Drawn()
    for epoch in range(2):
        train = DataLoader(dataset)
        roles.made(train)
        roles.opened(train)
        read(roles, train)
        roles.trained()
        if change == "count":
            dataset.epoch += 1
        elif change == "draw":
            dataset.draw()
        assert roles.dataset_changes is (change == "draw" and epoch == 1)


def test_data_of_an_evaluation_whose_loader_is_gone_are_known() -> None:
    roles, data = Roles(), Drawn()
    for _ in range(2):
        valid = DataLoader(data)
        roles.made(valid)
        with torch.no_grad():
            for reader in (1, 1):
                roles.reads_on(reader, valid)
                roles.given(reader, valid, 1)
                roles.evaluated()
            roles.reads_on(1, valid)
        assert roles.validating(()) == [valid]
    del valid
    assert roles.validating(()) == [data]


@pytest.mark.parametrize("change", ["none", "count", "draw", "late"])
def test_a_dataset_that_is_changed_before_it_is_read_is_known(change: str) -> None:
    roles, dataset = Roles(), Drawn()
    train = DataLoader(Subset(dataset, [0]))
    roles.made(train)
    if change == "count":
        dataset.epoch += 1
    elif change == "draw":
        dataset.draw()
    roles.opened(train)
    if change == "late":  # as it keeps what it has read
        dataset.draw()
    roles.opened(train)
    read(roles, train)
    roles.trained()
    assert roles.dataset_changes is (change == "draw")
