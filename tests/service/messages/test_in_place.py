"""Messages that are written in place are those of the generated code, and their memory is used
again only once nobody holds it.

Above it: pytest. Below it: hps/service/messages/in_place.py.
"""

import platform
import subprocess
import sys

import numpy as np
import pytest

from hps.service.messages.in_place import MessagePool, OpenMessage
from hps.v1.parameter_server_pb2 import Identity, PushRequest

SHORT = Identity(client_id="a", incarnation=1, sequence=1)
LONG = Identity(client_id="a" * 64, incarnation=2**64 - 1, sequence=2**64 - 1)


def written(identity: Identity, num_keys: int, pool: MessagePool) -> bytes:
    """A push of so many keys, with one gradient float each."""
    head = PushRequest(table="ads", lr=0.5, dim=1, lineage="x" * num_keys)
    message = OpenMessage(head, [(14, 8 * num_keys), (15, 4 * num_keys)], pool)
    message.arrays[0].view(np.uint64)[:] = np.arange(num_keys)
    message.arrays[1].view(np.float32)[:] = 0.25
    head.id.CopyFrom(identity)
    return message.finish(head)


@pytest.mark.parametrize("num_keys", [0, 1, 15, 16, 1000])
def test_the_generated_code_reads_what_was_written(num_keys: int) -> None:
    sizes = set()
    for identity in (SHORT, LONG):
        data = written(identity, num_keys, MessagePool())
        read = PushRequest.FromString(data)
        assert read.id == identity and read.table == "ads" and read.lr == 0.5
        assert np.frombuffer(read.keys, np.uint64).tolist() == list(range(num_keys))
        assert np.frombuffer(read.grads, np.float32).tolist() == [0.25] * num_keys
        sizes.add(len(data))
    assert len(sizes) == 1  # whatever number it gets


def test_memory_is_used_again_for_a_message_of_that_length() -> None:
    pool = MessagePool()
    made = {id(written(SHORT, 1000, pool)) for _ in range(50)}
    other = written(SHORT, 999, pool)
    made |= {id(written(LONG, 1000, pool)) for _ in range(50)}
    assert len(made) == 1 and id(other) not in made


def test_a_message_that_someone_holds_is_left_alone() -> None:
    pool = MessagePool()
    held = [written(SHORT, 1000, pool) for _ in range(20)]
    part = memoryview(held.pop(7))[100:200]
    before, seen = [bytes(one) for one in held], bytes(part)
    for _ in range(50):
        data = bytearray(written(LONG, 1000, pool))
        assert data != before[0]
    assert held == before and part == seen


ROUNDS = """
import resource
from hps.service.messages.memory import expect_messages

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {is_told}:
    expect_messages()
for _ in range(4):
    before = faults()
    blocks = [bytearray(7 * 2**20) for _ in range(4)]
    del blocks
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_memory_of_several_messages_stays_with_a_client_that_expects_them() -> None:
    counts = [
        int(subprocess.check_output([sys.executable, "-c", ROUNDS.format(is_told=is_told)]))
        for is_told in (False, True)
    ]
    assert counts[0] > 4 * 1000  # pages of 4 KiB: most of them were given back and came anew
    assert counts[1] < 100
