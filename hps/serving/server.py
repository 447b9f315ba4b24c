"""ModelServer: a model behind gRPC and HTTP, with limits, credentials, health, figures and an end.

Above it: `hps serve-model`, tests. Below it: hps/service/server/front.py, rest.py, the handlers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from hps.common.field_checks import require_number
from hps.service.messages.addresses import check_exposure, split_address
from hps.service.server.front import GrpcFront, Served, ServerOptions
from hps.service.server.log_lines import LogLines
from hps.serving import inference_handlers, row_handlers
from hps.serving.inference_handlers import InferenceHandlers
from hps.serving.row_handlers import RowHandlers
from hps.serving.scorer import Scorer, ScoringOptions
from hps.serving.version_handlers import VersionHandlers
from hps.serving.versions import Versions
from hps.train.model import Model

_SERVICES = (inference_handlers.SERVICE_NAME, row_handlers.SERVICE_NAME)


@dataclass(frozen=True, kw_only=True)
class ModelServerOptions:
    """How a model is served.

    Args:
        front: gRPC's address, limits, credentials, figures, drain: as a shard is served.
        scoring: what is scored.
        http: HOST:PORT of the REST side; None: none.
        unready_seconds: how long it goes on to take requests after it has said that it is not
            ready, so that those who watch that send none any more.

    Raises:
        ConfigError: no such address; others can reach it and there is no TLS.
    """

    front: ServerOptions
    scoring: ScoringOptions
    http: str | None = None
    unready_seconds: float = 0.0

    def __post_init__(self) -> None:
        require_number("ModelServerOptions.unready_seconds", self.unready_seconds)
        if self.http is not None:
            host, _ = split_address("--http", self.http, "127.0.0.1:8000")
            front = self.front
            what = "requests, scores and tokens"
            insecure = front.allow_insecure
            has_tls = front.tls is not None
            check_exposure("--http", host, what, has_tls=has_tls, allow_insecure=insecure)


class ModelServer:
    """Serves a model from the moment it is made until `stop`.

    Args:
        model: that scores; stays open after `stop`.
        options: see there.
        log: where lines go.

    Attributes:
        address, http_address: HOST:PORT of gRPC and of HTTP (None: none).
        scorer, front: the parts.

    Raises:
        ConfigError: an address that is taken.
    """

    def __init__(self, model: Model, options: ModelServerOptions, log: LogLines) -> None:
        self._options = options
        self.scorer = Scorer(model, options.scoring)
        served = Served(
            names=_SERVICES,
            is_alive=lambda: True,
            open_to_all="anyone who reaches this address may ask for scores and rows, and change "
            "the version that is served",
            table_names=self.scorer.tables,
        )
        self.front = GrpcFront(options.front, served, log)
        calls, health = self.front.calls, self.front.health
        limits = options.front.limits
        if options.front.metrics is not None:
            from hps.serving.metrics import ScorerCollector  # only where it is wanted

            figures = ScorerCollector(self.front.counts, self.front.admissions, self.scorer)
            self.front.serve_metrics(figures)
        inference = InferenceHandlers(self.scorer, health, int(limits.message_bytes))
        rows = RowHandlers(self.scorer, limits)
        self._versions = Versions(model, log)
        operators = VersionHandlers(self.scorer, self._versions, limits)
        self.front.start(
            {**inference.handlers(calls), **rows.handlers(calls), **operators.handlers(calls)},
            inference.open_handlers(self.front.open_service()),
        )
        self.address = self.front.address
        self._rest = None
        self.http_address: str | None = None
        if options.http is not None:
            from hps.serving.rest import RestServer  # aiohttp, only where it is wanted
            from hps.serving.rest_routes import RestRoutes

            host, port = split_address("--http", options.http)
            routes = RestRoutes(self.scorer, self._versions, health, limits.keys).routes()
            self._rest = RestServer((host, port), routes, calls, options.front.tls)
            shown = f"[{host}]" if ":" in host else host
            self.http_address = f"{shown}:{self._rest.port}"

    def reload(self) -> None:
        """Reads tokens and certificates again; those that cannot be read stay as they were."""
        others: dict[str, Callable[[], object]] = {}
        if self._rest is not None and self._options.front.tls is not None:
            others["certificate of http"] = self._rest.reload
        self.front.reload(**others)

    def stop(self) -> bool:
        """Says that it is not ready, waits `unready_seconds`, lets requests in flight end and no
        new ones in, then closes the addresses.

        Returns:
            True if all of them ended in time, `drain_seconds`; the others were cancelled.
        """
        self.front.health.stop()
        self._versions.close()
        if self._options.unready_seconds:
            time.sleep(self._options.unready_seconds)
        has_ended = self.front.drain()
        if self._rest is not None:
            self._rest.stop()
        self.front.close(has_ended=has_ended)
        return has_ended
