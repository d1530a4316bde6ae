"""Contention for the cores, measured, and steps that are fed by workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.seeding import kept_random_state
from autoopt.simplify.batches import restored
from autoopt.simplify.contention import combinations, fed_combinations, measure_contention, measure_overlap


def test_combinations_fill_the_cores_and_ask_for_more() -> None:
    assert set(combinations(2, 2)) == {(0, 2), (1, 1), (2, 2), (2, 1), (1, 2)}
    assert all(workers > 0 for _, workers in combinations(1, 1))
    assert (8, 8) in combinations(16, 16)


def test_a_workloads_own_preparation_is_put_beside_its_step(plant: Callable[[str], Any]) -> None:
    training = plant("""
        def build():
            return workload()
    """).training()
    batch = training.next()[0]
    found = measure_contention(training, [batch], 0.3)
    assert {(item.threads, item.workers) for item in found} <= set(combinations(2, 2)) | {
        (0, item.workers) for item in found
    }
    assert found
    assert all(0 < item.prepare <= 1 and (item.step is None) is (item.threads == 0) for item in found)


def test_a_dataset_that_breaks_beside_the_step_leaves_fair_shares(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Broken(Rows):
            def __getitem__(self, index):
                raise RuntimeError("no such sample")

        def build():
            return workload(train_data=Broken())
    """)
    training = planted.training()
    assert measure_contention(training, [], 0.2) == ()


def test_steps_are_fed_by_workers_and_nothing_of_the_training_is_read(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Counting(Rows):
            read = 0

            def __getitem__(self, index):
                self.read += 1
                return super().__getitem__(index)

        def build():
            return workload(train_data=Counting(), accumulation=2)
    """)
    training, other = planted.training(), planted.training()
    before = [training.step(training.next()).item() for _ in range(2)]
    assert before == [other.step(other.next()).item() for _ in range(2)]
    read = training.loader.loader.dataset.read
    with kept_random_state(), restored(training):
        found = measure_overlap(training, 0.2)
    assert training.loader.loader.dataset.read == read
    assert [(one.workers, one.threads) for one in found] == fed_combinations(usable_cores(), 1, False)[: len(found)]
    assert found
    after = [training.step(training.next()).item() for _ in range(3)]
    assert after == [other.step(other.next()).item() for _ in range(3)]


def test_where_samples_wait_more_workers_than_cores_are_tried() -> None:
    assert fed_combinations(2, 2, waits=True) == [(4, 1), (4, 2), (2, 2)]
    assert fed_combinations(2, 2, waits=False) == [(1, 1), (2, 1), (2, 2)]
    assert fed_combinations(1, 1, waits=False) == [(1, 1)]


def test_more_workers_than_cores_are_no_warning_to_the_user(plant: Callable[[str], Any]) -> None:
    training = plant("def build(): return workload()").training()
    with kept_random_state(), restored(training):
        found = measure_overlap(training, 0.05, waits=True)
    assert found[0].workers == 2 * usable_cores()


def test_a_stream_has_no_samples_to_ask_for(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        from torch.utils.data import DataLoader, IterableDataset

        class Stream(IterableDataset):
            def __iter__(self):
                for _ in range(20):
                    yield torch.randn(16), torch.tensor(1)

        def build():
            return workload(train_data=DataLoader(Stream(), batch_size=8), batch_size=None)
    """)
    assert measure_overlap(planted.training(), 0.2) == ()
