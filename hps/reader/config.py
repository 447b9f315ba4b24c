"""How a click log is to be read: frozen, keyword-only, checked when made.

Above it: `open_reader`. Below it: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from hps.common.field_checks import require_share
from hps.config import MAX_THREADS, num_cores
from hps.errors import ConfigError
from hps.reader.index_fields import IndexFields

FORMATS = ("criteo", "parquet", "csv", "libsvm", "libffm", "slots")
WITH_COLUMNS = ("parquet", "csv")  # whose columns have names
WEIGHTED = ("libsvm", "libffm")  # whose tokens have values
KEY_SLOT, SLOT_KEY = "key:slot", "slot:key"
MAX_BATCH_SIZE = 2**24
MAX_DENSE = 2**16
MAX_PARTS = 2**16
MAX_SHUFFLE_BUFFER = 2**23  # with a batch more it is at most MAX_BATCH_SIZE
WHOLE = (0.0, 1.0)
HASHED, RAW = "hashed", "raw"
# How the numbers of an example become dense values; docs/formats.md says what each does.
NO_TRANSFORM, LOG1P, SIGNED_LOG1P = "none", "log1p", "signed_log1p"
_TRANSFORMS = {
    "criteo": (SIGNED_LOG1P, LOG1P),
    "parquet": (NO_TRANSFORM, SIGNED_LOG1P),
    "csv": (NO_TRANSFORM, SIGNED_LOG1P),
    "slots": (NO_TRANSFORM, SIGNED_LOG1P),
    "libsvm": (NO_TRANSFORM,),
    "libffm": (NO_TRANSFORM,),
}


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """The log's format and how it is cut into batches.

    Args:
        format: "criteo", "parquet", "csv", "libsvm", "libffm" or "slots"; None: told by the files'
            names and first bytes.
        batch_size: examples in a batch; the last of an epoch may have fewer.
        dense: numbers in an example. None: 13 for criteo, else as the log has it.
        dense_columns: parquet and csv: names of the columns of dense values, in their order. None:
            every column of floats and decimals, in the order of the first file. libffm, and libsvm
            with `fields`: those fields whose values are dense values; None: none are.
        fields: libsvm only: name of a feature -> the indices that it has, as an index, a range
            "0-942", a list of these, or "*" for all that no other has; an index that none has makes
            its line bad. None: all indices are the one feature "index".
        slot_layout: slots only: "key:slot" or "slot:key", which a line without a label has; others
            tell it themselves. None: such a line needs a dense_feature, which tells it, too.
        nan_columns: parquet and csv only: dense columns whose missing values, null and NaN, come as
            NaN in a batch, for an `hps.features` transform; in others null is 0, or as
            `dense_transform` has it, and a row with NaN is bad.
        dense_transform: "none", "log1p" or "signed_log1p"; None takes "signed_log1p" for criteo,
            else "none".
        vocabularies: feature -> the name with which its values are hashed instead of its own: equal
            values of features of one vocabulary are one key. None: of each its own. Keys that are
            numbers as they are, and those of a shared vocabulary, are equal already.
        separators: parquet and csv only: column of text -> what is between two values of a text,
            each of which is a key; nothing between two separators is no value. None: each text is
            one value.
        label: parquet and csv only: the column of labels.
        needs_labels: False reads a log without labels as of labels 0: in parquet and csv without
            that column, and those of weights and groups as if they were not named; in libsvm,
            libffm and slots lines that do not begin with one. criteo always has them.
        weight: parquet and csv only: the column of numbers that say how much an example counts in
            the loss, `Batch.weights`; neither a feature nor a dense value. None: all count alike.
        group: parquet and csv only: the column of whole numbers or text that says which group an
            example belongs to, `Batch.groups`; it stays a feature unless `ignore` names it. None:
            there are no groups.
        ignore: parquet and csv only: columns that are left out.
        delimiter: csv only: one character; None takes that of comma, tab, semicolon and bar of
            which the header has most.
        hash_keys: of keys that are whole numbers. True: hashed with their feature, as text. False:
            keys as they are. None: hashed in parquet and csv, as they are in libsvm, libffm, slots.
            Other values are always hashed.
        on_error: "raise" at a bad line, or "skip" it and count.
        epochs: how often the whole log is read. No batch spans two epochs.
        shuffle_files: seed by which the order of the files is drawn, another for each epoch; None
            reads them as they are given.
        shuffle_buffer: examples, up to 8,388,608, that are read together, shuffled and cut into
            batches; 0 keeps the log's order. Taken in whole batches of the same epoch:
            `block_size`. All of them lie in memory, of every part.
        shuffle_seed: by which they are shuffled, in another order for each epoch.
        drop_last: leave out an epoch's last batch if it is not full.
        threads: that parse; 0 takes the cores this process may use. Never changes a batch.
        hash_range: (low, high), 0 <= low < high <= 1: only examples whose content's hash, a number
            from 0 to below 1, is at least low and below high. None takes all. Of two ranges that
            meet, (0, 0.1) and (0.1, 1), each example is in one; equal examples are in the same.
        negative_rate: above 0, at most 1: of the examples whose label is 0 only this share is kept,
            by another hash of the same content; all whose label is 1 are.
        part: (rank, size): of a batch of G examples the reader yields examples G * rank // size up
            to G * (rank + 1) // size alone, maybe none. Positions and counts stay those of the
            whole batches, so that any number of parts goes on from them.

    Raises:
        ConfigError: a field outside its limits.

    >>> ReaderConfig(format="criteo", batch_size=512).epochs
    1
    """

    format: str | None = None
    batch_size: int = 4096
    dense: int | None = None
    dense_columns: Sequence[str] | None = None
    fields: Mapping[str, object] | None = None
    slot_layout: str | None = None
    nan_columns: Sequence[str] = ()
    dense_transform: str | None = None
    vocabularies: Mapping[str, str] | None = None
    separators: Mapping[str, str] | None = None
    label: str = "label"
    needs_labels: bool = True
    weight: str | None = None
    group: str | None = None
    ignore: Sequence[str] = ()
    delimiter: str | None = None
    hash_keys: bool | None = None
    on_error: str = "raise"
    epochs: int = 1
    shuffle_files: int | None = None
    shuffle_buffer: int = 0
    shuffle_seed: int = 0
    drop_last: bool = False
    threads: int = 0
    hash_range: tuple[float, float] | None = None
    negative_rate: float = 1.0
    part: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        if self.format is not None:
            self._check_format(self.format)
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f"ReaderConfig.on_error={self.on_error!r} must be 'raise' or 'skip'")
        if not isinstance(self.label, str) or not self.label:
            raise ConfigError(f"ReaderConfig.label={self.label!r} must be the name of a column")
        if self.delimiter is not None:
            self._check_delimiter(self.delimiter)
        if not isinstance(self.needs_labels, bool):
            raise ConfigError(f"ReaderConfig.needs_labels={self.needs_labels!r} must be a bool")
        if not isinstance(self.hash_keys, bool | None):
            raise ConfigError(f"ReaderConfig.hash_keys={self.hash_keys!r} must be a bool, or None")
        self._check_vocabularies(self.vocabularies or {})
        self._check_separators(self.separators or {}, self.group)
        if self.fields is not None:
            fields = IndexFields.of(self.fields, "ReaderConfig.fields").to_dict()
            object.__setattr__(self, "fields", fields or None)
        self._check_names("dense_columns", self.dense_columns or ())
        self._check_names("nan_columns", self.nan_columns)
        self._check_names("ignore", self.ignore)
        self._check_columns()
        self._check_number("batch_size", self.batch_size, 1, MAX_BATCH_SIZE)
        self._check_number("epochs", self.epochs, 1, 2**31)
        self._check_number("threads", self.threads, 0, MAX_THREADS)
        if self.shuffle_files is not None:
            self._check_number("shuffle_files", self.shuffle_files, 0, 2**63)
        self._check_number("shuffle_buffer", self.shuffle_buffer, 0, MAX_SHUFFLE_BUFFER)
        self._check_number("shuffle_seed", self.shuffle_seed, 0, 2**63)
        if self.dense is not None:
            self._check_number("dense", self.dense, 0, MAX_DENSE)
        if self.hash_range is not None:
            object.__setattr__(self, "hash_range", _checked_range(self.hash_range))
        self._check_rate()
        if not isinstance(self.part, tuple) or len(self.part) != 2:
            raise ConfigError(f"ReaderConfig.part={self.part!r} must be two numbers: rank, size")
        self._check_number("part[1]", self.part[1], 1, MAX_PARTS)
        self._check_number("part[0]", self.part[0], 0, self.part[1] - 1)

    def advice(self, what: str) -> str:
        """What to do about a bad one, for an error to say: what is scored may not be skipped.

        >>> ReaderConfig(needs_labels=False).advice("row")
        'correct the row'
        """
        if not self.needs_labels:
            return f"correct the {what}"
        return f"correct the {what}, or skip bad {what}s with on_error='skip' (--on-error skip)"

    def _check_columns(self) -> None:
        """Of a column that has a use of its own."""
        for field, others in (("weight", ("label", "group")), ("group", ("label",))):
            given = getattr(self, field)
            if given is None:
                continue
            if not isinstance(given, str) or not given:
                raise ConfigError(
                    f"ReaderConfig.{field}={given!r} (--{field}) must be the name of a column, or "
                    "None"
                )
            for other in others:
                if given == getattr(self, other):
                    raise ConfigError(
                        f"ReaderConfig.{field}={given!r} (--{field}) is the column of {other}s, "
                        "too; name another one"
                    )
            if given in (self.dense_columns or ()):
                raise ConfigError(
                    f"ReaderConfig.dense_columns (--dense-columns) names {given!r}, the column of "
                    f"{field}s (--{field}), which cannot be a dense value, too"
                )

    @staticmethod
    def _check_vocabularies(given: object) -> None:
        names = [*given, *given.values()] if isinstance(given, Mapping) else [None]
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigError(
                f"ReaderConfig.vocabularies={given!r} must be a dict of features and the names of "
                "their vocabularies"
            )

    @staticmethod
    def _check_separators(given: object, group: str | None) -> None:
        texts = [*given, *given.values()] if isinstance(given, Mapping) else [None]
        if not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(
                f"ReaderConfig.separators={given!r} must be a dict of columns and of what is "
                "between two values of a text, at least one character"
            )
        if group in texts[: len(texts) // 2]:
            raise ConfigError(
                f"ReaderConfig.separators divides the values of {group!r}, the column of groups "
                "(--group), of which an example has one; leave one of the two out"
            )

    def _check_format(self, given: str) -> None:
        if given not in FORMATS:
            raise ConfigError(f"ReaderConfig.format={given!r} must be one of {FORMATS}")
        if self.dense_transform not in (None, *_TRANSFORMS[given]):
            raise ConfigError(
                f"ReaderConfig.dense_transform={self.dense_transform!r} (--dense-log): dense "
                f"values of {given} can be read by one of {_TRANSFORMS[given]}"
            )
        if given in ("criteo", "csv") and self.hash_keys is False:
            raise ConfigError(
                f"ReaderConfig.hash_keys=False (--raw-keys): the categories of {given} are text, "
                "which is always hashed; leave it out"
            )
        self._check_text(given)
        for field in ("nan_columns", "ignore", "weight", "group", "separators"):
            if given not in WITH_COLUMNS and getattr(self, field):
                raise ConfigError(
                    f"ReaderConfig.{field}={getattr(self, field)!r}: only parquet and csv have "
                    f"columns with names, and the log is read as {given}"
                )
        if given != "csv" and self.delimiter is not None:
            raise ConfigError(
                f"ReaderConfig.delimiter={self.delimiter!r} (--delimiter) is for csv, and the log "
                f"is read as {given}"
            )

    def _check_text(self, given: str) -> None:
        """Of fields, dense ones and the layout of slots."""
        if given != "libsvm" and self.fields is not None:
            raise ConfigError(
                f"ReaderConfig.fields={list(self.fields)}: they are of the indices of libsvm, and "
                f"the log is read as {given}; leave them out"
            )
        if self.slot_layout is not None and (
            given != "slots" or self.slot_layout not in (KEY_SLOT, SLOT_KEY)
        ):
            raise ConfigError(
                f"ReaderConfig.slot_layout={self.slot_layout!r} must be {KEY_SLOT!r} or "
                f"{SLOT_KEY!r}, of slots; the log is read as {given}"
            )
        if not self.dense_columns or given in (*WITH_COLUMNS, "libffm"):
            return
        if given != "libsvm":
            raise ConfigError(
                f"ReaderConfig.dense_columns={self.dense_columns!r}: only parquet and csv have "
                "columns with names, and libffm and libsvm fields; the log is read as "
                f"{given}"
            )
        fields = self.fields or self.dense_columns  # without fields its reader says so
        missing = [name for name in self.dense_columns if name not in fields]
        if missing:
            raise ConfigError(
                f"ReaderConfig.dense_columns={missing!r}: in libsvm they are fields, which are "
                f"{list(fields)}"
            )

    def _check_rate(self) -> None:
        require_share("ReaderConfig.negative_rate", self.negative_rate)
        if self.negative_rate < 1 and not self.needs_labels:
            raise ConfigError(
                f"ReaderConfig.negative_rate={self.negative_rate!r} chooses by labels, and "
                "needs_labels=False reads logs without them; leave one of the two out"
            )

    def _check_delimiter(self, given: object) -> None:
        is_one = isinstance(given, str) and len(given) == 1 and given.isascii()
        if not is_one or given in ('"', "\n", "\r"):
            raise ConfigError(
                f"ReaderConfig.delimiter={given!r} (--delimiter) must be one ASCII character that "
                "is neither a quote nor a line end"
            )

    def _check_names(self, field: str, names: Sequence[str]) -> None:
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        if not is_list or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"ReaderConfig.{field}={names!r} must be a list of names of columns")
        if len(set(names)) != len(names):
            raise ConfigError(f"ReaderConfig.{field}={list(names)!r}: a name appears twice")

    def _check_number(self, name: str, value: object, least: int, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(
                f"ReaderConfig.{name}={value!r} must be a whole number from {least} to {most}"
            )

    @property
    def is_sample(self) -> bool:
        """True if some examples of the log are left out by their hash.

        >>> ReaderConfig(hash_range=(0, 1)).is_sample, ReaderConfig(negative_rate=0.1).is_sample
        (False, True)
        """
        return self.hash_range not in (None, WHOLE) or self.negative_rate < 1

    @property
    def hashes_numbers(self) -> bool:
        """True if keys that are whole numbers are hashed with their feature.

        >>> [ReaderConfig(format=kind).hashes_numbers for kind in ("csv", "slots")]
        [True, False]
        """
        if self.hash_keys is not None:
            return self.hash_keys
        return self.format in (*WITH_COLUMNS, "criteo")

    @property
    def key_rule(self) -> str:
        """ "hashed" or "raw": what becomes of keys that are whole numbers."""
        return HASHED if self.hashes_numbers else RAW

    @property
    def transform(self) -> str:
        """How numbers become dense values, after None has been resolved."""
        return self.dense_transform or _TRANSFORMS[self.format or "libsvm"][0]

    @property
    def block_size(self) -> int:
        """Examples that are read before the first of them is handed out.

        >>> ReaderConfig(batch_size=64, shuffle_buffer=100).block_size
        128
        """
        return -(-max(self.shuffle_buffer, 1) // self.batch_size) * self.batch_size

    def in_blocks(self) -> Self:
        """How the log is cut before examples are shuffled: into blocks, whole on every part, the
        last of an epoch as short as it is. Itself where nothing is shuffled."""
        if not self.shuffle_buffer:
            return self
        return replace(
            self, batch_size=self.block_size, shuffle_buffer=0, drop_last=False, part=(0, 1)
        )

    def own_part(self, num_examples: int) -> tuple[int, int]:
        """First example of the own part of a batch, and the one after its last.

        >>> ReaderConfig(format="criteo", part=(1, 3)).own_part(100)
        (33, 66)
        """
        rank, size = self.part
        return num_examples * rank // size, num_examples * (rank + 1) // size

    def num_threads(self) -> int:
        """Threads that parse, after 0 has been resolved to the cores at hand."""
        return self.threads or min(num_cores(), MAX_THREADS)


def _checked_range(given: object) -> tuple[float, float]:
    """A hash_range as two floats; a list, as JSON has it, will do.

    Raises:
        ConfigError: it is not.
    """
    is_pair = isinstance(given, tuple | list) and len(given) == 2 and all(map(_is_number, given))
    if isinstance(given, tuple | list) and is_pair and 0 <= given[0] < given[1] <= 1:
        return float(given[0]), float(given[1])
    raise ConfigError(
        f"ReaderConfig.hash_range={given!r} must be two numbers (low, high), 0 <= low < high <= 1"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
