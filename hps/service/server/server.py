"""A running server: gRPC over one shard, with its limits, credentials, health, metrics and end.

Above it: `hps serve`, tests. Below it: the handlers, front.py, `hps.service.shard.shard`.
"""

from hps.publish.places import PublishPlaces
from hps.service.server.calls import Handler, Service
from hps.service.server.front import GrpcFront, Served
from hps.service.server.front import ServerOptions as ServerOptions
from hps.service.server.log_lines import LogLines
from hps.service.server.publish_handlers import SERVICE_NAME as PUBLISHING
from hps.service.server.publish_handlers import PublishHandlers
from hps.service.server.row_handlers import RowHandlers
from hps.service.server.store_handlers import StoreHandlers
from hps.service.shard.shard import Shard
from hps.v1.parameter_server_pb2 import DESCRIPTOR

SERVICE_NAME = DESCRIPTOR.services_by_name["ParameterServer"].full_name


class Server:
    """Serves a shard from the moment it is made until `stop`.

    Args:
        shard: what applies; stays open after `stop`.
        options: see there.
        log: where lines go.

    Attributes:
        front: what is no shard's.
        address: HOST:PORT.

    Raises:
        ConfigError: an address that is taken.
    """

    def __init__(self, shard: Shard, options: ServerOptions, log: LogLines) -> None:
        served = Served(
            names=(SERVICE_NAME, PUBLISHING),
            is_alive=lambda: not shard.is_dead,
            open_to_all="anyone who reaches this address may change rows",
            table_names=lambda: [table.name for table in shard.tables],
        )
        self.front = GrpcFront(options, served, log)
        if options.metrics is not None:
            from hps.service.server.metrics import ServerCollector  # only where it is wanted

            collector = ServerCollector(self.front.counts, self.front.admissions, shard)
            self.front.serve_metrics(collector)
        handlers = _own_handlers(self.front.calls, shard)
        places = PublishPlaces(options.publish_to)
        handlers |= _publish_handlers(self.front.calls, shard, places)
        self.front.start(handlers, {})
        self.address = self.front.address

    def reload(self) -> None:
        """Reads tokens and certificates again; those that cannot be read stay as they were."""
        self.front.reload()

    def stop(self) -> bool:
        """Lets calls in flight end and no new ones in, then closes the address.

        Returns:
            True if all of them ended in time, `drain_seconds`; the others were cancelled, and one
            or the other may go on in the shard until that is closed.
        """
        has_ended = self.front.drain()
        self.front.close(has_ended=has_ended)
        return has_ended


def _own_handlers(calls: Service, shard: Shard) -> dict[str, Handler]:
    rows = RowHandlers(shard, calls.limits)
    store = StoreHandlers(shard, calls.limits, calls.log)
    unary = {
        "Describe": store.describe,
        "OpenSession": store.open_session,
        "Pull": rows.pull,
        "Contains": rows.contains,
        "NumRows": store.num_rows,
        "Digest": store.digest,
        "Statistics": rows.statistics,
        "Push": rows.push,
        "Assign": rows.assign,
        "Erase": rows.erase,
        "EraseWhere": rows.erase_where,
        "Create": rows.create,
        "AdvancePeriod": store.advance_period,
        "Skip": store.skip,
        "Flush": store.flush,
        "CreateTable": store.create_table,
        "ListTables": store.list_tables,
        "Checkpoint": store.checkpoint,
        "Restore": store.restore,
        "ListCheckpoints": store.list_checkpoints,
        "DeleteCheckpoint": store.delete_checkpoint,
        "CheckpointState": store.checkpoint_state,
        "MoveName": store.move_name,
        "Stats": store.stats,
    }
    handlers = {name: calls.unary(name, run) for name, run in unary.items()}
    handlers["Items"] = calls.server_stream("Items", rows.items)
    handlers["PushStream"] = calls.both_streams("PushStream", rows.push)
    return {f"/{SERVICE_NAME}/{name}": handler for name, handler in handlers.items()}


def _publish_handlers(calls: Service, shard: Shard, places: PublishPlaces) -> dict[str, Handler]:
    own = PublishHandlers(shard, places, calls.log)
    unary = {
        "DescribePart": own.describe_part,
        "PublishPart": own.publish_part,
        "DropPart": own.drop_part,
    }
    return {f"/{PUBLISHING}/{name}": calls.unary(name, run) for name, run in unary.items()}
