"""What ends a request that asks for something wrong: refusals in the words of a model's client.

Above it: the handlers of both protocols. Below it: hps/service/messages/status.py.
"""

from hps.service.messages.status import Code, Refusal
from hps.v1.parameter_server_pb2 import ErrorDetail


def invalid(message: str) -> Refusal:
    """A request that nobody could answer; names what is wrong and what to send."""
    return Refusal(Code.INVALID_ARGUMENT, ErrorDetail.CONFIG, message)
