"""Origin: what versions are published of: a store, a folder of ranks, or the servers of a service.

Above it: publisher.py. Below it, in other files: store_origin.py, hps/service/client/publishing.py.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, Self, TypeVar

from hps.common.json_text import Json, JsonView
from hps.config import TableConfig
from hps.publish.options import PublishOptions
from hps.publish.table_files import TableFiles, VersionFolder


class Published(Protocol):
    """One checkpoint of an origin."""

    @property
    def created(self) -> float:
        """When it was taken, seconds since 1970: this names it, also once a compaction has given it
        another id."""

    @property
    def name(self) -> str:
        """Its tag, or its id as id:N."""

    @property
    def period(self) -> int:
        """Of the store then."""

    @property
    def seed(self) -> int:
        """Of new rows."""

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """By name."""

    @property
    def model(self) -> Json | None:
        """What it holds beside rows; None: nothing."""

    @property
    def keeps_files(self) -> bool:
        """Whether it can be read as long as it is open, whatever newer ones come: then it may get
        its name while its rows are written."""

    def keeps_model(self, before: Self) -> bool:
        """Whether it is certain that it holds, beside rows, what an older checkpoint holds."""

    def source(self) -> Json:
        """What a version tells of the checkpoint that it is of: at least `created`."""

    def why_apart(self, number: int, source: JsonView) -> str:
        """Why a version of this checkpoint cannot follow one of another; empty if it can.

        Args:
            number: of the other version, for the message.
            source: of that one, as `source` gave it.
        """

    def close(self) -> None:
        """Lets it go; nothing to do the second time."""


C = TypeVar("C", bound=Published)


class Origin(Protocol[C]):
    """Where checkpoints are, and who writes their rows."""

    def open(
        self, checkpoint: str | int | None, beside: C | None, *, shares_index: bool = False
    ) -> C:
        """A checkpoint.

        Args:
            checkpoint: its tag, promoted name or id; None: the newest.
            beside: another one, which is nearly the same.
            shares_index: with that one, where both are read here; it can be asked for keys alone
                from then on.

        Raises:
            ConfigError: there is none, or not that one. StoreError, CorruptionError, RemoteError:
                it cannot be had.
        """

    def find(self, source: JsonView, after: C, known: C | None = None) -> C | None:
        """The checkpoint that a version is of, by its source; None: it is not kept any more.

        Args:
            source: of the version.
            after: a newer one, just opened.
            known: one that is open: itself is returned if it is that one, and still kept.
        """

    def pin(self, checkpoint: C, name: str, safe: Callable[[], object] = lambda: None) -> None:
        """Keeps a checkpoint, and the one that had the name before, whatever newer ones come.

        Args:
            checkpoint: it.
            name: that it gets.
            safe: called, perhaps, once no newer one can come before the name is there, which is
                before it is durable.
        """

    def write(
        self,
        folder: VersionFolder,
        options: PublishOptions,
        after: C,
        before: C | None,
        *,
        is_base: bool,
    ) -> list[TableFiles]:
        """Writes the rows of a checkpoint, or what changed in them, or both, as `write_tables`."""
