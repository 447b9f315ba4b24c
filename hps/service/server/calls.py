"""Every call's way in and out: who calls, admission, deadline, the handler, the status, the counts.

Above it: front.py hands gRPC the handlers that are made here. Below it: admission.py, watchdog.py,
the handlers of row_handlers.py and store_handlers.py.

gRPC is told that all requests are streams: then a handler runs before the request is read, and a
stranger's 32 MiB are refused unread. On the wire there is no difference.
"""

import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import grpc

from hps.errors import CapacityError, CorruptionError, StoreError
from hps.service.messages.status import (
    DETAIL_KEY,
    VEILED,
    Code,
    Refusal,
    draining,
    late,
    refusal_of,
)
from hps.service.server.admission import Admission, Admissions
from hps.service.server.auth import Caller, may_not_read
from hps.service.server.call_counts import CallCounts
from hps.service.server.limits import ServerLimits
from hps.service.server.log_lines import LogLines
from hps.service.server.watchdog import Watch, Watchdog
from hps.v1.parameter_server_pb2 import ErrorDetail

_NO_DEADLINE_SECONDS = 1e9  # gRPC gives the end of time as the deadline of a call without one
_LONGEST_SECONDS = 3600.0  # of a call, whatever its client asks for
_AFTER_DEADLINE_SECONDS = 1.0
_OF_FILES = (StoreError, CorruptionError, CapacityError)


class Call:
    """One call in flight, as its handler sees it."""

    def __init__(
        self,
        context: grpc.ServicerContext,
        caller: Caller,
        identify: Callable[[], Caller],
        admission: Admission,
        watch: Watch,
    ) -> None:
        self._context = context
        self._identify = identify
        self.caller = caller
        self.admission = admission
        self.watch = watch
        self._until = 0.0  # monotonic: what the client gave, an hour at most
        self.deadline = 0.0  # monotonic
        self.request_bytes = 0
        self.reply_bytes = 0

    def begin(self, seconds: float) -> None:
        """Sets the deadline of a call, whose client may have given one; `seconds` if not."""
        given = self._context.time_remaining()
        longest = _LONGEST_SECONDS
        if given is not None and given < _NO_DEADLINE_SECONDS:
            seconds = longest = min(given, _LONGEST_SECONDS)
        self._until = time.monotonic() + longest
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """The deadline is so far away again, but not beyond what the client gave."""
        self.deadline = min(self._until, time.monotonic() + seconds)

    def identify_again(self) -> None:
        """Looks at the token once more, in the middle of a stream.

        Raises:
            Refusal: it has expired, or the file of tokens has it no more.
        """
        self.caller = self._identify()

    def remaining(self) -> float:
        """Seconds until the deadline; asked for right before something takes effect.

        Raises:
            Refusal: it has passed, or the client has cancelled the call.
        """
        left = self.deadline - time.monotonic()
        if left <= 0 or not self._context.is_active():
            raise late("the call's deadline passed, or it was cancelled, before it took effect")
        return left

    def receive(self, requests: Iterator[bytes]) -> bytes:
        """The next request.

        Raises:
            Refusal: there is none, or no room for it. StopIteration never.
        """
        data = next(requests, None)
        if data is None:
            raise Refusal(Code.INVALID_ARGUMENT, ErrorDetail.CONFIG, "the call brought no request")
        self.admission.take(len(data))
        self.request_bytes += len(data)
        return data


# gRPC's type of bytes in and bytes out.
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Unary = Callable[[Call, bytes], bytes]
ServerStream = Callable[[Call, bytes], Iterator[bytes]]


