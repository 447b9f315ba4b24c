"""The way in: `open_reader` picks the reader of a format.

Above it: the command line, users. Below it: the readers of text and of records.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hps.config import TableConfig
from hps.errors import ConfigError
from hps.reader.batch_source import BatchSource
from hps.reader.config import WITH_COLUMNS, ReaderConfig
from hps.reader.files import Batches, PathLike, find_files
from hps.reader.find_format import find_format
from hps.reader.reader import Reader
from hps.reader.schema import check_tables
from hps.reader.store_rules import check_store

if TYPE_CHECKING:
    from hps.contracts.training import RowServer


def open_reader(
    paths: PathLike | Sequence[PathLike] | Batches,
    *,
    tables: Sequence[TableConfig],
    config: ReaderConfig,
    server: "RowServer | None" = None,
) -> Reader:
    """An iterator of the log's batches.

    Args:
        paths: the log's file, or its files in order; a pattern such as "day-*.tsv" stands for the
            files that match it, sorted by name. Batches run across the files' borders. Or record
            batches of arrow, read as parquet: a callable that gives an iterator of
            `pyarrow.RecordBatch` or `pyarrow.Table` anew at each call, an iterable of them, a
            Table, a Dataset, or what exports an arrow stream; a mere iterator is read once.
        tables: whose features the batches carry; `hps.Config.tables` fits.
        config: the format and how to cut it; a format of None is told by the files.
        server: whose rows the batches are for: refuses now what `hps.Pipeline` would refuse.

    Raises:
        ConfigError: no file, a format that cannot be told, a feature that the log does not have, or
            one that two tables take; an iterator that is to be read more than once.
        StoreError: a file that cannot be read.
        DataError: a file that is not of the format, as far as its beginning shows.

    Source: docs/formats.md.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".libsvm") as log:
    ...     written = log.write(b"1 7:0.5 9:1\\n0 8:1\\n")
    ...     log.flush()
    ...     tables = [TableConfig(name="ads", dim=4)]
    ...     config = ReaderConfig(format="libsvm", batch_size=2)
    ...     for batch in open_reader(log.name, tables=tables, config=config):
    ...         print(batch.labels.tolist(), batch.features["ads"].keys_L.tolist())
    [1.0, 0.0] [7, 9, 8]
    """
    files = find_files(paths)
    checked = check_tables(tables)
    if config.format is None:
        config = replace(config, format=find_format(files, config.dense))
    sources = [one for one in files if isinstance(one, BatchSource)]
    if sources and config.format not in WITH_COLUMNS:
        raise ConfigError(
            f"{sources[0]}: record batches are read as parquet, and the log is said to be "
            f'{config.format}; give format="parquet", or None'
        )
    reader: Reader
    if config.format in WITH_COLUMNS:
        from hps.reader.record_reader import RecordReader  # pyarrow takes its time to import

        reader = RecordReader(files, checked, config)
    else:
        from hps.reader.text_reader import TextReader

        reader = TextReader(files, checked, config)
    if server is not None:
        check_store(reader, server)
    return reader
