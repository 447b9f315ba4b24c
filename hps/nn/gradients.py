"""Row gradients that backward has collected and that step has not applied yet, one set a server.

Above it: `hps.SparseEmbedding` adds to it, `hps.RowOptimizer` applies or drops it, `hps.Pipeline`
asks whether anything is pending. Below it: `RowServer.apply`, which sums the gradients of
each key.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from hps import _C
from hps.common.arrays import HOST
from hps.contracts.joint import JointUpdate
from hps.contracts.training import StepListener
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError

if TYPE_CHECKING:
    from hps.common.bags import BagPooling
    from hps.common.row_layout import Labels
    from hps.contracts.training import RowServer
    from hps.types import PinnedRows

# What gradients of several tables at once are called, where others have the name of their table.
OF_SEVERAL = ""


@dataclass(slots=True)
class ForwardGradient:
    """What backward collected for one forward of one table.

    Args:
        keys: int64 [L], in order of occurrence.
        grads: float32 [F*B, D], a row a bag, owned: a scaler may write into it. [L, D] without
            pooling.
        rows: the pinned rows that the forward read, or None.
        pooling: how the forward made the bags; None where a gradient is one occurrence's.
        clicks: uint8 [L] of the occurrences, or None.
    """

    keys: torch.Tensor
    grads: torch.Tensor
    rows: "PinnedRows | None"
    pooling: "BagPooling | None" = None
    clicks: "Labels | None" = None


class PendingGradients:
    """The collected gradients of every table, by the order of the forwards they belong to.

    Forward and backward may run in several threads (autograd runs the backward of CPU tensors on
    the thread that asked for it). Who steps holds `lock` for as long: a backward that ends
    meanwhile waits, and counts for the next step.

    Args:
        threads: of the server, where its rows lie on the host: they copy gradients, too. None: this
            has threads of its own.
    """

    def __init__(self, threads: "_C.ThreadPool | None" = None) -> None:
        # Asked for before any lock of the server. forget_rows, which comes from under those, does
        # without it.
        self.lock = threading.RLock()
        self.listeners: list[StepListener] = []
        self.num_collected = 0  # grows with every collection, never reset: tells "since when"
        # A step of one forward is cheapest as one of several tables, any other table by table.
        self.expects_one_forward = True
        self._orders = itertools.count(1)
        self._forwards: dict[str, dict[int, ForwardGradient]] = {}
        self._joint: dict[int, JointUpdate] = {}  # of forwards of several tables
        self._joined: dict[str, torch.Tensor] = {}
        self._spare: dict[str, torch.Tensor] = {}
        self._copying = threading.Lock()  # guards the pool, which one thread uses at a time
        self._threads = threads
        # Forgets all gradients once they are applied; a builtin, so that no interrupt comes between
        # the rows' change and it, after which a step would apply them twice.
        self.forget_applied: Callable[[], None] = self._forwards.clear
        self.forget_joint: Callable[[], None] = self._joint.clear

    def next_order(self) -> int:
        """The place of a forward that starts now among all forwards of the server."""
        return next(self._orders)  # one bytecode: no two threads get the same

    @property
    def is_empty(self) -> bool:
        return not self._forwards and not self._joint

    def new_grads(self, table: str, num_rows: int, dim: int, device: str) -> torch.Tensor:
        """An uninitialised float32 [num_rows, D]; the last step's memory where it is large
        enough. OF_SEVERAL takes the place of a table."""
        spare = self._spare.pop(table, None)
        if spare is not None and spare.shape == (num_rows, dim):
            return spare
        if spare is None or spare.numel() < num_rows * dim:
            return torch.empty(num_rows, dim, dtype=torch.float32, device=device)
        return spare.view(-1)[: num_rows * dim].view(num_rows, dim)

    def copy_by_bag(self, grad: torch.Tensor, out: torch.Tensor) -> None:
        """Gradients of pooled rows [B, F*D] to those of the bags, out [F*B, D].

        Not by torch on the host: its threads go on to look for work for some milliseconds, on the
        cores that the step wants next (docs/decisions/0022-pooled-bags.md). Nor by threads of its
        own where the server has some, which would do the same for some microseconds.
        """
        if grad.device.type == HOST:
            with self._copying:
                if self._threads is None:
                    self._threads = _C.ThreadPool(torch.get_num_threads())
                _C.copy_by_bag(self._threads, grad.numpy(), out.numpy())
            return
        num_examples, dim = len(grad), out.shape[1]
        num_features = grad.shape[1] // dim
        by_example = grad.view(num_examples, num_features, dim)
        out.view(num_features, num_examples, dim).copy_(by_example.transpose(0, 1))

    def add(self, table: str, order: int, gradient: ForwardGradient) -> None:
        """Adds one backward's gradient; a second through the same forward sums into the first, bag
        by bag."""
        with self.lock:
            forwards = self._forwards.setdefault(table, {})
            self._joined.pop(table, None)
            self.num_collected += 1
            if order in forwards:
                forwards[order].grads.add_(gradient.grads)
            else:
                forwards[order] = gradient

    def add_joint(self, order: int, update: JointUpdate) -> None:
        """As `add`, of a forward of several tables."""
        with self.lock:
            self.num_collected += 1
            if order in self._joint:
                first = self._joint[order]
                first.grads = first.grads.float().add_(update.grads)  # a sum is not rounded
            elif any(order in forwards for forwards in self._forwards.values()):
                for table, gradient in _by_table(update):
                    self.add(table, order, gradient)
            else:
                self._joint[order] = update

    def grads(self, table: str) -> torch.Tensor | None:
        """All gradients of a table, float32 [F*B, D] in forward order, forward after forward ([L,
        D] where it does not pool); writing into it is allowed."""
        with self.lock:
            self._spread_joint()
            forwards = self._forwards.get(table)
            if forwards is None:
                return None
            if table not in self._joined:
                in_order = [forwards[order] for order in sorted(forwards)]
                self._joined[table] = _join(in_order)
            return self._joined[table]

    def set_grads(self, table: str, grads: torch.Tensor) -> None:
        """Replaces the gradients of a table, bag by bag.

        Raises:
            ConfigError: nothing is pending, or the shape differs.
        """
        current = self.grads(table)
        if current is None or current.shape != grads.shape:
            expected = None if current is None else tuple(current.shape)
            raise ConfigError(
                f"table {table!r}: a gradient of shape {tuple(grads.shape)} cannot replace the "
                f"pending one of shape {expected}; give one row for each bag"
            )
        if grads is not current:
            current.copy_(grads)

    def joint_update(self) -> JointUpdate | None:
        """That of one forward of several tables, if nothing else is pending. Within `lock`."""
        if self._forwards or len(self._joint) != 1:
            return None
        return next(iter(self._joint.values()))

    def updates(self) -> list[RowUpdate]:
        """One update a forward, those of a table in forward order. Within `lock`."""
        self._spread_joint()
        updates = []
        for table, forwards in self._forwards.items():
            is_one = len(forwards) == 1
            for order in sorted(forwards):
                one = forwards[order]
                rows = one.rows if is_one else None  # pinned for their keys alone
                args = (table, one.keys, one.grads, rows, one.pooling, one.clicks)
                updates.append(RowUpdate(*args))
        return updates

    def drop(self, table: str) -> None:
        """Forgets what is pending for a table."""
        with self.lock:
            self._spread_joint()
            self._joined.pop(table, None)
            for forward in self._forwards.pop(table, {}).values():
                self._keep_memory(table, forward.grads)

    def drop_all(self) -> None:
        """Forgets everything pending."""
        if self.is_empty:  # as behind most steps
            return
        for update in list(self._joint.values()):
            self._keep_joint_memory(update)
        self._joint.clear()
        for table in list(self._forwards):
            self.drop(table)

    def forget_rows(self, rows: "PinnedRows") -> None:
        """Pins of these rows are about to go; what is pending for them finds its rows by key."""
        for forwards in list(self._forwards.values()):
            for forward in list(forwards.values()):
                if forward.rows is not None and _are_same(forward.rows, rows):
                    forward.rows = None

    def _spread_joint(self) -> None:
        """Makes of each forward of several tables one of each of them."""
        for order, update in list(self._joint.items()):
            for table, gradient in _by_table(update):
                self._forwards.setdefault(table, {})[order] = gradient
                self._joined.pop(table, None)
            del self._joint[order]
            self._keep_joint_memory(update)

    def finish_step(self, applied: Sequence[RowUpdate | JointUpdate] = ()) -> None:
        """Drops everything and lets the open pipelines release the rows of the step. Within `lock`.

        Args:
            applied: the updates of the step, already forgotten; their memory is used again.
        """
        self.drop_all()
        self._joined.clear()
        if applied:
            self.expects_one_forward = len(applied) == 1
        for update in applied:
            if isinstance(update, JointUpdate):
                self._keep_joint_memory(update)
            else:
                self._keep_memory(update.table, cast("torch.Tensor", update.grads))
        for listener in list(self.listeners):
            listener.step_finished()

    def _keep_joint_memory(self, update: JointUpdate) -> None:
        if update.is_copy:
            self._keep_memory(OF_SEVERAL, update.grads)

    def _keep_memory(self, table: str, grads: torch.Tensor) -> None:
        base = grads if grads._base is None else grads._base
        self._spare[table] = base.view(torch.float32)


def _are_same(rows: "PinnedRows", others: "PinnedRows") -> bool:
    """Also where both show the same table of the same batch."""
    is_part = rows.joint is not None and rows.joint is others.joint
    return rows is others or (is_part and rows.table == others.table)


def _by_table(update: JointUpdate) -> list[tuple[str, ForwardGradient]]:
    """What a forward of several tables collected, a table at a time."""
    return [
        (
            one.table,
            ForwardGradient(
                cast("torch.Tensor", one.keys),
                cast("torch.Tensor", one.grads),
                one.rows,
                one.pooling,
                one.clicks,
            ),
        )
        for one in update.rows.updates(update.places, update.grads, update.clicks)
    ]


_FIRST_USE = threading.Lock()


def pending_of(server: "RowServer") -> PendingGradients:
    """The server's pending gradients, made at first use."""
    if server.pending_gradients is None:
        with _FIRST_USE:  # two threads must not make two
            if server.pending_gradients is None:
                joint = server.joint
                threads = None if joint is None else joint.threads
                server.pending_gradients = PendingGradients(threads)
    pending = server.pending_gradients
    assert isinstance(pending, PendingGradients)
    return pending


def _join(forwards: list[ForwardGradient]) -> torch.Tensor:
    """One tensor of all gradients; the parts become views of it, so both stay the same numbers."""
    if len(forwards) == 1:
        return forwards[0].grads
    joined = torch.cat([forward.grads for forward in forwards])
    first = 0
    for forward in forwards:
        count = forward.grads.shape[0]
        forward.grads = joined[first : first + count]
        first += count
    return joined
