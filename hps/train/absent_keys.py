"""AbsentKeys: which share of the keys of examples that are scored has no row, by feature.

Above it: `hps evaluate`, `hps predict`, model.py. Below it: `ParameterServer.contains`;
raw_values.py, which makes keys of what a log has. A key without a row is scored with its initial
value, as if its feature said nothing.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hps.common.arrays import on_host
from hps.common.json_text import Json, JsonView
from hps.common.row_layout import Keys
from hps.errors import HpsError
from hps.parameter_server.server import ParameterServer
from hps.train.overlaid_rows import OverlaidRows
from hps.train.raw_values import RawValues
from hps.types import Batch

if TYPE_CHECKING:
    from hps.reader.reader import Reader
    from hps.train.loaded import Loaded

# So many examples are looked at, and then of each so many one: a look costs about a tenth of a
# score.
_FIRST_EXAMPLES = 8192
_ONE_IN = 32
_MOST_KEPT = 4096  # keys of a feature by which the share of distinct ones is told
_ABSENT = np.uint64(1)
_HIGH_BITS = ~_ABSENT
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd: a product has all of a key
# Of occurrences. Where a table admits keys by a rule, rare ones have no row by that rule.
_MOST_ABSENT = 0.5
_MOST_NOT_ADMITTED = 0.95
_LEAST_OCCURRENCES = 50
_MOST_SHOWN = 6
_MOST_EXAMPLES = 3
_MOST_VALUES = 1000  # of a column that examples are looked for in

Flags = NDArray[np.bool_]


class _OfFeature:
    """What was seen of one feature's keys: all occurrences, and of the distinct keys those with
    the smallest products, which are drawn evenly from them. The lowest bit of a product says
    whether its key has no row: numbers by themselves are sorted several times as fast as with
    their places."""

    def __init__(self) -> None:
        self.occurrences = 0
        self.absent = 0
        self._products: Keys = np.empty(0, np.uint64)  # sorted
        self._limit: int | None = None  # products from it on are not kept
        self.examples: list[int] = []  # keys without a row

    def see(self, keys: Keys, are_absent: Flags) -> None:
        self.occurrences += len(keys)
        self.absent += int(np.count_nonzero(are_absent))
        if len(self.examples) < _MOST_EXAMPLES:
            new = dict.fromkeys([*self.examples, *(int(key) for key in keys[are_absent][:64])])
            self.examples = list(new)[:_MOST_EXAMPLES]
        products = (keys * _SPREAD) & _HIGH_BITS | are_absent
        if self._limit is not None:
            products = products[products < np.uint64(self._limit)]
        found = np.sort(np.concatenate([self._products, products]))
        is_first = np.ones(len(found), np.bool_)
        np.not_equal(found[1:], found[:-1], out=is_first[1:])
        found = found[is_first]
        if len(found) > _MOST_KEPT:
            self._limit = int(found[_MOST_KEPT])
            found = found[:_MOST_KEPT].copy()
        self._products = found

    def figures(self) -> Json:
        kept = len(self._products)
        distinct = kept if self._limit is None else round(kept * 2.0**64 / self._limit)
        return {
            "occurrences": self.occurrences,
            "absent_share": self.absent / self.occurrences,
            "distinct": distinct,
            "distinct_absent_share": float((self._products & _ABSENT).mean()),
        }


class AbsentKeys:
    """Counts, by feature, keys of scored examples that have no row. Any number of threads may use
    it.

    The first examples are looked at, later ones now and then, always the same ones of a log. Rows
    on servers, and those of versions while a newer one is taken over, are not asked: there is
    nothing to tell then.

    Args:
        loaded: what scores.
    """

    def __init__(self, loaded: "Loaded") -> None:
        self.loaded = loaded
        first_order = {} if loaded.recipe is None else loaded.recipe.first_order_tables
        self._tables = {table: first_order.get(table, table) for table in loaded.features}
        self._features: dict[str, _OfFeature] = {}  # of those with a key
        self._lock = threading.Lock()
        self._scored = 0  # examples
        self._looked_at = 0
        self._has_warned = False

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches as they come, each looked at, if it is due, before it is given."""
        for batch in batches:
            self.see(batch)
            yield batch

    def see(self, batch: Batch, is_hasty: bool = False) -> bool:
        """Looks at a batch that is scored, if it is due; True if it was.

        Args:
            is_hasty: of the first examples, too, one in so many is looked at: a look at few of
                them takes as long as their scores.
        """
        server, rows = self.loaded.server, self.loaded.rows
        if not isinstance(server, ParameterServer) or not len(batch):
            return False
        if isinstance(rows, OverlaidRows) and rows.overlays:
            return False
        with self._lock:
            first = 1 if is_hasty else _FIRST_EXAMPLES
            is_due = self._looked_at < max(first, self._scored // _ONE_IN)
            self._scored += len(batch)
            if not is_due:
                return False
            self._looked_at += len(batch)
            for table, names in self.loaded.features.items():
                ids = batch.features.get(table)
                if ids is None or not names:
                    continue
                keys = on_host(ids.keys_L).view(np.uint64)
                bounds = on_host(ids.offsets)[:: len(batch)]
                are_absent = ~np.asarray(server.contains(self._tables[table], keys), np.bool_)
                for name, first, last in zip(names, bounds[:-1], bounds[1:], strict=True):
                    if last > first:
                        of_feature = self._features.setdefault(name, _OfFeature())
                        of_feature.see(keys[first:last], are_absent[first:last])
            return True

    def figures(self) -> Json:
        """`absent_keys`: examples that were looked at, and by feature `occurrences` of keys in
        them, `distinct` ones (estimated above 4,096), and the share of either that has no row.
        Nothing where nothing was looked at."""
        with self._lock:
            if not self._looked_at:
                return {}
            features = {name: one.figures() for name, one in self._features.items()}
            return {"absent_keys": {"examples": self._looked_at, "features": features}}

    def suspects(self) -> list[str]:
        """Features most of whose occurrences have no row, though that is not their nature: keys
        that come once each, as those of visits, are expected to be new, unless all features are."""
        figures = self.figures()
        features = figures["absent_keys"]["features"] if figures else {}
        high = [name for name, one in features.items() if one["absent_share"] >= self._most(name)]
        if len(high) == len(features):
            return high
        usual = [
            name
            for name in high
            if features[name]["occurrences"] >= _LEAST_OCCURRENCES
            and 2 * features[name]["distinct"] <= features[name]["occurrences"]
        ]
        return high if usual else []

    def warn(self, reader: "Reader | None" = None, least: int = 0) -> None:
        """Says once, as a warning of this module's logger, which features are suspects, if any are.

        Args:
            reader: of the log, in which values without a row are looked for; None: keys are shown.
            least: examples by which it may be said.
        """
        if self._has_warned or self._looked_at < least:
            return
        names = self.suspects()
        with self._lock:
            if not names or self._has_warned:
                return
            self._has_warned = True
        features = self.figures()["absent_keys"]["features"]
        told = []
        for name in names[:_MOST_SHOWN]:
            values = _values_without_row(self.loaded, reader, name)
            shown = ", ".join(values or (f"key {key}" for key in self._features[name].examples))
            told.append(f"{name} ({_percent(features[name]['absent_share'])}, as {shown})")
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        logging.getLogger(__name__).warning(
            "hps: warning: most keys of these features have no row, and are scored as if they were "
            "never seen: %s%s; look for values written otherwise than in the training (spaces, a "
            "prefix, 785.0 for 785, another form of Unicode), another features file, new ids, or "
            "rows that have expired; `hps lookup FEATURE=VALUE --store DIR` shows a value's row",
            "; ".join(told),
            more,
        )

    def _most(self, feature: str) -> float:
        table = next(one for one, names in self.loaded.features.items() if feature in names)
        config = self.loaded.server.tables[self._tables[table]]
        return _MOST_ABSENT if config.admission is None else _MOST_NOT_ADMITTED


def format_absent(figures: JsonView) -> str | None:
    """A line for people; None where nothing was looked at.

    >>> one = {"occurrences": 9, "absent_share": 0.25, "distinct": 4, "distinct_absent_share": 0.5}
    >>> print(format_absent({"absent_keys": {"examples": 9, "features": {"user": one}}}))
    keys without a row, of occurrences (of distinct keys): user 25.0 % (50.0 %)
    """
    found = figures.get("absent_keys")
    if not found or not found["features"]:
        return None
    ordered = sorted(found["features"].items(), key=lambda one: -one[1]["absent_share"])
    parts = [
        f"{name} {_percent(one['absent_share'])} ({_percent(one['distinct_absent_share'])})"
        for name, one in ordered[:_MOST_SHOWN]
    ]
    if len(ordered) > _MOST_SHOWN:
        most = ordered[_MOST_SHOWN][1]["absent_share"]
        parts.append(f"{len(ordered) - _MOST_SHOWN} others at most {_percent(most)}")
    text = f"keys without a row, of occurrences (of distinct keys): {', '.join(parts)}"
    if "examples" in figures and found["examples"] < figures["examples"]:
        text += f"; by {found['examples']:,} of the examples"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _values_without_row(loaded: "Loaded", reader: "Reader | None", feature: str) -> Sequence[str]:
    """Some raw values of a feature, of the log's first rows, that have no row; none where the log
    has no such column, or cannot be read again."""
    from hps.reader.record_reader import RecordReader  # pyarrow takes its time to import

    server, recipe = loaded.server, loaded.recipe
    if not isinstance(reader, RecordReader) or recipe is None or feature not in reader.types:
        return []
    if not isinstance(server, ParameterServer) or not all(
        isinstance(path, Path) and path.is_file() for path in reader.paths
    ):
        return []
    values, found = RawValues(recipe, server.tables), []
    transform = recipe.make_transform()
    separator = None if transform is None else transform.measured.separators.get(feature)
    first_order = recipe.first_order_tables
    try:
        for text in _texts(reader, feature, separator):
            raw = values.value(feature, text)
            keys: Keys = np.array([key.number for key in raw.keys], np.uint64)
            if not np.any(server.contains(first_order.get(raw.table, raw.table), keys)):
                found.append(repr(text))
            if len(found) == _MOST_EXAMPLES:
                break
    except (HpsError, ValueError, UnicodeDecodeError):
        return found
    return found


def _texts(reader: "Reader", column: str, separator: str | None) -> Iterator[str]:
    """Different values of the first rows of a column, as text."""
    from hps.reader.record_reader import RecordReader

    assert isinstance(reader, RecordReader)
    batches = reader.raw_rows([column])
    batch = next(batches, None)
    batches.close()
    if batch is None:
        return
    values = batch.column(column).slice(0, _MOST_VALUES).to_pylist()
    texts = (value.decode() if isinstance(value, bytes) else value for value in values)
    single = (
        part
        for text in texts
        if text is not None
        for part in (text.split(separator) if separator else [text])
    )
    different = dict.fromkeys(str(one) for one in single if not isinstance(one, list))
    yield from islice((one for one in different if one), _MOST_VALUES)
