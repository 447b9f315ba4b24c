"""How a log is to be read for a features file: the kinds of its columns as a ReaderConfig.

Above it: open.py. Below it: the readers. Formats whose columns have names are read as the kinds
say; in others a column is what the format makes of it, and a kind that differs is refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.column import (
    CATEGORICAL,
    DENSE,
    GROUP,
    IGNORED,
    LABEL,
    SEQUENCE,
    WEIGHT,
    Column,
)
from hps.features.features import Features
from hps.reader.config import RAW, SIGNED_LOG1P, WEIGHTED, WITH_COLUMNS, ReaderConfig
from hps.reader.index_fields import IndexFields
from hps.reader.open import open_reader
from hps.reader.schema import sort_names
from hps.reader.urls import LogFile

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_OF_TEXT = "label"  # the name that formats without named columns print for it


def reading_for(
    features: Features,
    paths: Sequence[LogFile],
    tables: Sequence[TableConfig],
    config: ReaderConfig,
) -> tuple[ReaderConfig, Sequence[TableConfig]]:
    """How a log is read, and with which features, so that its columns are what a file says.

    Args:
        features: the file.
        paths: of the log.
        tables: one, which takes all features or names them.
        config: how the log would be read without the file; its format is told.

    Raises:
        ConfigError: a column that the log does not have, one whose values cannot be of its kind, or
            a config that says otherwise.
    """
    config = _with_roles(features, config)
    if features.vocabularies:
        config = replace(config, vocabularies=features.vocabularies)
    config = _with_separators(features, config)
    _check_logs(features, config)
    if config.format in WITH_COLUMNS:
        return _of_named_columns(features, paths, tables, config)
    config = _with_fields(features, config)
    for column in features.columns:
        if column.kind == DENSE and column.missing is not None and config.format != "criteo":
            raise ConfigError(
                f"{features.at('columns', column.name, 'missing')}: "
                f"columns.{column.name}.missing: in {config.format} no number "
                "is missing; leave it out"
            )
    return config, tables


def _with_separators(features: Features, config: ReaderConfig) -> ReaderConfig:
    """The config with what divides the text of columns of parquet and csv."""
    separators = features.separators
    if not separators:
        return config
    name = next(iter(separators))
    where = f"{features.at('columns', name, 'separator')}: columns.{name}.separator"
    if config.format not in WITH_COLUMNS:
        raise ConfigError(
            f"{where}: columns of parquet and csv have one, and the log is read as "
            f"{config.format}, which says itself how values are divided; leave it out"
        )
    if config.separators not in (None, separators):
        raise ConfigError(
            f"{where}: the file says {separators}, but the config has {config.separators!r} "
            "(ReaderConfig.separators); leave one of the two out"
        )
    return replace(config, separators=separators)


def _with_fields(features: Features, config: ReaderConfig) -> ReaderConfig:
    """The config with the fields of libsvm, and those of them, or of libffm, that are dense."""
    if features.fields and config.format != "libsvm":
        raise ConfigError(
            f"{features.at('fields')}: "
            f"fields: they are of the indices of libsvm, and the log is read as "
            f"{config.format}; leave them out"
        )
    if config.format not in WEIGHTED:
        return config
    if features.fields:
        if config.fields not in (None, features.fields):
            raise ConfigError(
                f"{features.at('fields')}: "
                f"fields: {dict(features.fields)}, but the config has "
                f"{config.fields!r} (ReaderConfig.fields); leave one of the two out"
            )
        config = replace(config, fields=features.fields)
    given = config.dense_columns or ()
    for name in given:
        if not _is(features, name, DENSE):
            raise ConfigError(
                f"{features.at('columns', name)}: "
                f"columns.{name}: it is said to be dense (--dense-columns); "
                "leave that out, or give it kind 'dense'"
            )
    dense = {*given, *features.of_kind(DENSE)}
    if config.format == "libffm":
        return replace(config, dense_columns=sort_names(list(dense)) or None)
    # Others are no fields, which the log's columns will show.
    names = [name for name in config.fields or () if name in dense]
    return replace(config, dense_columns=names or config.dense_columns)


def by_index(features: Features, config: ReaderConfig) -> Features:
    """The features with what is said of a dense field of several indices said of each of its dense
    values, but for those that are described themselves."""
    fields = features.fields or config.fields
    if not fields:
        return features
    of_index = IndexFields.of(fields)
    columns: list[Column] = []
    for column in features.columns:
        name = column.name
        is_several = name in fields and name != of_index.rest and of_index.num_indices(name) > 1
        if column.kind != DENSE or not is_several:
            columns.append(column)
            continue
        names = [f"{name} {index}" for index in of_index.indices(name)]
        columns += [replace(column, name=one) for one in names if features.column(one) is None]
    return replace(features, columns=columns)


def _with_roles(features: Features, config: ReaderConfig) -> ReaderConfig:
    """The config with the columns that are neither features nor dense."""
    for name in features.of_kind(LABEL):
        if config.format not in WITH_COLUMNS:
            if name != LABEL_OF_TEXT:
                raise ConfigError(
                    f"{features.at('columns', name, 'kind')}: "
                    f"columns.{name}: kind = 'label', but a log of "
                    f"{config.format} has its label at the beginning of the line, where the "
                    f"column is called {LABEL_OF_TEXT!r}"
                )
            continue
        if config.label not in (ReaderConfig.label, name):
            raise ConfigError(
                f"{features.at('columns', name, 'kind')}: "
                f"columns.{name}: kind = 'label', but the label is said to be "
                f"{config.label!r} (--label); leave that out, or correct the file"
            )
        config = replace(config, label=name)
    for kind in (WEIGHT, GROUP):
        for name in features.of_kind(kind):
            config = _with_role(features, config, kind, name)
    return config


def _with_role(features: Features, config: ReaderConfig, kind: str, name: str) -> ReaderConfig:
    """The config with a column of weights or groups: the field of the kind's own name."""
    if config.format not in WITH_COLUMNS:
        raise ConfigError(
            f"{features.at('columns', name, 'kind')}: "
            f"columns.{name}: kind = {kind!r}: only parquet and csv have a "
            f"column of {kind}s, and the log is read as {config.format}; leave it out, or give it "
            "kind 'ignored'"
        )
    given = getattr(config, kind)
    if given not in (None, name):
        raise ConfigError(
            f"{features.at('columns', name, 'kind')}: "
            f"columns.{name}: kind = {kind!r}, but the {kind} is said to be "
            f"{given!r} (--{kind}); leave that out, or correct the file"
        )
    changes: dict[str, Any] = {kind: name}
    return replace(config, **changes)


