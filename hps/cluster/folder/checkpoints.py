"""RankParts: checkpoints over all ranks of a training, of which each keeps a part.

Above it: cluster/parameter_server.py, through checkpoint/over_parts.py, which says in which order a
checkpoint is taken, gone back to and deleted. Below it: folders.py, cluster/world/agreement.py, the
rank's ParameterServer.

Every rank takes its part first, rank 0 with the dense side. When all have, rank 0 puts a new
CLUSTER in the place of the old one: that makes the checkpoint. What a death before it leaves behind
is deleted at the next opening.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import time

from hps.checkpoint import blobs as dense_side
from hps.checkpoint.blobs import Dense, ModelState
from hps.checkpoint.dense_mark import DENSE_PARTS, DenseMark, holds_dense
from hps.checkpoint.names import check_tag, part_tag, text_of
from hps.checkpoint.over_parts import Taken, check_is_named, fitting_all
from hps.cluster.folder.folders import ClusterParts
from hps.cluster.folder.reshard import find_readers, move_rows, sources_of
from hps.cluster.folder.targets import OwnStore
from hps.cluster.world.agreement import agree, attempt
from hps.cluster.world.blobs import share_blobs
from hps.common.forked import refuse_in_children
from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError, HpsError
from hps.ssd_store.cluster.catalog import ClusterCheckpoint, PartSize, new_name
from hps.ssd_store.promoted import check_free


@dataclass
class RankDraft:
    """A checkpoint that is being taken; but for `dense` the same on every rank.

    Args:
        name: of the whole.
        tag: as its caller named it, or None.
        created: seconds since 1970.
        dense: what rank 0 was given, as blobs; empty on the others.
        before: this rank's mark of its rows, as it was.
        mark: what every part says of the dense side.
        saved: of each rank's part: rows, bytes, rows_written, bytes_written; once all are saved.
    """

    name: str
    tag: str | None
    created: float
    dense: dict[str, bytes]
    before: DenseMark
    mark: DenseMark
    saved: list[dict[str, int]] = field(default_factory=list)

    @property
    def part_tag(self) -> str:
        """Of each rank's part in its own store."""
        return part_tag(self.name)