@dataclass(frozen=True)
class Service:
    """What all calls of a server share."""

    admissions: Admissions
    watchdog: Watchdog
    counts: CallCounts
    log: LogLines
    limits: ServerLimits
    table_names: Callable[[], Collection[str]] = tuple

    def unary(self, name: str, run: Unary) -> Handler:
        """The handler of a method with one request and one reply."""

        def behave(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with _Passage(self, name, context) as passage:
                call = passage.call
                data = call.receive(requests)
                call.watch.due = call.deadline + _AFTER_DEADLINE_SECONDS
                reply = run(call, data)
                call.reply_bytes = len(reply)
            return reply

        return grpc.stream_unary_rpc_method_handler(behave)

    def server_stream(self, name: str, run: ServerStream) -> Handler:
        """The handler of a method with one request and a stream of replies."""

        def behave(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with _Passage(self, name, context) as passage:
                call = passage.call
                data = call.receive(requests)
                call.watch.due = call.deadline + _AFTER_DEADLINE_SECONDS
                for reply in run(call, data):
                    call.reply_bytes += len(reply)
                    yield reply

        return grpc.stream_stream_rpc_method_handler(behave)

    def both_streams(self, name: str, run: Unary) -> Handler:
        """The handler of a method that answers each request of a stream in turn."""

        def behave(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with _Passage(self, name, context) as passage:
                self.admissions.open_stream()
                try:
                    yield from self._answer_each(passage.call, requests, run)
                finally:
                    self.admissions.close_stream()

        return grpc.stream_stream_rpc_method_handler(behave)

    def _answer_each(self, call: Call, requests: Iterator[bytes], run: Unary) -> Iterator[bytes]:
        seconds = self.limits.deadline_seconds
        while True:
            call.watch.due = time.monotonic() + seconds
            call.watch.is_idle = True  # from here on a drain may cancel the call
            if self.admissions.is_draining():
                raise draining()
            data = next(requests, None)
            call.watch.is_idle = False
            if data is None:
                return
            call.request_bytes += len(data)
            call.identify_again()
            call.extend(seconds)
            call.watch.due = call.deadline + _AFTER_DEADLINE_SECONDS
            reply = run(call, data)
            call.reply_bytes += len(reply)
            yield reply


class _Passage:
    """The `with` block of one call: lets it in, and turns what ends it into a status and counts."""

    def __init__(self, service: Service, name: str, context: grpc.ServicerContext) -> None:
        self._service = service
        self._name = name
        self._context = context
        self._started = time.monotonic()
        self._who = ""
        self._call: Call | None = None

    @property
    def call(self) -> Call:
        assert self._call is not None
        return self._call

    def __enter__(self) -> "_Passage":
        try:
            self._call = self._let_in()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _let_in(self) -> Call:
        service, context = self._service, self._context
        self._who = context.peer()
        header = None
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                header = value if isinstance(value, str) else None
        identify = partial(service.admissions.identify, header, self._who)
        caller = identify()
        self._who = caller.name
        admission = service.admissions.enter(caller.name)
        limit = service.limits.deadline_seconds
        watch = service.watchdog.watch(context.cancel, self._started + limit)
        call = Call(context, caller, identify, admission, watch)
        call.begin(limit)

        def ended() -> None:
            service.watchdog.release(watch)
            admission.let_go()

        if not context.add_callback(ended):
            ended()
        return call

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        code, detail = Code.OK, None
        if isinstance(error, GeneratorExit | grpc.RpcError):
            code = Code.CANCELLED
        elif error is not None:
            refusal = refusal_of(error) or self._internal(error)
            code, detail = refusal.code, refusal.detail
        call = self._call
        if call is not None:
            call.admission.let_go()
        self._count(code, detail, call)
        if detail is not None:
            # What the system says of files; it repeats nothing of the request's.
            names = self._service.table_names() if isinstance(error, _OF_FILES) else ()
            if call is not None and may_not_read(call.caller, detail.message, names):
                detail.message = VEILED
            self._context.set_trailing_metadata(((DETAIL_KEY, detail.SerializeToString()),))
            self._context.abort(code, detail.message)

    def _internal(self, error: BaseException) -> Refusal:
        trace = "".join(traceback.format_exception(error))
        self._service.log.error("internal", method=self._name, trace=trace)
        return Refusal(
            Code.INTERNAL, ErrorDetail.OTHER, "internal error; the server's log has the trace"
        )

    def _count(self, code: Code, detail: ErrorDetail | None, call: Call | None) -> None:
        seconds = time.monotonic() - self._started
        sent = 0 if call is None else call.request_bytes
        replied = 0 if call is None else call.reply_bytes
        self._service.counts.count(self._name, code.name, seconds, sent, replied)
        if code is not Code.OK or self._service.log.has_calls:
            self._service.log.call(
                method=self._name,
                client=self._who,
                status=code.name,
                seconds=round(seconds, 6),
                request_bytes=sent,
                reply_bytes=replied,
                **({} if detail is None else {"message": detail.message}),
            )
