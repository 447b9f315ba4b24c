"""What goes into a model, by name and by how it is made, and how two models differ in it.

Above it: changed_model.py, which takes weights along; changed_log.py. Below it: recipe.py, a
features file's transform.
"""

import json
from collections.abc import Mapping

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.features.column import DENSE, FIRST, OF_TABLES, SUM
from hps.features.transform import FeatureTransform
from hps.models.fields import Fields
from hps.reader.config import SIGNED_LOG1P
from hps.train.recipe import ModelRecipe

_FEATURE, _DENSE = "feature", "dense column"
# Of formats whose dense columns have no names of their own, what `hps train` calls them.
_NUMBERED = {"criteo": "I", "slots": "dense_feature "}


def raw_dense_names(recipe: ModelRecipe) -> list[str]:
    """Names of the log's dense columns in order, before a transform.

    Raises:
        ConfigError: an earlier version stored the model without them.
    """
    if recipe.transform is not None:
        return list(recipe.transform["raw"]["dense"])
    reading = recipe.reading()
    stored = reading["dense_columns"]
    if stored is not None:
        return list(stored)
    prefix = _NUMBERED.get(reading["format"])
    if prefix is None and recipe.num_dense:
        raise ConfigError(
            f"the stored model has {recipe.num_dense} dense columns, whose names an earlier "
            "version did not store, so that others cannot be told from them; leave "
            "--change-features out, or train another model in another store"
        )
    return [f"{prefix}{number + 1}" for number in range(recipe.num_dense)]


def fields_of(recipe: ModelRecipe, dims: Mapping[str, int]) -> Fields:
    """The inputs of a recipe's model. Those of two recipes are equal where they mean the same:
    the same name, and the same made of it.

    Args:
        recipe: of the model.
        dims: of the embeddings, by table.

    Raises:
        ConfigError: as `raw_dense_names`.
    """
    features, dense = _made(recipe)
    return Fields(
        features=[json.dumps(one, sort_keys=True) for one in features.items()],
        dense=[json.dumps(one, sort_keys=True) for one in dense.items()],
        dims=[dims[table] for table, names in recipe.features.items() for _ in names],
    )


def changed_lines(before: ModelRecipe, now: ModelRecipe) -> list[str]:
    """What is new, gone or made otherwise, a line each; none where the inputs are the same.

    Raises:
        ConfigError: as `raw_dense_names`.
    """
    lines = []
    for what, old, new in zip((_FEATURE, _DENSE), _made(before), _made(now), strict=True):
        lines += [f"{what} {name!r} is new" for name in new if name not in old]
        lines += [
            f"{what} {name!r} is made otherwise: it begins as a new one"
            for name in new
            if name in old and old[name] != new[name]
        ]
        lines += [f"{what} {name!r} is gone" for name in old if name not in new]
    return lines


def _made(recipe: ModelRecipe) -> tuple[Json, Json]:
    """What is made of the log for each feature and each dense column, in their order."""
    names = [name for of_table in recipe.features.values() for name in of_table]
    transform = recipe.make_transform()
    if transform is None:
        return {name: {} for name in names}, {name: {} for name in raw_dense_names(recipe)}
    is_logged = recipe.reading()["dense_transform"] == SIGNED_LOG1P
    features = {name: _of_feature(transform, name) for name in names}
    return features, {name: _of_dense(transform, name, is_logged) for name in transform.dense_names}


def _of_feature(transform: FeatureTransform, name: str) -> Json:
    """What decides a feature's rows: its keys, and where they lie and how they are pooled."""
    made = _of_keys(transform, name)
    table = transform.measured.table_of(name, transform.raw.table)
    if table != transform.raw.table:
        made["table"] = table
    said = transform.measured.cross(name) or transform.measured.column(name)
    if said is not None and said.pooling not in (None, SUM):
        made["pooling"] = said.pooling
    return made


def _of_keys(transform: FeatureTransform, name: str) -> Json:
    """What decides a feature's keys, beside the column's name and what all columns share."""
    cross = transform.measured.cross(name)
    if cross is not None:
        of_parts = [_of_keys(transform, part) for part in cross.columns]
        return {"cross": _without(cross.to_dict(), *OF_TABLES), "parts": of_parts}
    column = transform.measured.column(name)
    if column is None:
        return {}
    said = _without(column.to_dict(), *OF_TABLES)
    if column.kind == DENSE:
        return {key: said[key] for key in ("buckets", "missing") if key in said}
    if said.get("keep") == FIRST:
        del said["keep"]  # as it is where nothing is said
    del said["kind"]
    said.pop("vocabulary", None)
    vocabulary = transform.measured.vocabulary(name)
    return said if vocabulary == name else {**said, "vocabulary": vocabulary}


def _of_dense(transform: FeatureTransform, name: str, is_logged: bool) -> Json:
    """What is done to a dense column's numbers."""
    column = transform.measured.column(name)
    said = {} if column is None else column.to_dict()
    made = _without(said, "kind", "buckets", "keep", *OF_TABLES)
    if made.get("log") == is_logged:
        del made["log"]  # as it is where nothing is said
    return made


def _without(said: Json, *keys: str) -> Json:
    return {key: value for key, value in said.items() if key not in keys}