class RankParts:
    """The parts of the ranks; keeps hps.checkpoint.over_parts.Parts.

    All verbs but `described` are collective: every rank calls them, with the same arguments.

    Args:
        opened: what this rank has opened of the cluster's folder.
    """

    members = "the ranks"

    def __init__(self, opened: ClusterParts) -> None:
        self._opened = opened
        self._world = opened.world
        where = f"{opened.local.config.path}, rank {opened.world.rank}"
        refuse_in_children(self, where, ("_world",))

    # A new checkpoint.

    def begin(
        self,
        tag: str | None,
        model: ModelState | None,
        reader: JsonView | None,
    ) -> RankDraft:
        """As Parts."""
        opened, world = self._opened, self._world
        dense: dict[str, bytes] = {}

        def prepare() -> Json:
            opened.check_usable()
            if opened.is_diverged:
                raise ConfigError("checkpoint: a restore failed; call restore() again first")
            if tag is not None:
                check_tag(tag)
            if world.rank == 0:
                dense.update(dense_side.encode_dense(model, reader))
            told = [holds_dense(dense), dense_side.MODEL in dense, asdict(before)]
            return {
                "tag": tag,
                "name": new_name(),
                "created": time(),
                "dense": told,
                "names": opened.names_here(),
            }

        before = opened.local.parts.checkpoints.dense_mark
        told = agree(world, "checkpoint", prepare)
        _check_one_name("checkpoint", [one["tag"] for one in told])
        opened.take_names([one["names"] for one in told])
        check_free(tag, opened.promotions)  # `commit` looks again
        name = told[0]["name"]
        mark = self._mark_of(name, [one["dense"] for one in told])
        return RankDraft(name, tag, told[0]["created"], dense, before, mark)

    def _mark_of(self, name: str, told: Sequence[tuple[bool, bool, Json]]) -> DenseMark:
        """What the parts of a new checkpoint say of its dense side; the same on every rank.

        Args:
            name: of the checkpoint.
            told: of each rank: has it been given a dense side, a model, and the mark of its rows.
        """
        is_given, has_model, _ = told[0]
        if is_given:
            return DenseMark(has_model=has_model, whole=name)
        marks = [DenseMark(**mark) for _, _, mark in told]
        if fitting_all(None if mark.is_trained else mark.whole for mark in marks) is None:
            return replace(marks[0], is_trained=True)
        current = self._opened.catalog.current
        if not marks[0].has_model or marks[0].source or current is None:
            return marks[0]
        return replace(marks[0], source=text_of(current.tag or current.id))

    def save_parts(self, draft: RankDraft) -> None:
        """As Parts: on every rank."""
        self._opened.is_unsaved = True  # what the own store saves is not yet of all ranks
        saved = attempt(self._world, "saving the parts", lambda: self._save_part(draft))
        if saved.failure is not None:  # all ranks know, so none commits
            self._drop_part(draft.part_tag, draft.before)
            raise saved.failure
        draft.saved = saved.value()

    def commit(self, draft: RankDraft) -> Taken:
        """As Parts: rank 0 writes CLUSTER."""
        opened, saved = self._opened, draft.saved
        checkpoint = ClusterCheckpoint(
            id=opened.catalog.next_id,
            name=draft.name,
            tag=draft.tag,
            created=draft.created,
            generation=opened.catalog.generation,
            parts=tuple(PartSize(one["rows"], one["bytes"]) for one in saved),
        )
        self._commit(checkpoint, draft.before)
        opened.is_unsaved = False
        return Taken(
            [one["rows_written"] for one in saved],
            [one["bytes_written"] for one in saved],
            draft.mark.described(),
        )

    def tidy(self, draft: RankDraft) -> None:
        """As Parts; what cannot go now goes the next time."""
        self._opened.tidy()

    # Those that are kept.

    def to_restore(self, tag: str | int | None) -> ClusterCheckpoint:
        """As Parts."""
        opened = self._opened
        local = opened.local
        opened.read_names("restore")

        def prepare() -> str | int | None:
            opened.check_usable()
            if local.num_open_pipelines or local.pins:
                raise ConfigError(
                    f"restore: {local.num_open_pipelines} open pipeline(s) and {local.pins} "
                    "pins of batches in flight; leave the pipeline's `with` block first"
                )
            checkpoint = self._find(tag)
            if checkpoint.generation == opened.catalog.generation:
                local.checkpoint_blobs(checkpoint.part_tag)  # it can be read
            return tag

        _check_one_name("restore", agree(self._world, "restore", prepare))
        return self._find(tag)

    def to_read(self, tag: str | int | None) -> ClusterCheckpoint | None:
        """As Parts."""
        opened = self._opened
        opened.read_names("checkpoint_state")

        def prepare() -> str | int | None:
            if tag is not None or opened.catalog.current is not None:
                self._find(tag)
            return tag

        _check_one_name("checkpoint_state", agree(self._world, "checkpoint_state", prepare))
        if tag is None and opened.catalog.current is None:
            return None
        return self._find(tag)

    def to_delete(self, tag: str | int) -> ClusterCheckpoint:
        """As Parts."""
        opened = self._opened
        opened.read_names("delete_checkpoint")

        def prepare() -> str | int:
            opened.check_usable()
            check_is_named(tag)
            self._find(tag)
            return tag

        _check_one_name("delete_checkpoint", agree(self._world, "delete_checkpoint", prepare))
        return self._find(tag)

    def state_of(self, whole: ClusterCheckpoint) -> Dense:
        """As Parts: from the rank that sees its first part, on all ranks."""
        opened, world = self._opened, self._world
        is_own = whole.generation == opened.catalog.generation
        source = sources_of(opened.path, opened.catalog, whole)[0]
        reader = 0 if is_own else find_readers(world, [source])[0]
        held: dict[str, bytes] = {}

        def load() -> None:
            if world.rank == reader:
                held.update(
                    opened.local.checkpoint_blobs(whole.part_tag) if is_own else source.blobs()
                )

        agree(world, "reading the model", load)
        names = (dense_side.MODEL, dense_side.READER)
        dense = {name: held[name] for name in names if name in held}
        return dense_side.decode_dense(share_blobs(world.control, dense))

    def go_back(self, whole: ClusterCheckpoint) -> Exception | None:
        """As Parts; what has failed on some ranks bars new checkpoints until a restore succeeds."""
        opened = self._opened
        if whole.generation != opened.catalog.generation:
            failure = self._move_in(whole)
        else:
            failure = self._return_to(whole)
        if failure is not None:
            return failure
        opened.is_unsaved = False
        opened.tidy()
        return None

    def delete(self, whole: ClusterCheckpoint) -> list[str]:
        """As Parts: CLUSTER first."""
        opened = self._opened
        opened.commit(partial(opened.catalog.without, whole))
        readers = agree(self._world, "deleting parts", opened.tidy)
        return [reader for of_rank in readers for reader in of_rank]

    def described(self) -> list[Json]:
        """As Parts. Not collective: every rank knows them; names as of its last collective verb."""
        return self._opened.catalog.described(self._opened.promotions)

    def _find(self, tag: str | int | None) -> ClusterCheckpoint:
        """By the names that all ranks have looked at."""
        opened = self._opened
        return opened.catalog.find(opened.path, tag, opened.promotions)

    # The part of this rank.

    def _save_part(self, draft: RankDraft) -> dict[str, int]:
        opened = self._opened
        local, current = opened.local, opened.catalog.current
        blobs = {**draft.dense, **opened.name.blobs()}
        if draft.mark.is_taken_over and current is not None and self._world.rank == 0:
            blobs.update(local.checkpoint_blobs(current.part_tag, DENSE_PARTS))
        info = local.parts.checkpoints.save(draft.part_tag, blobs, mark=draft.mark)
        listed = next(one for one in local.checkpoints() if one["tag"] == draft.part_tag)
        return {
            "rows": listed["rows"],
            "bytes": listed["bytes"],
            "rows_written": info["rows_written"],
            "bytes_written": info["bytes"],
        }

    def _drop_part(self, tag: str, mark: DenseMark) -> None:
        """This rank's part of a checkpoint that will not be; an opening drops what cannot go now.

        Args:
            tag: of the part.
            mark: of the rows, as it was before.
        """
        self._opened.is_unsaved = True
        self._opened.local.parts.checkpoints.dense_mark = mark
        with suppress(HpsError):
            self._opened.local.delete_checkpoint(tag)

    def _commit(self, new: ClusterCheckpoint, before: DenseMark) -> None:
        """Makes a checkpoint of all parts the current one; `before` is the mark as it was."""
        opened = self._opened
        opened.is_unsaved = True  # until the checkpoint is made, whatever is raised
        opened.commit(
            lambda names: opened.catalog.with_checkpoint(new, opened.config.ssd.keep_last, names),
            undo=lambda: self._drop_part(new.part_tag, before),
        )

    def _return_to(self, checkpoint: ClusterCheckpoint) -> Exception | None:
        """To a checkpoint that these ranks took."""
        opened = self._opened

        def go_back() -> None:
            opened.local.restore(checkpoint.part_tag)

        failure = attempt(self._world, "going back", go_back).failure
        opened.is_diverged = failure is not None
        if failure is None and checkpoint.id != opened.catalog.current_id:
            opened.commit(lambda _: opened.catalog.with_current(checkpoint))
        return failure

    def _move_in(self, checkpoint: ClusterCheckpoint) -> Exception | None:
        """To one of other ranks: their stores stay, the rows are appended to the own ones."""
        opened, world = self._opened, self._world
        sources = sources_of(opened.path, opened.catalog, checkpoint)
        find_readers(world, sources)  # before anything changes
        name = world.control.gather(new_name())[0]
        moved = replace(checkpoint, name=name, generation=opened.catalog.generation)
        opened.is_diverged = True
        try:
            made = move_rows(world, sources, OwnStore(opened.local, moved.part_tag, opened.name))
        except HpsError as error:
            return error
        opened.is_diverged = False
        moved = replace(moved, parts=tuple(made))
        self._commit(moved, opened.local.parts.checkpoints.dense_mark)
        return None


def _check_one_name(verb: str, names: Sequence[str | int | None]) -> None:
    """Raises ConfigError unless all ranks named the same."""
    if any(name != names[0] for name in names):
        raise ConfigError(f"{verb}: the ranks name different checkpoints: {names}; name one")
