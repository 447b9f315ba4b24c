"""The ranks of torchrun: one process each, joined by torch.distributed.

Above it: `hps.train`, cluster/parameter_server.py, which know only `hps.cluster.world.world.World`.
Below it: NCCL or gloo, and the store in which torchrun's processes find each other. Here a wait is
a row of short waits, so that an interrupt is felt and a rank that has given up need not wait for
the timeout to be heard.
"""

import atexit
import threading
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from time import monotonic

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from hps.cluster.world.halts import Halt
from hps.cluster.world.lent import LentTensors
from hps.cluster.world.world import ExchangingChannel
from hps.common.arrays import HOST
from hps.config import RankEnvironment
from hps.errors import ClusterError, ConfigError

TIMEOUT_SECONDS = 600.0
_MOMENT = timedelta(milliseconds=100)
_LOOK_SECONDS = 0.5  # between two looks whether a rank has left a note
_PATIENCE_SECONDS = 1.0  # with the store, where its answer matters
_LAST_SECONDS = 10.0  # for its last answer
_GONE = "hps/gone"
_HALT = "hps/halt-"  # and the number of times that all ranks have gone on


class _Watch:
    """Who has given up: a note in the store that all processes see, and one of this process.

    A thread of its own speaks with the store: where a link is cut, that waits for minutes.

    Args:
        rank: this one.
        store: torch.distributed's, open as long as the process that holds it lives.
    """

    def __init__(self, rank: int, store: c10d.Store) -> None:
        self._rank = rank
        self._store = store
        self._own: str | None = None
        self._failure: str | None = None  # of the first collective of this rank that has failed
        self._is_first = False  # that note is the one in the store
        self._heard: str | None = None
        self._cause: BaseException | None = None  # of what it has heard, if it is the store's end
        self._own_halt: Halt | None = None
        self._heard_halt: Halt | None = None  # of the first rank that has come to one
        self.num_meetings = 0  # how often this rank has gone on after a halt
        self._looks_next = 0.0
        self._questions: SimpleQueue[threading.Event | None] = SimpleQueue()
        self._last = threading.Event()  # set once the last question has its answer
        self._last.set()
        self._thread = threading.Thread(target=self._answer_all, name="watch of ranks", daemon=True)
        self._thread.start()
        # A process that ends while its thread is in the store is aborted by the C++ runtime.
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the thread, once the store has answered; nothing the second time."""
        atexit.unregister(self.close)
        self._questions.put(None)
        self._thread.join(_LAST_SECONDS)

    @property
    def is_aborted(self) -> bool:
        return self._own is not None

    @property
    def heard(self) -> str | None:
        """The note of another rank that has given up before this one."""
        return self._heard

    def abort(self, reason: str) -> None:
        """Leaves the note, unless there is one; waits for a moment at most."""
        if self._own is None:
            self._own = f"rank {self._rank} has left the training: {reason}"
            self._ask(_PATIENCE_SECONDS)

    def fail(self, words: str) -> None:
        """As `abort`, after a collective that has failed; this rank's other threads say the same.

        Args:
            words: of its error, which name this rank.
        """
        if self._own is None:
            self._failure = words
        self.abort(words)

    def halt(self, halt: Halt) -> None:
        """Leaves word that this rank enters no further collective; waits for nobody."""
        self._own_halt = halt
        self._ask(0.0)

    def go_on(self) -> None:
        """All ranks have halted, and what they have said is over."""
        self.num_meetings += 1
        self._own_halt = None

    def look(self, name: str, patience_seconds: float = 0.0, number: int = 0) -> None:
        """To be called again and again by who waits in a channel of that name.

        Args:
            name: of the channel.
            patience_seconds: looks now, even if that was done a moment ago, and waits so long.
            number: of the collective, counted by this rank.

        Raises:
            ClusterError: a rank has given up, or does not come, or the store is gone, or another
                thread of this rank has noticed something like it.
        """
        is_due = monotonic() >= self._looks_next and self._last.is_set()
        if (self._own or self._heard) is None and (patience_seconds or is_due):
            self._looks_next = monotonic() + _LOOK_SECONDS
            self._ask(patience_seconds)
        if self._failure is not None:
            raise ClusterError(self._failure)
        reason = self._own or self._heard
        if reason is not None:
            raise ClusterError(
                f"rank {self._rank}: waited for the others in the {name} channel, but {reason}; "
                "look at the other ranks' errors"
            ) from self._cause
        halt = self._heard_halt
        if halt is not None and halt.number == self.num_meetings and self._own_halt is None:
            halt.refuse(self._rank, name, number)

    def _ask(self, patience_seconds: float) -> None:
        self._last = threading.Event()
        self._questions.put(self._last)
        self._last.wait(patience_seconds)

    def _answer_all(self) -> None:
        while (asked := self._questions.get()) is not None:
            try:
                self._speak_with_store()
            except RuntimeError as error:
                # The first to leave has heard of nobody: the store may have gone because of its
                # note, and nobody else tells why.
                if not self._is_first:
                    self._heard = "the store in which the ranks meet is gone"
                    self._cause = error
            asked.set()

    def _speak_with_store(self) -> None:
        if self._own is not None:
            first = self._store.compare_set(_GONE, "", self._own).decode()
            self._is_first = first == self._own
            if not self._is_first:
                self._heard = first
        elif self._heard is None and self._store.check([_GONE]):
            self._heard = self._store.get(_GONE).decode()
        # What all have gone on from is under another name than what is said now.
        own, name = self._own_halt, f"{_HALT}{self.num_meetings}"
        if own is not None:
            self._store.compare_set(f"{_HALT}{own.number}", "", own.to_text())
        elif self._store.check([name]):
            self._heard_halt = Halt.from_text(self._store.get(name).decode())


class TorchChannel(ExchangingChannel):
    """One rank's end of a process group.

    Args:
        name: in errors.
        group: of torch.distributed; None is all processes' own.
        device: where its tensors lie.
        watch: who has given up.
        lent: what gloo's threads hold.
        timeout: of a collective.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup | None,
        device: str,
        watch: _Watch,
        lent: LentTensors,
        timeout: timedelta,
    ) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), device)
        self._timeout = timeout.total_seconds()
        self._name = name
        self._group = group
        self._watch = watch
        self._lent = lent

    def _exchange(self, rows: torch.Tensor, counts: list[int], incoming: list[int]) -> torch.Tensor:
        try:
            return self._exchange_rows(rows, counts, incoming)
        except ClusterError as error:
            self._watch.fail(str(error))  # out of step with the others for good
            raise

    def _exchange_rows(
        self, rows: torch.Tensor, counts: list[int], incoming: list[int]
    ) -> torch.Tensor:
        rows = rows.detach()
        if self.size == 1:
            return rows.clone()
        if self._watch.is_aborted:
            self._watch.look(self._name)
        received = rows.new_empty((sum(incoming), *rows.shape[1:]))
        try:
            if self.device == HOST:
                self._exchange_on_host(received, rows, incoming, counts)
            else:
                work = self._begin(received, rows, incoming, counts)
                work.wait()  # of the stream; the host goes on
        except RuntimeError as error:
            # Who is gone may have said why.
            self._watch.look(self._name, _PATIENCE_SECONDS, self.num_entered)
            raise ClusterError(
                f"rank {self.rank}: another rank has died, or did not come in time (noticed in the "
                f"{self._name} channel); look at the other ranks' errors, and at which of them "
                "torchrun says has failed"
            ) from error
        return received

    def _begin(
        self, received: torch.Tensor, rows: torch.Tensor, incoming: list[int], counts: list[int]
    ) -> dist.Work:
        work: dist.Work = dist.all_to_all_single(
            received, rows, incoming, counts, group=self._group, async_op=True
        )
        return work

    def _exchange_on_host(
        self, received: torch.Tensor, rows: torch.Tensor, incoming: list[int], counts: list[int]
    ) -> None:
        # Tensors of the same memory, which nobody but the collective has: one sees when it lets go.
        lent = received.detach(), rows.detach()
        self._lent.lend(lent)
        try:
            work = self._begin(*lent, incoming, counts)
        except BaseException:
            self._lent.take_back(lent)  # what was raised holds them, and may live long
            raise
        try:
            self._wait(work)
        except BaseException:
            self._lent.give_up(lent, work)
            raise

    def _wait(self, work: dist.Work) -> None:
        # The backend's own timeout is not kept where a link is cut.
        deadline = monotonic() + self._timeout
        while not work.is_completed():
            with suppress(RuntimeError):  # not yet; what went wrong is raised below
                work.wait(_MOMENT)
            if not work.is_completed():
                self._watch.look(self._name, number=self.num_entered)
                if monotonic() > deadline:
                    raise ClusterError(
                        f"rank {self.rank}: waited {self._timeout:g} s for the other ranks in the "
                        f"{self._name} channel; look at what they do, or raise the timeout"
                    )
        work.wait()


