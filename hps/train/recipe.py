"""ModelRecipe: everything but numbers learned that makes a stored model whole again.

Above it: the training run, which stores it in each checkpoint, and `hps evaluate`, which reads it.
Below it: `hps.models`, `hps.reader`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hps.config import TableConfig
from hps.errors import ConfigError
from hps.models import MODELS, ClickModel
from hps.reader.config import ReaderConfig
from hps.reader.open import open_reader
from hps.reader.reader import Reader

if TYPE_CHECKING:
    from hps.row_server import RowServer


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """Kind and sizes of a model, and how the log it was trained on is read.

    Args:
        kind: a name in `hps.models.MODELS`.
        features: table name -> names of its features in order.
        num_dense: dense columns.
        hidden: widths of the deep part.
        dropout: of the deep part.
        reader: fields of `ReaderConfig`.
    """

    kind: str
    features: dict[str, list[str]]
    num_dense: int
    hidden: list[int]
    dropout: float
    reader: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` returned, as a recipe.

        Raises:
            ConfigError: the checkpoint's model is not one that hps wrote.
        """
        try:
            recipe = cls(**values)
        except TypeError as error:
            raise ConfigError(f"the checkpoint's model has no recipe of hps: {error}") from error
        if recipe.kind not in MODELS:
            raise ConfigError(f"model kind {recipe.kind!r} must be one of {tuple(MODELS)}")
        return recipe

    def build(self, server: "RowServer") -> ClickModel:
        """A new model, its dense weights drawn from torch's global generator."""
        counts = {table: len(names) for table, names in self.features.items()}
        return MODELS[self.kind](server, counts, self.num_dense, self.hidden, self.dropout)

    def open_reader(
        self,
        paths: Sequence[str | Path],
        tables: Sequence[TableConfig],
        **changes: Any,
    ) -> Reader:
        """A reader of another log with the same columns.

        The features are named, not looked for: a test log may lack some of them.
        """
        fields = {"dense": self.num_dense, "epochs": 1, **changes}
        config = replace(ReaderConfig(**self.reader), **fields)
        named = [
            replace(table, features=self.features[table.name])
            for table in tables
            if table.name in self.features
        ]
        return open_reader(paths, tables=named, config=config)

    def check_same(self, other: "ModelRecipe") -> None:
        """Refuses to go on with another model than the stored one.

        Raises:
            ConfigError: names each value that differs.
        """
        for field in ("kind", "features", "num_dense", "hidden", "dropout"):
            stored, asked = getattr(self, field), getattr(other, field)
            if stored != asked:
                raise ConfigError(
                    f"the stored model has {field}={stored!r}, this run asks for {asked!r}; "
                    "give the same flags to resume it, or another store"
                )
