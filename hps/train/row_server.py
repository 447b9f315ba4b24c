"""Where a training run's rows lie: a store of this process, all ranks' stores, or servers.

Above it: `hps.train.run`, `hps.train.evaluate`. Below it: `hps.ParameterServer`,
`hps.ClusterParameterServer`, `hps.RemoteParameterServer`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from hps.config import TableConfig, differences
from hps.contracts.training import TrainingServer
from hps.errors import ConfigError
from hps.parameter_server.server import ParameterServer
from hps.service.client.options import ClientConfig
from hps.train.options import TrainOptions

if TYPE_CHECKING:
    from hps.cluster.world.world import World


def open_server(
    options: TrainOptions,
    features: Mapping[str, Sequence[str]],
    world: "World | None" = None,
) -> AbstractContextManager[TrainingServer]:
    """The server of a run, with the run's tables.

    Args:
        options: of the run.
        features: of its model, by table.
        world: the ranks that train together; each calls this.

    Raises:
        ConfigError: the store, or a table on the servers, does not fit the flags.
        RemoteError: a shard does not answer.
    """
    if world is not None:
        from hps.cluster.parameter_server import (
            ClusterParameterServer,  # torch.distributed, for ranks only
        )

        config = options.server_config(features)
        return ClusterParameterServer(config, world, options.cluster_config())
    if options.remote is None:
        return ParameterServer(options.server_config(features))
    return connect(options.remote, options.tables(features))


def connect(
    config: ClientConfig, tables: Sequence[TableConfig] = ()
) -> AbstractContextManager[TrainingServer]:
    """A client of the servers; makes the tables that are not there, once the others are known to
    fit.

    Raises:
        ConfigError: a table is there and differs in more than its learning rate.
        RemoteError: a shard does not answer.
    """
    from hps.service.client.parameter_server import (
        RemoteParameterServer,  # grpc, only where there are servers
    )

    server = RemoteParameterServer.of(config)
    missing = []
    for table in tables:
        found = server.tables.get(table.name)
        if found is None:
            missing.append(table)
        elif differing := differences(_without_rate(found), _without_rate(table)):
            server.close()
            raise ConfigError(
                f"table {table.name!r} of {', '.join(config.addresses)} was made with other flags: "
                f"its {'; its '.join(differing)} as the flags ask for; give those that it was made "
                "with (dim: of --dim or the features file, and one more in models with a "
                "first-order weight), or servers of their own"
            )
    for table in missing:
        server.create_table(table)
    for table in tables:
        server.learning_rates[table.name] = table.optimizer.lr
    return server


def _without_rate(table: TableConfig) -> TableConfig:
    return replace(table, optimizer=table.optimizer.without_lr(), features=None, share=1.0)