class TorchWorld:
    """All ranks, as this process sees them; see `hps.cluster.world.world.World`.

    Made by `torch_world`, once a process.

    Args:
        local_rank: among the processes of this host.
        watch: who has given up.
        device: where rows and gradients travel from and to.
        timeout: of every collective.
        is_owner: torch.distributed was started for it, and ends with it.
    """

    def __init__(
        self, local_rank: int, watch: _Watch, device: str, timeout: timedelta, is_owner: bool
    ) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.local_rank = local_rank
        self._watch = watch
        self._is_owner = is_owner
        self._is_open = True
        self._lent = lent = LentTensors()
        # Also where all groups are gloo's: two threads must not share one.
        own = [dist.new_group(backend="gloo", timeout=timeout) for _ in range(2)]
        self.keys = TorchChannel("keys", own[0], HOST, watch, lent, timeout)
        self.control = TorchChannel("control", own[1], HOST, watch, lent, timeout)
        self.rows = TorchChannel("rows", None, device, watch, lent, timeout)

    def close(self) -> None:
        """Waits for the other ranks, then for gloo's threads, and leaves torch.distributed; nothing
        the second time."""
        is_open, self._is_open = self._is_open, False
        if not is_open or self._watch.is_aborted:
            return
        self.control.barrier()
        self._watch.close()
        self._lent.end()
        if self._is_owner:
            dist.destroy_process_group()

    @property
    def is_aborted(self) -> bool:
        """As World has it."""
        return self._watch.is_aborted

    @property
    def left_before(self) -> str | None:
        """What another rank had to say that gave up before this one; None if none did."""
        return self._watch.heard

    def halt(self, words: str, *, is_last: bool = False) -> None:
        """As World has it. Who waits for rows on a GPU notices at its next step."""
        channels = {"rows": self.rows, "control": self.control}
        if is_last:
            channels["keys"] = self.keys
        entered = {name: channel.num_entered for name, channel in channels.items()}
        self._watch.halt(Halt(self.rank, words, self._watch.num_meetings, entered))

    def go_on(self) -> None:
        """As World has it."""
        self._watch.go_on()

    def abort(self, reason: str = "") -> None:
        """As World has it. Who waits now notices within a second, or when this process ends."""
        self._watch.abort(reason)


