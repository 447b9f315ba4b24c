"""Whether a log has the targets and vocabularies that a features file speaks of.

Above it: transform.py. Below it: features.py, raw.py, shared_rules.py.
"""

from hps.errors import ConfigError
from hps.features.features import Features
from hps.features.raw import RawColumns
from hps.features.shared_rules import uneven


def check_shared(features: Features, raw: RawColumns) -> None:
    """Refuses what only the log tells of targets and vocabularies.

    Raises:
        ConfigError: a target that is no feature of the log; a vocabulary that is that of numbers,
            or of a column that is folded otherwise.
    """
    for name, target in features.targets.items():
        if target not in raw.features:
            what = "a dense column" if target in raw.dense else "no column of the log"
            raise ConfigError(
                f"{features.at('columns', name, 'target')}: "
                f"columns.{name}.target: {target!r} is {what}; name the column "
                f"of the candidate, one of the features {list(raw.features)}"
            )
    for name, vocabulary in features.vocabularies.items():
        column = features.column(name)
        assert column is not None
        if vocabulary in raw.dense:
            raise ConfigError(
                f"{features.at('columns', name, 'vocabulary')}: "
                f"columns.{name}.vocabulary: {vocabulary!r} is a dense column, "
                "whose values are no keys; give the name of a category or of a sequence, or one "
                "that no column has"
            )
        is_bare = features.column(vocabulary) is None and vocabulary in raw.features
        if is_bare and column.hash_buckets is not None:
            told = uneven(column.hash_buckets, None, vocabulary, name)
            raise ConfigError(
                f"{features.at('columns', name, 'hash_buckets')}: "
                f"columns.{name}.hash_buckets: {told}"
            )
