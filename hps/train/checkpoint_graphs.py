"""CheckpointGraphs: the ONNX graphs of what `hps train` stores.

Above it: `hps publish --onnx`, `hps train --publish-onnx`. Below it: recipe.py, which makes the
module again, `ClickModel.export_dense`. A graph is the same for all weights of a recipe, so that it
is exported once.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from tempfile import TemporaryDirectory

import torch

from hps.common.json_text import JsonView
from hps.config import Config, DramCacheConfig, TableConfig
from hps.errors import ConfigError
from hps.models import ClickModel
from hps.models.kinds import load_class
from hps.models.own import code_digest
from hps.parameter_server.server import ParameterServer
from hps.publish.graph import DenseGraph
from hps.train.published_rows import of_weights_alone
from hps.train.recipe import ModelRecipe
from hps.train.trainer import stored_recipe

_DRAM = "64MiB"  # of a server that is asked for no row; taken as rows come


class CheckpointGraphs:
    """A `hps.publish.graph.GraphMaker` of checkpoints that have a recipe.

    Args:
        store: folder of the store, from which no code is run; None: the rows lie on servers.
    """

    def __init__(self, store: str | os.PathLike[str] | None) -> None:
        self._store = store
        self._known: dict[str, DenseGraph] = {}  # by mark; that of one model

    def mark(self, state: JsonView) -> str:
        """As GraphMaker has it: of the recipe, and of the file of a user's own class."""
        recipe = _recipe_in(state)
        load_class(recipe.kind, store=self._store, is_stored=True)
        return _mark_of(recipe)

    def make(self, state: JsonView, tables: Mapping[str, TableConfig]) -> DenseGraph:
        """As GraphMaker has it; the module is made again, beside rows that are not there."""
        recipe = _recipe_in(state)
        mark = self.mark(state)
        if mark not in self._known:
            with TemporaryDirectory(prefix="hps-graph-") as folder, torch.random.fork_rng([]):
                own = [of_weights_alone(table, table.dtype) for table in tables.values()]
                dram = DramCacheConfig(bytes=_DRAM)
                with ParameterServer(Config(path=folder, tables=own, dram=dram)) as server:
                    self._keep(mark, recipe.build(server).export_dense(recipe.features))
        return self._known[mark]

    def export(self, recipe: ModelRecipe, model: ClickModel) -> None:
        """Makes the graph of a model that is there.

        Raises:
            ConfigError: it cannot be exported.
        """
        self._keep(_mark_of(recipe), model.export_dense(recipe.features))

    def _keep(self, mark: str, graph: DenseGraph) -> None:
        self._known = {mark: graph}


def _mark_of(recipe: ModelRecipe) -> str:
    told = json.dumps(recipe.to_dict(), sort_keys=True)
    return hashlib.sha256(f"{told} {code_digest(recipe.kind)}".encode()).hexdigest()


def _recipe_in(state: JsonView) -> ModelRecipe:
    if "recipe" not in state:
        raise ConfigError(
            "publish: the checkpoint's model was not stored by `hps train`, so that its class is "
            "not known here; publish it where it is trained, by server.publish(url, model=module, "
            "onnx=hps.export_dense(module, batch)), or leave out --onnx"
        )
    return stored_recipe(state)