def torch_world(backend: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> TorchWorld:
    """Joins the processes that torchrun has started.

    Args:
        backend: "nccl" or "gloo", for rows and gradients; None takes NCCL where there is a GPU.
        timeout_seconds: a collective waits no longer for a rank.

    Raises:
        ConfigError: torchrun has not started this process.
        ClusterError: the others did not come in time.
    """
    place = RankEnvironment.of()
    if place is None:
        raise ConfigError(
            "the variables RANK and WORLD_SIZE are not set: start the program by torchrun, e.g. "
            "torchrun --nproc-per-node 2 program.py"
        )
    if backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"backend={backend!r} must be 'nccl', 'gloo' or None")
    chosen = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    timeout = timedelta(seconds=timeout_seconds)
    device = HOST
    if chosen == "nccl":
        device = f"cuda:{place.local_rank}"
        torch.cuda.set_device(device)
    is_owner = not dist.is_initialized()
    if is_owner and place.half_set:
        raise ConfigError(place.half_set)
    try:
        if is_owner:
            _join(place, chosen, timeout)
        watch = _Watch(place.rank, c10d._get_default_store())
        return TorchWorld(place.local_rank, watch, device, timeout, is_owner)
    except RuntimeError as error:
        raise ClusterError(
            f"rank {place.rank} of {place.size}: the other ranks could not be joined within "
            f"{timeout_seconds:g} s; look at their errors, and whether MASTER_ADDR and MASTER_PORT "
            "name a place that all of them reach"
        ) from error


def _join(place: RankEnvironment, backend: str, timeout: timedelta) -> None:
    """Starts torch.distributed, by what torchrun has set in the environment.

    Where all of torchrun's attempts meet in one store, those that died have left their addresses
    there, and torch 2.13 would have this attempt connect to them: each has a corner of its own.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    attempt = place.num_restarts if place.shares_store else 0
    own = c10d.PrefixStore(f"hps/attempt-{attempt}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)