def _check_logs(features: Features, config: ReaderConfig) -> None:
    """A logarithm that the reader has taken can be undone where numbers are whole."""
    if config.transform != SIGNED_LOG1P or config.format == "criteo":
        return
    for column in features.columns:
        if column.log is False:
            raise ConfigError(
                f"{features.at('columns', column.name, 'log')}: "
                f"columns.{column.name}.log: false, but the log is read with "
                "logarithms of all dense values (--dense-log); leave that out, and write "
                "log = true for the columns that should have one"
            )


def _of_named_columns(
    features: Features,
    paths: Sequence[LogFile],
    tables: Sequence[TableConfig],
    config: ReaderConfig,
) -> tuple[ReaderConfig, Sequence[TableConfig]]:
    from hps.reader.record_reader import RecordReader  # pyarrow takes its time to import

    # Names no feature, so that nothing is refused yet that the file leaves out.
    bare = [TableConfig(name=table.name, dim=1, features=[]) for table in tables]
    probe = open_reader(paths, tables=bare, config=replace(config, dense=None))
    assert isinstance(probe, RecordReader)
    types = probe.types
    probe.close()
    for column in features.columns:
        _check_kind(features, column, types, config)
        _check_alike(features, column, types, config)
    inferred = probe.dense_columns or []
    dense = [name for name in inferred if _is(features, name, DENSE)]
    dense += [name for name in types if name not in inferred and name in features.of_kind(DENSE)]
    if config.dense_columns is None:
        dense.sort(key=list(types).index)
    ignored = [name for name in features.of_kind(IGNORED) if name not in config.ignore]
    nan_columns = [name for name in dense if _wants_missing(features.column(name), config)]
    changes: dict[str, Any] = {"ignore": [*config.ignore, *ignored], "nan_columns": nan_columns}
    if dense != inferred:
        changes["dense_columns"] = dense
    config = replace(config, **changes)
    return config, _with_texts(features, types, tables, config, dense)


