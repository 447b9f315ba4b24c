"""Promoted names of several ranks: what has one, or had it before, outlives newer checkpoints,
other numbers of ranks and every kill.

Above it: pytest. Below it: folder_lab.py, hps/ssd_store/promote.py, hps/ssd_store/promoted.py.
"""

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.cluster.folder import housekeeping
from hps.cluster.folder.checkpoints import RankParts
from hps.cluster.folder.folders import ClusterParts
from hps.cluster.folder.glance import check_stays
from hps.cluster.folder.offline import reshard
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import promoted
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.new_store import check_new_store
from hps.ssd_store.promote import drop, promote, roll_back
from hps.ssd_store.promoted import NAME, Promotions, held
from tests.cluster.folder.folder_lab import (
    Rank,
    Reference,
    generations,
    look,
    on_ranks,
    train,
    try_ranks,
)
from tests.cluster.folder.test_checkpoint_crashes import Deaths, watch_all
from tests.forking import killed_at_each_call

KEEP_ONE = hps.SsdStoreConfig(segment_bytes=2**16, keep_last=1)


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Two ranks with the checkpoints day-1 to day-3, after as many steps."""
    path = tmp_path / "cluster"

    def act(rank: Rank) -> None:
        for day in (1, 2, 3):
            train(range(day, day + 1), tag=f"day-{day}")(rank)

    on_ranks(path, 2, act)
    return path


def digests_of(path: Path, name: str | int) -> dict[str, str]:
    """As one process reads a checkpoint."""
    with hps.open(path, checkpoint=name) as server:
        return {table: server.digest(table) for table in server.tables}


def listed(kept: Any) -> list[tuple[str | None, int, list[str]]]:
    return [(one["tag"], one["id"], one["names"]) for one in kept]


def test_a_name_moves_and_goes_back_and_is_read_as_a_tag(days: Path, reference: Reference) -> None:
    assert promote(days, "day-1") == {
        "name": "live",
        "checkpoint": "day-1",
        "id": 1,
        "before": None,
    }
    assert promote(days, 2)["before"] == "day-1"
    assert promote(days, "live", "canary")["checkpoint"] == "day-2"
    assert digests_of(days, "live") == reference.digests(2)
    with hps.open(days, checkpoint="live") as server:
        names = [("day-1", 1, []), ("day-2", 2, ["canary", "live"]), ("day-3", 3, [])]
        assert listed(server.checkpoints()) == names
        assert roll_back(days)["checkpoint"] == "day-1"
        assert server.checkpoint_state("live")[0] == {"step": 2}, "what was opened stays"

    def act(rank: Rank) -> Any:
        assert rank.checkpoint_state("live")[1] == {"step": 1}
        rank.restore("live")
        return rank.digests(), listed(rank.checkpoints())

    names = [("day-1", 1, ["live"]), ("day-2", 2, ["canary"]), ("day-3", 3, [])]
    assert on_ranks(days, 2, act) == [(reference.digests(1), names)] * 2
    assert drop(days, "canary")["before"] == "day-2"
    with pytest.raises(ConfigError, match="'canary' is no promoted name; there are: 'live'"):
        roll_back(days, "canary")
    with pytest.raises(ConfigError, match="'live' is checkpoint 'day-1', and none that had the na"):
        roll_back(days)
    with pytest.raises(ConfigError, match="there is no checkpoint 'canary'"):
        hps.open(days, checkpoint="canary")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("day-2", "'day-2' is the tag of a checkpoint; take another name"),
        ("final", "'final' cannot be a promoted name"),
        ("best", "'best' cannot be a promoted name"),
        ("last", "'last' cannot be a promoted name"),
        ("automatic", "tag='automatic'"),
        ("cut-" + 32 * "0", "the tag is reserved"),
        *((name, "tag=") for name in ("", " ", "é", "id:3", "../up", "x" * 65)),
    ],
)
def test_a_name_is_refused_as_of_a_store_of_one_process(days: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        promote(days, "day-1", name)
    assert not (days / NAME).exists()


def test_what_is_promoted_outlives_newer_checkpoints_of_its_tag_and_number(
    days: Path, reference: Reference
) -> None:
    def act(rank: Rank) -> Any:
        train(range(4, 5))(rank)
        for number in (5, 6, 7):
            if rank.world.rank == 0 and number == 5:  # beside the ranks
                promote(days, 4, "canary")
                promote(days, "day-3")
            rank.world.control.barrier()
            train(range(number, number + 1), tag="day-3")(rank)
            rank.checkpoint()
        return listed(rank.checkpoints()), rank.num_parts

    kept = [
        ("day-1", 1, []),
        ("day-2", 2, []),
        (None, 3, ["live"]),
        (None, 4, ["canary"]),
        ("day-3", 9, []),
        (None, 10, []),
    ]
    assert on_ranks(days, 2, act, ssd=KEEP_ONE) == [(kept, 6)] * 2, "and of each a part"
    assert digests_of(days, "live") == reference.digests(3)
    assert digests_of(days, "canary") == reference.digests(4)
    assert digests_of(days, "day-3") == reference.digests(7)
    assert main(["verify", str(days)]) == 0


def test_the_one_before_stays_for_a_roll_back_and_goes_when_it_is_two_back(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"

    def act(rank: Rank) -> Any:
        for number in (1, 2, 3):
            train(range(number, number + 1))(rank)
            if rank.world.rank == 0:
                promote(path, number)
            rank.world.control.barrier()
        rank.checkpoint()
        return listed(rank.checkpoints()), rank.num_parts

    kept = [(None, 2, []), (None, 3, ["live"]), (None, 4, [])]
    assert on_ranks(path, 2, act, ssd=KEEP_ONE) == [(kept, 3)] * 2
    assert roll_back(path)["id"] == 2
    assert digests_of(path, "live") == reference.digests(2)
    with pytest.raises(ConfigError, match="none that had the name before is kept"):
        roll_back(path)
    drop(path, "live")
    assert on_ranks(path, 2, train(range(4, 5)), ssd=KEEP_ONE)
    with hps.open(path) as server:
        assert [one["id"] for one in server.checkpoints()] == [5], "they are as others again"


def test_what_is_promoted_stays_where_the_ranks_change_their_number(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"

    def act(rank: Rank) -> None:
        for number in (1, 2, 3, 4):
            train(range(number, number + 1))(rank)
            if rank.world.rank == 0 and number < 3:
                promote(path, number)
            rank.world.control.barrier()

    on_ranks(path, 2, act, ssd=KEEP_ONE)
    check_stays(path, "live", 3)
    check_stays(path, 1, 3)
    opened = on_ranks(path, 3, lambda rank: (look(rank), listed(rank.checkpoints())))
    kept = [(None, 1, []), (None, 2, ["live"]), (None, 4, [])]
    assert opened == [((reference.digests(4), ({"step": 4},) * 2), kept)] * 3
    assert len(generations(path)) == 2
    assert digests_of(path, "live") == reference.digests(2)

    def go_back(rank: Rank) -> Any:
        rank.restore("live")
        return rank.digests(), [(one["ranks"], one["names"]) for one in rank.checkpoints()]

    ranks = [(2, []), (3, ["live"]), (3, [])]
    assert on_ranks(path, 3, go_back) == [(reference.digests(2), ranks)] * 3
    roll_back(path)
    assert on_ranks(path, 1, go_back)[0][0] == reference.digests(1)
    assert digests_of(path, "live") == reference.digests(1)


def test_what_is_not_promoted_goes_where_the_ranks_change_their_number(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    on_ranks(path, 2, train(range(2, 3)))
    with pytest.raises(ConfigError, match="has no tag, and is of 2 rank"):
        check_stays(path, 1, 3)
    promote(path, 1)
    check_stays(path, "live", 3)
    drop(path, "live")
    on_ranks(path, 3, look)
    assert len(generations(path)) == 1
    with pytest.raises(ConfigError, match="there is no checkpoint 1"):
        promote(path, 1)


def test_a_promoted_checkpoint_is_not_deleted(
    days: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promote(days, "day-1")
    promote(days, "day-3")
    said = "checkpoint 'day-3' is promoted as 'live'; promote another one, or take the name away"
    for name in ("day-3", "id:3", "live"):
        assert main(["checkpoints", str(days), "--delete", name]) != 0
        assert said in capsys.readouterr().err

    def act(rank: Rank) -> Any:
        for name in ("day-3", 3, "live"):
            with pytest.raises(ConfigError, match=said):
                rank.delete_checkpoint(name)
        rank.delete_checkpoint("day-1")
        return listed(rank.checkpoints()), rank.num_parts

    assert on_ranks(days, 2, act) == [([("day-2", 2, []), ("day-3", 3, ["live"])], 2)] * 2
    with pytest.raises(ConfigError, match="none that had the name before is kept"):
        roll_back(days)
    drop(days, "live")
    assert main(["checkpoints", str(days), "--delete", "day-3"]) == 0


def test_a_new_checkpoint_gets_no_tag_that_is_a_name(
    days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(days, "day-1")
    save, saved = RankParts.save_parts, []

    def told(self: RankParts, draft: Any) -> None:
        saved.append(draft.tag)
        save(self, draft)

    monkeypatch.setattr(RankParts, "save_parts", told)

    def act(rank: Rank) -> Any:
        names = [("day-1", 1, ["live"]), ("day-2", 2, []), ("day-3", 3, [])]
        assert listed(rank.checkpoints()) == names, "known from the opening on"
        rank.step(4)
        with pytest.raises(ConfigError, match="tag='live' is a promoted name, of checkpoint 'day-"):
            rank.checkpoint("live")
        rank.checkpoint("day-4")
        return [tag for tag, _, _ in listed(rank.checkpoints())], rank.num_parts

    tags = ["day-1", "day-2", "day-3", "day-4"]
    assert on_ranks(days, 2, act) == [(tags, 4)] * 2
    assert saved == ["day-4", "day-4"], "refused before a part is saved"


def test_a_tag_that_becomes_a_name_while_its_parts_are_saved_makes_no_checkpoint(
    days: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = RankParts.save_parts

    def then_promoted(self: RankParts, draft: Any) -> None:
        save(self, draft)
        if self._opened.world.rank == 0 and draft.tag == "day-4":
            promote(days, "day-1", "day-4")

    monkeypatch.setattr(RankParts, "save_parts", then_promoted)

    def act(rank: Rank) -> Any:
        rank.step(4)
        with pytest.raises(ConfigError, match="tag='day-4' is a promoted name"):
            rank.checkpoint("day-4")
        assert rank.is_changed and rank.num_parts == 3
        names = listed(rank.checkpoints())  # what a training looks at then: the same on all ranks
        rank.checkpoint("day-5")
        return names

    kept = [("day-1", 1, ["day-4"]), ("day-2", 2, []), ("day-3", 3, [])]
    assert on_ranks(days, 2, act) == [kept, kept]
    assert digests_of(days, "day-5") == reference.digests(4)
    assert digests_of(days, "day-4") == reference.digests(1)


def test_a_checkpoint_waits_for_a_name_that_is_being_moved(days: Path) -> None:
    """Else it could take the place of the very checkpoint that is promoted."""
    waits = threading.Event()
    try_lock = promoted.NamesLock._try_lock

    def told(lock: promoted.NamesLock) -> bool:
        is_held = try_lock(lock)
        if lock._path.parent == days and not is_held:
            waits.set()
        return is_held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promoted.NamesLock, "_try_lock", told)
        with held(days) as promotions:
            new = train(range(4, 5), tag="day-3")
            writer = threading.Thread(target=on_ranks, args=(days, 2, new))
            writer.start()
            assert waits.wait(60)
            catalog = Catalog.load(days)
            assert catalog is not None and catalog.current_id == 3
            created = catalog.checkpoints[2].created
            given = promoted.Promotion(created, "day-3", created)
            promotions.with_history("live", [given]).save(days)
        writer.join()
    with hps.open(days) as server:
        names = [("day-1", 1, []), ("day-2", 2, []), (None, 3, ["live"]), ("day-3", 4, [])]
        assert listed(server.checkpoints()) == names


def test_a_rank_that_fails_is_heard_while_rank_0_waits_for_the_names(
    days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after ten minutes, when rank 0 gives up."""
    names_here = ClusterParts.names_here
    begun: list[float] = []

    def names(parts: ClusterParts) -> Any:
        if parts.world.rank == 1 and sys._getframe(1).f_code.co_name == "hold" and begun:
            raise CorruptionError("the names of rank 1 are damaged")
        return names_here(parts)

    monkeypatch.setattr(ClusterParts, "names_here", names)

    def act(rank: Rank) -> float:
        rank.step(4)
        rank.world.control.barrier()
        begun.append(time.monotonic())
        with pytest.raises(CorruptionError, match="the names of rank 1 are damaged"):
            rank.checkpoint("day-4")
        assert rank.num_parts == 3 and not rank.parts.failure
        return time.monotonic() - begun[0]

    monkeypatch.setattr(promoted, "_WAIT_SECONDS", 30.0)
    with held(days):
        assert max(on_ranks(days, 2, act)) < 15


