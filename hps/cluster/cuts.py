"""ClusterCuts: the verbs of ClusterParameterServer for cuts over all ranks: take, list, go back.

Above it: server.py, which is one. Below it: folders.py, agreement.py, the rank's ParameterServer.

Every rank takes its part first, tagged `cut-NAME` in its own store, rank 0 with the dense side.
When all have, rank 0 puts a new CLUSTER in the place of the old one: that makes the cut, all at
once. What a death before it leaves behind is deleted at the next opening.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from time import perf_counter, time
from typing import Any

from hps import checkpoint as dense_side
from hps.checkpoint_names import check_tag, text_of
from hps.cluster.agreement import agree, attempt
from hps.cluster.blobs import share_blobs
from hps.cluster.catalog import Catalog, Cut, Part, new_name
from hps.cluster.folders import ClusterParts
from hps.cluster.reshard import find_readers, move_rows, sources_of
from hps.cluster.targets import OwnStore
from hps.cluster.world import World
from hps.dense_mark import DENSE_PARTS, DenseMark, holds_dense
from hps.errors import ConfigError, HpsError

_APART = "the ranks may be at different cuts now: call restore() again"


class ClusterCuts:
    """Checkpoint, restore and what goes with them; its fields are set by ClusterParameterServer.

    All verbs but `checkpoints` are collective: every rank calls them, with the same arguments.
    """

    world: World
    parts: ClusterParts

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines of this rank whose `with` block is entered."""
        return self.parts.local.num_open_pipelines

    @property
    def is_changed(self) -> bool:
        """True if this rank's rows may have changed since the newest cut."""
        return self.parts.is_unsaved or self.parts.local.is_changed

    def checkpoint(
        self,
        tag: str | None = None,
        model: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Makes everything durable in one cut over all ranks: rows, model, reader position.

        Collective; between two steps, the same on all ranks. Without model and reader it takes over
        those of the cut that the rows descend from, if no rank has trained since.

        Args:
            tag: its name; it replaces an older one of that name. None: kept by keep_last.
            model: what torch.load(weights_only=True) reads; that of rank 0 is kept.
            reader: the position of a reader; JSON; that of rank 0 is kept.

        Returns:
            {"tag", "rows_written", "bytes", "seconds"}, of all ranks together; "model_from" as
            hps.ParameterServer.checkpoint says.

        Raises:
            ConfigError: a bad tag, or tags that differ; a model or reader that could not be read
            back. StoreError: a rank's disk is full, or refused; the cut before it stays the newest.
            NonFiniteError: on a GPU, of the last step. ClusterError: a rank is gone; an opening
            finds this cut or the one before it. All on every rank.
        """
        started = perf_counter()
        parts, world = self.parts, self.world
        kept: dict[str, bytes] = {}

        def prepare() -> dict[str, Any]:
            parts.check_usable()
            if parts.is_apart:
                raise ConfigError("checkpoint: a restore failed; call restore() again first")
            if tag is not None:
                check_tag(tag)
            if world.rank == 0:
                kept.update(dense_side.encode_dense(model, reader))
            dense = [holds_dense(kept), dense_side.MODEL in kept, asdict(before)]
            return {"tag": tag, "name": new_name(), "created": time(), "dense": dense}

        before = parts.local.dense_mark
        told = agree(world, "checkpoint", prepare)
        _check_one_name("checkpoint", [one["tag"] for one in told])
        name = told[0]["name"]
        mark = self._mark_of_cut(name, [one["dense"] for one in told])
        part_tag = f"cut-{name}"
        saved = attempt(world, "saving the parts", lambda: self._save_part(part_tag, kept, mark))
        if saved.failure is not None:  # all ranks know, so none commits
            self._drop_part(part_tag, before)
            raise saved.failure
        cut = Cut(
            id=parts.catalog.next_id,
            name=name,
            tag=tag,
            created=told[0]["created"],
            generation=parts.catalog.generation,
            parts=tuple(Part(one["rows"], one["bytes"]) for one in saved.values),
        )
        self._commit(parts.catalog.with_cut(cut, parts.config.ssd.keep_last), part_tag, before)
        parts.is_unsaved = False
        parts.tidy()
        return {
            "tag": tag,
            "rows_written": sum(one["rows_written"] for one in saved.values),
            "bytes": sum(one["bytes_written"] for one in saved.values),
            "seconds": perf_counter() - started,
            **mark.described(),
        }

    def _mark_of_cut(self, name: str, told: Sequence[Any]) -> DenseMark:
        """What the parts of a new cut say of its dense side; the same on every rank.

        Args:
            name: of the cut.
            told: of each rank: has it been given a dense side, a model, and the mark of its rows.
        """
        is_given, has_model, _ = told[0]
        if is_given:
            return DenseMark(has_model=has_model, cut=name)
        marks = [DenseMark(**mark) for _, _, mark in told]
        if not all(mark.cut == marks[0].cut and not mark.is_trained for mark in marks):
            return replace(marks[0], is_trained=True)
        current = self.parts.catalog.current
        if not marks[0].has_model or marks[0].source or current is None:
            return marks[0]
        return replace(marks[0], source=text_of(current.tag or current.id))

    def restore(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """Goes back to a cut, on all ranks or none; it is the newest from now on.

        Collective. Of a cut that another number of ranks took, the rows move to their owners.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the newest.

        Returns:
            (model, reader) as they were given to checkpoint(), on every rank; each None if not.

        Raises:
            ConfigError: no such cut; a pipeline is open on some rank. CorruptionError: a part is
            damaged. StoreError: CLUSTER could not be written; a part of other ranks is seen by no
            rank. If some ranks went back already, no cut is taken until a restore succeeds.
        """
        parts, world = self.parts, self.world

        def prepare() -> str | int | None:
            parts.check_usable()
            if self.num_open_pipelines or parts.local.pins:
                raise ConfigError(
                    f"restore: {self.num_open_pipelines} open pipeline(s) and {parts.local.pins} "
                    "pins of batches in flight; leave the pipeline's `with` block first"
                )
            cut = parts.catalog.find(parts.path, tag)
            if cut.generation == parts.catalog.generation:
                parts.local.checkpoint_blobs(cut.part_tag)  # it can be read
            return tag

        _check_one_name("restore", agree(world, "restore", prepare))
        cut = parts.catalog.find(parts.path, tag)
        state = self._state_of(cut)
        if cut.generation != parts.catalog.generation:
            self._move_in(cut)
        else:
            self._go_back(cut)
            if cut.id != parts.catalog.current_id:
                parts.commit(parts.catalog.with_current(cut))
        parts.is_unsaved = False
        parts.tidy()
        return state

    def checkpoint_state(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """(model, reader) of a cut, without going back to it; the same on every rank.

        Collective.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the newest.

        Raises:
            ConfigError: no such cut. CorruptionError: it is damaged.
            StoreError: it is of other ranks, and no rank sees the first of its parts.
        """
        parts = self.parts

        def prepare() -> str | int | None:
            if tag is not None or parts.catalog.current is not None:
                parts.catalog.find(parts.path, tag)
            return tag

        _check_one_name("checkpoint_state", agree(self.world, "checkpoint_state", prepare))
        if tag is None and parts.catalog.current is None:
            return None, None
        return self._state_of(parts.catalog.find(parts.path, tag))

    def checkpoints(self) -> list[dict[str, Any]]:
        """The cuts that are kept, oldest first: tag (or None), id, rows, bytes, created, ranks.

        Not collective: every rank knows them.
        """
        return self.parts.catalog.described()

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a cut, named by its tag or its id.

        Collective.

        Returns:
            The living readers of it on all ranks, in words; its files stay until they close.

        Raises:
            ConfigError: no such cut, or None. StoreError: CLUSTER could not be written.
        """
        parts = self.parts

        def prepare() -> str | int:
            parts.check_usable()
            if tag is None:
                raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
            parts.catalog.find(parts.path, tag)
            return tag

        _check_one_name("delete_checkpoint", agree(self.world, "delete_checkpoint", prepare))
        parts.commit(parts.catalog.without(parts.catalog.find(parts.path, tag)))
        readers = agree(self.world, "deleting parts", parts.tidy)
        return [reader for of_rank in readers for reader in of_rank]

    # Parts.

    def _save_part(
        self, part_tag: str, dense: Mapping[str, bytes], mark: DenseMark
    ) -> dict[str, Any]:
        local, current = self.parts.local, self.parts.catalog.current
        blobs = {**dense, **self.parts.name.blobs()}
        if mark.is_taken_over and current is not None and self.world.rank == 0:
            blobs.update(local.checkpoint_blobs(current.part_tag, DENSE_PARTS))
        info = local.save_cut(part_tag, blobs, mark=mark)
        listed = next(one for one in local.checkpoints() if one["tag"] == part_tag)
        return {
            "rows": listed["rows"],
            "bytes": listed["bytes"],
            "rows_written": info["rows_written"],
            "bytes_written": info["bytes"],
        }

    def _drop_part(self, part_tag: str, mark: DenseMark) -> None:
        """This rank's part of a cut that will not be; an opening drops what cannot go now.

        Args:
            part_tag: of the part.
            mark: of the rows, as it was before.
        """
        self.parts.is_unsaved = True
        self.parts.local.dense_mark = mark
        with suppress(HpsError):
            self.parts.local.delete_checkpoint(part_tag)

    def _commit(self, catalog: Catalog, part_tag: str, before: DenseMark) -> None:
        self.parts.is_unsaved = True  # until the cut stands, whatever is raised
        self.parts.commit(catalog, undo=lambda: self._drop_part(part_tag, before))

    def _go_back(self, cut: Cut) -> None:
        """To a cut that these ranks took."""
        parts = self.parts

        def go_back() -> None:
            parts.local.restore(cut.part_tag)

        outcome = attempt(self.world, "going back", go_back)
        parts.is_apart = outcome.failure is not None
        if outcome.failure is not None:
            outcome.failure.add_note(_APART)
            raise outcome.failure

    def _move_in(self, cut: Cut) -> None:
        """To a cut of other ranks: their stores stay, the rows are appended to the own ones."""
        parts, world = self.parts, self.world
        sources = sources_of(parts.path, parts.catalog, cut)
        find_readers(world, sources)  # before anything changes
        name = world.control.gather(new_name())[0]
        moved = replace(cut, name=name, generation=parts.catalog.generation)
        parts.is_apart = True
        try:
            made = move_rows(world, sources, OwnStore(parts.local, moved.part_tag, parts.name))
        except HpsError as error:
            error.add_note(_APART)
            raise
        parts.is_apart = False
        moved = replace(moved, parts=tuple(made))
        mark = parts.local.dense_mark
        self._commit(
            parts.catalog.with_cut(moved, parts.config.ssd.keep_last), moved.part_tag, mark
        )

    def _state_of(self, cut: Cut) -> tuple[Any, Any]:
        """The dense side of a cut, from the rank that sees its first part, on all ranks."""
        parts, world = self.parts, self.world
        is_own = cut.generation == parts.catalog.generation
        source = sources_of(parts.path, parts.catalog, cut)[0]
        reader = 0 if is_own else find_readers(world, [source])[0]
        held: dict[str, bytes] = {}

        def load() -> None:
            if world.rank == reader:
                held.update(
                    parts.local.checkpoint_blobs(cut.part_tag) if is_own else source.blobs()
                )

        agree(world, "reading the model", load)
        names = (dense_side.MODEL, dense_side.READER)
        dense = {name: held[name] for name in names if name in held}
        return dense_side.decode_dense(share_blobs(world.control, dense))


def _check_one_name(verb: str, names: list[Any]) -> None:
    """Raises ConfigError unless all ranks named the same."""
    if any(name != names[0] for name in names):
        raise ConfigError(f"{verb}: the ranks name different checkpoints: {names}; name one")
