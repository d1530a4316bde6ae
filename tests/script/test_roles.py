"""Which loaders the training reads, told by what becomes of their batches."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from autoopt.script.loaders import Roles


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


def test_a_check_of_the_validation_before_training_is_no_training() -> None:
    roles, train, valid = Roles(), loader(), loader()
    for _ in range(2):  # and then it is left, with batches still to come
        read(roles, valid)
        roles.evaluated()
    read(roles, train)
    assert roles.trained() == 4
    assert roles.training == [train]
    assert roles.of(valid) is False


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


def test_features_that_were_taken_first_do_not_keep_a_loader_from_training() -> None:
    roles, train = Roles(), loader()
    for _ in range(3):
        read(roles, train)
        roles.evaluated()
    read(roles, train, reader=7)
    assert roles.of(train) is False
    roles.trained()
    assert roles.of(train) is True


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
