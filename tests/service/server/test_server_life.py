"""A server's public services, figures and end, in this process.

Above it: pytest. Below it: hps.service.server.server over a shard of dicts.
"""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from hps.service.server.health import HEALTH_NAME, REFLECTION_NAME
from hps.service.server.publish_handlers import SERVICE_NAME as PUBLISHING
from hps.service.server.server import SERVICE_NAME
from hps.v1 import parameter_server_pb2 as pb
from tests.service.client.fake_shard import DIM, FakeShard
from tests.service.server.test_server_calls import is_empty, pull, push, wait_for
from tests.service.server.test_server_limits import HeldShard
from tests.service.serving import Local, Refused, serving


def health(local: Local, name: str = "") -> str:
    request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
    reply = local.channel.call(f"/{HEALTH_NAME}/Check", request)
    return str(health_pb2.HealthCheckResponse.FromString(reply))


def test_health_is_told_without_a_token() -> None:
    with serving(FakeShard()) as local:
        assert "SERVING" in health(local) and "SERVING" in health(local, SERVICE_NAME)
        request = health_pb2.HealthCheckRequest(service="other").SerializeToString()
        assert local.channel.refusal(f"/{HEALTH_NAME}/Check", request).code == "NOT_FOUND"


def test_a_watcher_of_health_sees_the_end() -> None:
    with serving(FakeShard()) as local:
        watch = local.channel.channel.unary_stream(
            f"/{HEALTH_NAME}/Watch", response_deserializer=health_pb2.HealthCheckResponse.FromString
        )(b"")
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        stop = threading.Thread(target=local.server.stop)
        stop.start()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        stop.join()


def test_reflection_lists_the_services_and_their_messages() -> None:
    with serving(FakeShard()) as local:
        ask = reflection_pb2.ServerReflectionRequest
        method = local.channel.channel.stream_stream(
            f"/{REFLECTION_NAME}/ServerReflectionInfo",
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [ask(list_services=""), ask(file_containing_symbol=SERVICE_NAME)]
        services, file = method(request.SerializeToString() for request in requests)
        names = [service.name for service in services.list_services_response.service]
        assert names == sorted([SERVICE_NAME, PUBLISHING, HEALTH_NAME, REFLECTION_NAME])
        assert b"PullRequest" in file.file_descriptor_response.file_descriptor_proto[0]


def test_a_drain_lets_calls_in_flight_end_and_refuses_new_ones() -> None:
    shard = HeldShard()
    with serving(shard) as local:
        held = local.channel.start("Pull", pull([1]))
        shard.wait_entered(1)
        stop = threading.Thread(target=local.server.stop)
        stop.start()
        wait_for(lambda: "NOT_SERVING" in health(local))
        wait_for(local.server.front.admissions.is_draining)
        refused = local.channel.refusal("Pull", pull([1]))
        assert (refused.code, refused.kind) == ("UNAVAILABLE", "DRAINING")
        assert refused.detail.retry_after_ms > 0 and not held.done()
        shard.go_on.set()
        assert held.result().dim == DIM
        stop.join()
        assert local.channel.refusal("Pull", pull([1])).code == "UNAVAILABLE"


def test_a_drain_ends_streams_that_stand_still() -> None:
    never = threading.Event()

    def idle() -> Iterator[pb.PushRequest]:
        yield push(1, [1])
        never.wait(60)

    with serving(FakeShard()) as local:
        replies = local.channel.stream("PushStream", idle())
        assert next(replies).sequence == 1
        watches = local.server.front.watchdog._watches
        wait_for(lambda: any(watch.is_idle for watch in list(watches)))
        assert local.server.stop()
        with pytest.raises(grpc.RpcError) as caught:
            next(replies)
        assert Refused.of(caught.value).code in ("CANCELLED", "UNAVAILABLE")
        never.set()


def test_calls_that_outlast_the_drain_are_cancelled() -> None:
    shard = HeldShard()
    with serving(shard, drain_seconds=0.2) as local:
        held = local.channel.start("Pull", pull([1]))
        shard.wait_entered(1)
        threading.Thread(target=lambda: (held.code(), shard.go_on.set())).start()
        assert not local.server.stop()
        assert held.code().name in ("CANCELLED", "UNAVAILABLE")


def test_a_call_that_does_not_end_keeps_no_server_from_ending() -> None:
    shard = HeldShard()
    with serving(shard, drain_seconds=0.2) as local:
        held = local.channel.start("Pull", pull([1]))
        shard.wait_entered(1)
        started = time.monotonic()
        assert not local.server.stop()
        assert time.monotonic() - started < 30
        assert not shard.go_on.is_set() and held.code().name in ("CANCELLED", "UNAVAILABLE")
        shard.go_on.set()


def figures(local: Local) -> dict[str, float]:
    address = local.log("metrics")[0]["address"]
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
    found = re.findall(r"^(hps_\S+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_figures_for_prometheus_count_what_happened() -> None:
    shard = FakeShard()
    shard.stats = lambda timeout: {  # type: ignore[method-assign]
        "dram_cache": {"hits": 7, "misses": 3, "evictions": 1, "rows": 9, "bytes": 640},
        "tables": {"ads": {"rows": 11}},
        "service": {"records": 5, "log_bytes": 4096, "sessions": 2, "waiting": 0, "failure": ""},
    }
    with serving(shard, metrics="127.0.0.1:0") as local:
        for sequence in (1, 2, 2):
            local.channel.call("Push", push(sequence, [1, 2]))
        local.channel.refusal("Push", push(9, [1]))
        list(local.channel.stream("PushStream", [push(3, [1]), push(4, [1])]))
        wait_for(lambda: is_empty(local))
        shown = figures(local)
    assert shown['hps_calls_total{method="Push",status="OK"}'] == 3
    assert shown['hps_calls_total{method="Push",status="OUT_OF_RANGE"}'] == 1
    assert shown['hps_calls_total{method="PushStream",status="OK"}'] == 1
    assert shown['hps_request_bytes_total{method="Push"}'] > 3 * 2 * (8 + 4 * DIM)
    assert shown['hps_call_seconds_count{method="Push"}'] == 4
    assert shown['hps_call_seconds_bucket{le="+Inf",method="Push"}'] == 4
    assert shown["hps_in_flight_requests"] == 0
    assert shown['hps_tier_hits_total{tier="dram_cache"}'] == 7
    assert shown['hps_tier_bytes{tier="dram_cache"}'] == 640
    assert shown['hps_table_rows{table="ads"}'] == 11
    assert (shown["hps_records"], shown["hps_log_bytes"], shown["hps_failed"]) == (5, 4096, 0)
