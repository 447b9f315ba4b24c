"""Recipes T1 and B1, the short forms: no damage gets past a store, however small."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.damage import DamageLab, DamageReport, empty_when_damaged, use_everything
from tests.torture.scratch import scratch_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest.fixture
def seed() -> int:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed


def _assert_found(report: DamageReport, least: int) -> None:
    assert report.samples >= least
    assert report.violations == []
    assert not report.unneeded, "every file of this store is needed to read it"


def test_a_file_cut_off_anywhere_is_refused_by_name(folder: Path, seed: int) -> None:
    _assert_found(DamageLab(folder, seed).truncate(tail=3, stride=301), 120)


def test_a_torn_record_of_the_manifest_is_taken_whole_or_not_at_all(
    folder: Path, seed: int
) -> None:
    _assert_found(DamageLab(folder, seed).tear_manifest(stride=9), 30)


def test_a_flipped_bit_is_found_before_use(folder: Path, seed: int) -> None:
    _assert_found(DamageLab(folder, seed).flip_bits(200), 200)


def test_swapped_blocks_are_found_before_use(folder: Path, seed: int) -> None:
    lab = DamageLab(folder, seed)
    lab.swap_blocks(60)
    _assert_found(lab.report, 40)
    assert lab.report.samples + sum(lab.report.skips.values()) == 60


def test_a_planted_bug_that_ignores_checksums_is_found(folder: Path, seed: int) -> None:
    lab = DamageLab(folder, seed)
    report = lab.flip_bits(40, mends_checksums=True)
    assert any("gives other rows" in violation for violation in report.violations)


def test_a_planted_reader_that_takes_damage_for_emptiness_is_found(folder: Path, seed: int) -> None:
    lab = DamageLab(folder, seed, reader=empty_when_damaged)
    assert use_everything(lab.path)
    report = lab.truncate(tail=1, stride=4000)
    assert len(report.violations) == report.samples > 8
