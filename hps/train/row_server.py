"""Where a training run's rows lie: a store of this process, all ranks' stores, or servers.

Above it: `hps.train.run`, `hps.train.evaluate`. Below it: `hps.ParameterServer`,
`hps.ClusterParameterServer`, `hps.RemoteParameterServer`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.config import TableConfig, differences
from hps.contracts.training import TrainingServer
from hps.errors import ConfigError
from hps.parameter_server.server import ParameterServer
from hps.service.client.options import ClientConfig
from hps.train.options import ACCUMULATOR, TrainOptions

if TYPE_CHECKING:
    from hps.cluster.world.world import World
    from hps.service.client.parameter_server import RemoteParameterServer


def open_server(
    options: TrainOptions,
    features: Mapping[str, Sequence[str]],
    world: "World | None" = None,
    *,
    keeps_start: bool = False,
) -> AbstractContextManager[TrainingServer]:
    """The server of a run, with the run's tables.

    Args:
        options: of the run.
        features: of its model, by table.
        world: the ranks that train together; each calls this.
        keeps_start: see `connect`.

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
    tables = options.tables(features)
    return connect(options.remote, tables, keeps_start=keeps_start, keeps_rate=options.resume)


def held_by(server: TrainingServer, world: "World | None") -> Callable[[], object] | None:
    """What refuses once another folder has taken the path of the store that this process trains;
    None where the rows lie on servers.

    Args:
        server: as `open_server` gave it.
        world: that it was given.
    """
    own: object = server
    if world is not None:
        from hps.cluster.parameter_server import ClusterParameterServer  # as in open_server

        own = server.local if isinstance(server, ClusterParameterServer) else None
    return own.parts.tables.store.held_folder if isinstance(own, ParameterServer) else None


def connect(
    config: ClientConfig,
    tables: Sequence[TableConfig] = (),
    *,
    keeps_start: bool = False,
    keeps_rate: bool = False,
) -> AbstractContextManager[TrainingServer]:
    """A client of the servers; makes the tables that are not there, once the others are known to
    fit.

    Args:
        keeps_start: a table that is there begins rows with the accumulators that it was made with,
            whatever `tables` says of them.
        keeps_rate: a table that is there counts shows as it was made to.

    Raises:
        ConfigError: a table is there and differs in more than its learning rate.
        RemoteError: a shard does not answer.
    """
    from hps.service.client.parameter_server import (
        RemoteParameterServer,  # grpc, only where there are servers
    )

    server = RemoteParameterServer.of(config)
    try:
        _make_tables(server, tables, keeps_start, keeps_rate)
    except BaseException:
        server.close()
        raise
    return server


def _make_tables(
    server: "RemoteParameterServer",
    tables: Sequence[TableConfig],
    keeps_start: bool,
    keeps_rate: bool,
) -> None:
    """As `connect`, of a client that is there."""
    missing = []
    for table in tables:
        found = server.tables.get(table.name)
        if found is None:
            missing.append(table)
            continue
        asked = _with_start_of(found, table) if keeps_start else table
        asked = _with_rules_of(found, asked)
        if keeps_rate and asked.statistics:
            asked = replace(asked, negative_rate=found.negative_rate)
        if differing := differences(_without_rate(found), _without_rate(asked)):
            raise ConfigError(
                f"table {table.name!r} of {', '.join(server.config.addresses)} was made with other "
                f"flags: its {'; its '.join(differing)} as the flags ask for; give those that "
                "it was made with (dim: of --dim or the features file, and one more in models with "
                "a first-order weight), or servers of their own"
            )
    # One whose keys come by scores of another is made behind that.
    for table in sorted(
        missing, key=lambda one: one.admission is not None and bool(one.admission.by)
    ):
        server.create_table(table)
    for table in tables:
        server.learning_rates[table.name] = table.optimizer.lr


def _without_rate(table: TableConfig) -> TableConfig:
    return replace(table, optimizer=table.optimizer.without_lr(), features=None, share=1.0)


def _with_rules_of(found: TableConfig, table: TableConfig) -> TableConfig:
    """The table, with the rules of the other one that the flags say nothing of."""
    names = ("expiry", "admission", "max_rows", "max_bytes")
    rules: Json = {name: getattr(found, name) for name in names if getattr(table, name) is None}
    # What a rule implies is asked for by the flags, as it was when the table was made.
    return replace(table, **rules) if table.statistics == found.statistics else table


def _with_start_of(found: TableConfig, table: TableConfig) -> TableConfig:
    """The table, with the other one's accumulators of new rows, where it has them."""
    optimizer = table.optimizer
    start = getattr(found.optimizer, ACCUMULATOR, None)
    if start is None or not hasattr(optimizer, ACCUMULATOR):
        return table
    numbers: Json = {ACCUMULATOR: start}
    return replace(table, optimizer=replace(optimizer, **numbers))