def _is(features: Features, name: str, kind: str) -> bool:
    """True if a column is of a kind, or if nothing is said of it."""
    column = features.column(name)
    return column is None or column.kind == kind


def _wants_missing(column: Column | None, config: ReaderConfig) -> bool:
    """True of a dense column whose missing values must be told from others."""
    if column is None:
        return False
    logs = bool(column.log) and config.transform != SIGNED_LOG1P
    clips = column.clip is not None and config.transform == SIGNED_LOG1P
    return column.missing is not None or column.buckets is not None or logs or clips


def _check_kind(
    features: Features, column: Column, types: "dict[str, pa.DataType]", config: ReaderConfig
) -> None:
    """The log has the column, and its values can be of the kind."""
    from hps.reader.columns import is_feature, is_group, is_number, is_text_feature

    where = f"{features.at('columns', column.name, 'kind')}: columns.{column.name}"
    if column.name not in types:
        raise ConfigError(f"{where}: the log has no such column; it has {list(types)}")
    kind = types[column.name]
    if column.name == config.label and column.kind != LABEL:
        raise ConfigError(
            f"{where}: kind = {column.kind!r}, but it is the column of labels; name another one "
            "with kind = 'label' (or --label)"
        )
    if column.name in config.ignore and column.kind != IGNORED:
        raise ConfigError(
            f"{where}: kind = {column.kind!r}, but the column is said to be left out (--ignore); "
            "leave that out, or give it kind 'ignored'"
        )
    if config.format == "csv":  # text can be read as either
        return
    if column.separator is not None and not (is_text_feature(kind) and is_group(kind)):
        raise ConfigError(
            f"{features.at('columns', column.name, 'separator')}: columns.{column.name}.separator: "
            f"the column is of type {kind}, and only text is divided; leave it out"
        )
    if column.kind == DENSE and not is_number(kind):
        raise ConfigError(
            f"{where}: kind = 'dense', but its values are of type {kind}, not numbers"
        )
    if column.kind in (CATEGORICAL, SEQUENCE) and not is_feature(kind):
        raise ConfigError(
            f"{where}: kind = {column.kind!r}, but its values are of type {kind}, of which no keys "
            "are made; give it kind 'dense' with buckets, or write it as integers or text"
        )


def _check_alike(
    features: Features, column: Column, types: "dict[str, pa.DataType]", config: ReaderConfig
) -> None:
    """A target has one value an example; values that share a vocabulary are hashed by one rule."""
    from hps.reader.columns import is_feature, is_group, is_text_feature, value_type

    name = f"columns.{column.name}"
    where = f"{features.at('columns', column.name)}: {name}"
    target = types.get(column.target or "")
    if target is not None and is_feature(target) and not is_group(target):
        at = features.at("columns", column.name, "target")
        raise ConfigError(
            f"{at}: {name}.target: column {column.target!r} holds lists ({target}): it is a "
            "sequence itself; name the column of the candidate, which has one value an example"
        )
    own, other = types[column.name], types.get(features.vocabulary(column.name))
    if other is None or config.key_rule != RAW or column.kind not in (CATEGORICAL, SEQUENCE):
        return
    if is_text_feature(own) != is_text_feature(other):
        raise ConfigError(
            f"{where}: its values are of type {value_type(own)}, those of its vocabulary "
            f"{features.vocabulary(column.name)!r} of type {value_type(other)}, and of numbers and "
            "text the keys differ where numbers are keys as they stand (--raw-keys); leave that "
            "out, or write both as one type"
        )


def _with_texts(
    features: Features,
    types: "dict[str, pa.DataType]",
    tables: Sequence[TableConfig],
    config: ReaderConfig,
    dense: Sequence[str],
) -> Sequence[TableConfig]:
    """The table with all features by name, where one of csv is only a feature by name."""
    from hps.reader.columns import is_feature

    named = features.of_kind(CATEGORICAL, SEQUENCE)
    if config.format != "csv" or all(is_feature(types[name]) for name in named):
        return tables
    # A column of groups is a feature, too.
    others = {config.label, config.weight, *config.ignore, *dense}
    found = [name for name in types if name not in others]
    return [replace(table, features=found) if table.features is None else table for table in tables]
