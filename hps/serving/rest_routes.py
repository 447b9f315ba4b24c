"""What is served over HTTP: the paths, and from a request's JSON to the scorer and back.

Above it: server.py. Below it: rest.py carries it; scorer.py, json_messages.py.
"""

import json

import numpy as np

from hps.common.json_text import Json
from hps.common.version import __version__
from hps.service.server.auth import (
    ADMIN,
    EVERY_TABLE,
    READ,
    require_right,
    require_some_right,
)
from hps.service.server.health import Health
from hps.serving.inference_handlers import EXTENSIONS, SERVER_NAME
from hps.serving.json_messages import (
    LENGTH_HEADER,
    infer_reply,
    read_columns,
    read_infer,
    read_lookup,
    read_outcomes,
    read_version,
)
from hps.serving.rest import HttpAnswer, HttpRequest, Route
from hps.serving.scorer import OUTPUT, Scorer
from hps.serving.versions import Versions

_MODEL = "/v2/models/{name}"
_VERSION = _MODEL + "/versions/{version}"
_PLAIN = r"/v1/models/{name:[^/:]+}"


class RestRoutes:
    """The routes of one server; thread-safe.

    Args:
        scorer: that answers.
        versions: of its model.
        health: whether the server is ready.
        max_keys: of a look-up, and examples of a call of outcomes.
    """

    def __init__(self, scorer: Scorer, versions: Versions, health: Health, max_keys: int) -> None:
        self._scorer = scorer
        self._versions = versions
        self._health = health
        self._max_keys = max_keys

    def routes(self) -> list[Route]:
        """All of them."""
        found = [
            Route("GET", "/v2/health/live", "http live", self._live, is_open=True),
            Route("GET", "/v2/health/ready", "http ready", self._ready, is_open=True),
            Route("GET", "/v2", "http server", self._server),
            Route("POST", _PLAIN + ":predict", "http predict", self._predict),
            Route("POST", _PLAIN + ":lookup", "http lookup", self._lookup),
            Route("GET", _PLAIN + "/versions", "http versions", self._list_versions),
            Route("POST", _PLAIN + ":version", "http version", self._set_version),
            Route("POST", _PLAIN + ":outcome", "http outcome", self._outcome),
        ]
        for path in (_MODEL, _VERSION):
            found += [
                Route("GET", f"{path}/ready", "http model ready", self._model_ready, is_open=True),
                Route("GET", path, "http model", self._model),
                Route("POST", f"{path}/infer", "http infer", self._infer),
            ]
        return found

    def _live(self, request: HttpRequest) -> HttpAnswer:
        return _json({"live": True})

    def _ready(self, request: HttpRequest) -> HttpAnswer:
        is_ready = self._health.is_serving()
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    def _server(self, request: HttpRequest) -> HttpAnswer:
        require_some_right(request.caller, READ)
        return _json({"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)})

    def _model_ready(self, request: HttpRequest) -> HttpAnswer:
        self._check(request)
        is_ready = self._health.is_serving()
        return _json({"name": self._scorer.name, "ready": is_ready}, 200 if is_ready else 503)

    def _model(self, request: HttpRequest) -> HttpAnswer:
        scorer = self._scorer
        scorer.check_caller(request.caller)
        self._check(request)
        inputs = [
            {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
            for one in scorer.described_inputs()
        ]
        return _json(
            {
                "name": scorer.name,
                "versions": [scorer.model.version],
                "platform": scorer.platform,
                "inputs": inputs,
                "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
            }
        )

    def _infer(self, request: HttpRequest) -> HttpAnswer:
        self._scorer.check_caller(request.caller)
        version = self._check(request)
        asked = read_infer(request.body, request.headers.get(LENGTH_HEADER))
        scored = self._scorer.infer(asked.inputs, asked.parameters, version, request.deadline)
        body, length = infer_reply(asked, self._scorer.name, scored)
        if length is None:
            return HttpAnswer(body)
        headers = ((LENGTH_HEADER, str(length)),)
        return HttpAnswer(body, "application/octet-stream", headers)

    def _predict(self, request: HttpRequest) -> HttpAnswer:
        self._scorer.check_caller(request.caller)
        self._check(request)
        scored = self._scorer.infer_columns(read_columns(request.body), "", request.deadline)
        return _json({"predictions": scored.scores.tolist(), "model_version": scored.version})

    def _lookup(self, request: HttpRequest) -> HttpAnswer:
        table, keys = read_lookup(request.body, self._max_keys)
        require_right(request.caller, table, READ)
        self._check(request)
        rows, version = self._scorer.lookup(table, np.array(keys, np.uint64))
        return _json({"rows": rows.tolist(), "model_version": version})

    def _list_versions(self, request: HttpRequest) -> HttpAnswer:
        self._scorer.check_caller(request.caller)
        self._check(request)
        return _json(self._versions.state())

    def _set_version(self, request: HttpRequest) -> HttpAnswer:
        require_right(request.caller, EVERY_TABLE, ADMIN)
        self._check(request)
        number = read_version(request.body)
        if number is None:
            return _json(self._versions.follow(request.deadline))
        return _json(self._versions.go_to(number, request.deadline))

    def _outcome(self, request: HttpRequest) -> HttpAnswer:
        self._scorer.check_reporter(request.caller)
        self._check(request)
        given = read_outcomes(request.body)
        added = self._scorer.add_outcomes(
            given.version, given.scores, given.labels, given.weights, self._max_keys
        )
        return _json({"examples": added})

    def _check(self, request: HttpRequest) -> str:
        """The version of the path, empty if it names none; NOT_FOUND of what is not served."""
        version = request.path.get("version", "")
        self._scorer.check_model(request.path["name"], version)
        return version


def _json(value: Json, status: int = 200) -> HttpAnswer:
    return HttpAnswer(json.dumps(value).encode(), status=status)