def test_files_of_a_deleted_checkpoint_go_while_names_may_move(
    days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_part = housekeeping._delete_part

    def during(folder: Path, part_tag: str) -> list[str]:
        promote(days, "day-3")
        return delete_part(folder, part_tag)

    monkeypatch.setattr(promoted, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(housekeeping, "_delete_part", during)
    housekeeping.delete_checkpoint(days, "day-1")
    assert Promotions.load(days).names["live"][-1].checkpoint == "day-3"
    with hps.open(days) as server:
        assert [one["tag"] for one in server.checkpoints()] == ["day-2", "day-3"]


def test_a_name_that_is_held_for_too_long_costs_no_checkpoint(
    days: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promoted, "_WAIT_SECONDS", 0.0)

    def act(rank: Rank) -> Any:
        rank.step(4)
        rank.world.control.barrier()
        holder = held(days)
        if rank.world.rank == 0:
            holder.__enter__()
        with pytest.raises(StoreError, match=rf"PROMOTED\.lock: .* \(process {os.getpid()} on "):
            rank.checkpoint("day-4")
        assert rank.num_parts == 3 and not rank.parts.failure
        rank.world.control.barrier()
        if rank.world.rank == 0:
            holder.__exit__(None, None, None)
        rank.checkpoint("day-4")
        return rank.num_parts

    assert on_ranks(days, 2, act) == [4, 4]
    assert digests_of(days, "day-4") == reference.digests(4)


def test_a_kill_at_any_moment_of_a_promotion_leaves_the_old_or_the_new(days: Path) -> None:
    promote(days, "day-1")
    found = []
    for is_done in killed_at_each_call(lambda: promote(days, "day-2")):
        found.append(Promotions.load(days).names["live"][-1].checkpoint)
        if is_done:
            break
        with hps.open(days, checkpoint="live") as server:
            assert server.checkpoint_state("live")[0] == {"step": int(found[-1][-1])}
        if not is_done and found[-1] == "day-2":
            assert roll_back(days)["checkpoint"] == "day-1"
    assert set(found) == {"day-1", "day-2"} and found[-1] == "day-2"
    assert len(found) > 5, "the kill came in the middle"


def test_a_death_at_any_step_of_a_checkpoint_leaves_what_is_promoted(
    days: Path, tmp_path: Path, reference: Reference
) -> None:
    promote(days, "day-2")
    promote(days, "day-3")
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(days, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(days, 2, train(range(4, 5), tag="day-3"), ssd=KEEP_ONE)
    found = set()
    for folder in deaths.folders():
        assert digests_of(folder, "live") == reference.digests(3)

        def act(rank: Rank) -> Any:
            state = rank.checkpoint_state("live")
            return state, rank.checkpoint_state("day-3")[0], rank.num_parts

        opened = on_ranks(folder, 2, act)
        (live, newest, num_parts) = opened[0]
        assert opened[0] == opened[1] and live == ({"step": 3}, {"step": 3})
        assert num_parts == (3 if newest == {"step": 3} else 4), "no leftover"
        found.add(newest["step"])
        assert roll_back(folder)["checkpoint"] == "day-2"
        assert digests_of(folder, "live") == reference.digests(2)
    assert found == {3, 4}


def test_a_death_at_any_step_of_a_move_leaves_what_is_promoted(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    promote(path, 1)
    on_ranks(path, 2, train(range(2, 3)))
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(path, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(path, 3, look)
    assert deaths.steps.count("after append") >= 3
    for number, folder in enumerate(deaths.folders()):
        assert digests_of(folder, "live") == reference.digests(1)
        if number % 3 == 0:
            assert on_ranks(folder, 3, look)[0] == (reference.digests(2), ({"step": 2},) * 2)
            assert digests_of(folder, "live") == reference.digests(1)
            assert len(generations(folder)) == 2


@pytest.fixture
def hosts(days: Path, tmp_path: Path) -> list[Path]:
    """The folders of two hosts, each with the store of its own rank."""
    promote(days, "day-1")
    folders = [tmp_path / "host-0", tmp_path / "host-1"]
    for number, folder in enumerate(folders):
        shutil.copytree(days, folder)
        shutil.rmtree(next(folder.glob(f"generation-*/rank-{1 - number}")))
    (folders[0] / NAME).unlink()  # rank 0 was on the other one
    return folders


def test_hosts_with_folders_of_their_own_keep_what_is_promoted_and_give_no_names(
    hosts: list[Path],
) -> None:
    for number, folder in enumerate(hosts):
        said = f"the store of rank {1 - number} of 2 is not here; names are of a folder that all"
        with pytest.raises(StoreError, match=said):
            promote(folder, "day-2")
        with pytest.raises(StoreError, match=said):
            roll_back(folder)

    def act(rank: Rank) -> Any:
        train(range(4, 5), tag="day-1")(rank)
        return listed(rank.checkpoints()), rank.checkpoint_state("live")[0]

    kept = [(None, 1, ["live"]), ("day-2", 2, []), ("day-3", 3, []), ("day-1", 4, [])]
    assert on_ranks(hosts, 2, act) == [(kept, {"step": 1})] * 2
    assert drop(hosts[1], "live")["before"] == "day-1"


def test_a_name_is_taken_by_what_takes_a_tag(
    days: Path, tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    promote(days, "day-2")
    for words, target in ((["--ranks", "3"], "three"), (["--plain"], "plain")):
        out = str(tmp_path / target)
        assert main(["reshard", str(days), out, *words, "--checkpoint", "live"]) == 0
        assert digests_of(Path(out), "day-2") == reference.digests(2)
        assert Promotions.load(Path(out)).names == {}, "a new folder begins without names"
    assert reshard(days, tmp_path / "four", 4, "live")["tag"] == "day-2"
    out = tmp_path / "out.json"
    assert main(["stats", str(days), "--checkpoint", "live", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["ranks"]["rows"] != []
    catalog = Catalog.load(days)
    assert catalog is not None
    assert figures["ranks"]["rows"] == [part.rows for part in catalog.checkpoints[1].parts]
    assert main(["checkpoints", str(days), "--json", str(out)]) == 0
    assert listed(json.loads(out.read_text()))[1] == ("day-2", 2, ["live"])
    with pytest.raises(ConfigError, match="there is no checkpoint 'nobody'"):
        reshard(days, tmp_path / "five", 5, "nobody")
    capsys.readouterr()


def test_a_reader_that_is_overtaken_by_a_promotion_opens_the_new_one(
    days: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(days, "day-1")
    load, loads = Promotions.load, []

    def overtaken(folder: Path) -> Promotions:
        if not loads:
            loads.append(folder)
            on_ranks(days, 2, train(range(4, 5), tag="day-4"))
            promote(days, "day-4")
        return load(folder)

    monkeypatch.setattr(Promotions, "load", overtaken)
    assert digests_of(days, "live") == reference.digests(4)


def test_a_damaged_file_of_names_is_told(days: Path) -> None:
    promote(days, "day-1")
    whole = (days / NAME).read_bytes()
    (days / NAME).write_bytes(whole[:-3] + b"9" + whole[-2:])
    for act in (lambda: promote(days, "day-2"), lambda: hps.open(days)):
        with pytest.raises(CorruptionError, match=f"{NAME}: the promoted names are damaged"):
            act()
    _, errors = try_ranks(days, 2, look)
    assert [type(errors[rank]) for rank in (0, 1)] == [CorruptionError] * 2
    assert main(["checkpoints", str(days), "--delete", "day-2"]) != 0
    (days / NAME).unlink()
    assert on_ranks(days, 2, train(range(4, 5), tag="day-4"))


def test_a_folder_without_a_checkpoint_has_none_to_promote(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, lambda rank: None)
    with pytest.raises(ConfigError, match="there is no checkpoint 'day-1'"):
        promote(path, "day-1")
    (path / "CLUSTER").write_bytes(b"")
    with pytest.raises(CorruptionError, match="CLUSTER"):
        promote(path, "day-1")


def test_a_death_before_the_first_cluster_leaves_a_folder_that_can_be_begun(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster"
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(path, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(path, 2, lambda rank: None)
    begun = [folder for folder in deaths.folders() if not (folder / "CLUSTER").exists()]
    assert any((folder / promoted.LOCK).exists() for folder in begun)
    for folder in begun:
        check_new_store(folder)
    on_ranks(begun[-1], 2, train(range(1, 2), tag="day-1"))
