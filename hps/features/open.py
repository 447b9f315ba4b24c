"""The way in: a reader whose batches are as a features file describes them.

Above it: `hps train`, loops of one's own. Below it: kinds.py, measure.py, transform.py, and the
readers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hps.config import TableConfig
from hps.features.features import Features
from hps.features.kinds import by_index, reading_for
from hps.features.measure import measured
from hps.features.raw import RawColumns
from hps.features.transform import FeatureTransform
from hps.reader.config import ReaderConfig
from hps.reader.files import Batches, PathLike, find_files
from hps.reader.find_format import find_format
from hps.reader.open import open_reader

if TYPE_CHECKING:
    from hps.reader.reader import Reader


def open_with_features(
    paths: PathLike | Sequence[PathLike] | Batches,
    *,
    tables: Sequence[TableConfig],
    config: ReaderConfig,
    features: Features,
    before: FeatureTransform | None = None,
) -> "Reader":
    """As `hps.reader.open_reader`, with columns of the kinds that are described, and transformed.

    What is to be measured is measured over the log's first 10,000 examples.

    Args:
        paths: the log's files, or record batches as `open_reader` takes them.
        tables: the one table that takes the features of which the file says no other.
        config: how the log is read.
        features: what its columns are, and what is made of them.
        before: of a model that goes on; of a column that it describes alike, what it measured
            counts, not this log.

    Raises:
        ConfigError: a description that does not fit the log; and what open_reader raises.

    Source: docs/features.md.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".csv") as log:
    ...     written = log.write(b"label,place,age\\n1,home,30\\n0,away,50\\n")
    ...     log.flush()
    ...     text = '[columns.age]\\nkind = "dense"\\nclip = [0, 40]\\n'
    ...     tables, config = [TableConfig(name="ads", dim=4)], ReaderConfig()
    ...     features = Features.from_toml(text)
    ...     reader = open_with_features(
    ...         log.name, tables=tables, config=config, features=features
    ...     )
    ...     next(reader).dense.tolist()
    [[30.0], [40.0]]
    """
    files = find_files(paths)
    if config.format is None:
        config = replace(config, format=find_format(files, config.dense))
    config, tables = reading_for(features, files, tables, config)
    reader = open_reader(files, tables=tables, config=config)
    # Names first: what cannot be found need not be measured.
    numbers = measured(_as_before(by_index(features, config), config, before), reader)
    reader.use(FeatureTransform(features, numbers, RawColumns.of(reader)))
    return reader


def _as_before(
    features: Features, config: ReaderConfig, before: FeatureTransform | None
) -> Features:
    """The features with the numbers that were measured before, of columns described alike."""
    if before is None:
        return features
    columns = []
    asked = by_index(before.asked, config)
    for column in features.columns:
        is_same = asked.column(column.name) == column
        known = before.measured.column(column.name) if is_same else None
        columns.append(known or column)
    return replace(features, columns=columns)
