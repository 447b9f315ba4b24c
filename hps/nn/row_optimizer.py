"""RowOptimizer: applies the row gradients that backward collected, as a torch.optim.Optimizer.

Above it: the user's training loop, learning rate schedulers, torch.amp.GradScaler. Below it:
`hps.nn.gradients` (what is pending), `RowServer.apply` (all tables or none), `hps.nn.step_hooks`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import torch

from hps import _C
from hps.common.field_checks import require_number
from hps.errors import ConfigError, NonFiniteError
from hps.nn.grad_scaler import on_any_rank
from hps.nn.gradients import PendingGradients, pending_of
from hps.nn.step_hooks import with_hooks

if TYPE_CHECKING:
    from hps.contracts.joint import JointUpdate
    from hps.contracts.training import RowServer
    from hps.contracts.updates import RowUpdate


_LEAST_DIVISOR = 2.0**-126  # smallest normal float32


class _TableGradient(torch.nn.Parameter):
    """Stands for a table in `param_groups`: an empty tensor whose `.grad` is what is pending.

    So everything that goes through `group["params"]` - unscaling, the check for infinities,
    clipping - sees the gradients of the bags [F*B, D] (of a look-up that does not pool, those of
    the occurrences [L, D]), before they are spread to occurrences and summed by key.
    """

    _pending: PendingGradients
    _table: str

    @staticmethod
    def make(pending: PendingGradients, table: str) -> "_TableGradient":
        parameter = _TableGradient(torch.empty(0))
        parameter._pending = pending
        parameter._table = table
        return parameter

    @property
    def grad(self) -> torch.Tensor | None:
        return self._pending.grads(self._table)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        if value is None:
            self._pending.drop(self._table)
        else:
            self._pending.set_grads(self._table, value)


class RowOptimizer(torch.optim.Optimizer):
    """Steps the rows of every table of a server.

    `param_groups` holds a group a table, with its name under "table" and its learning rate under
    "lr", which schedulers may change and `state_dict()` carries. The row optimizer's other numbers,
    weight_decay among them, and its state belong to the table (see `hps.TableConfig`) and to its
    rows: a group has no "weight_decay".

    With `torch.amp.GradScaler` call `scaler.step(row_optimizer)` beside
    `scaler.step(dense_optimizer)`. As with torch's own optimizers each is skipped when its own
    gradients hold an infinity; a skipped step drops what is pending.

    Args:
        server: an open `hps.ParameterServer`, `hps.RemoteParameterServer` or, on every rank of a
            training, `hps.ClusterParameterServer`.

    >>> import hps, tempfile
    >>> tables = [hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=0.5))]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         hps.RowOptimizer(server).param_groups[0]["lr"]
    0.5
    """

    # The scaler then calls step() in any case and leaves unscaling and skipping to it, so that a
    # bad step can drop what is pending.
    _step_supports_amp_scaling = True

    def __init__(self, server: "RowServer") -> None:
        self._server = server
        self._pending = pending_of(server)
        self._checked_rates: list[float] = []  # of the groups, in their order
        groups = [
            {
                "params": [_TableGradient.make(self._pending, table)],
                "table": table,
                "lr": server.learning_rates[table],
            }
            for table in server.tables
        ]
        super().__init__(groups, defaults={})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @with_hooks
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Applies what is pending: once a key, all tables or none; then nothing is pending.

        Also if an interrupt ends it: then all is applied and nothing pending, or the contrary.

        Args:
            closure: evaluated first, with gradients on; its value is returned.

        Raises:
            NonFiniteError: a gradient is NaN or infinite, or the step would make a row so. No row
                of any table has changed, and what is pending stays so until `zero_grad()` drops it.
            ConfigError: a learning rate is not finite or below 0, is 0 for FTRL, which divides by
                it, or above 1 / weight_decay of its table; nothing has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._pending.lock:  # what another thread's backward adds now counts for the next step
            self._step()
        return loss

    def _step(self) -> None:
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and on_any_rank(self._server, bool(found_inf)):
            self._pending.finish_step()
            return
        self._set_learning_rates()
        self._unscale()
        try:
            self._pending.finish_step(self._apply())
        except NonFiniteError:
            self._forget_scaler()
            raise

    def _apply(self) -> "Sequence[RowUpdate | JointUpdate]":
        """Applies what is pending; returns it."""
        pending, server = self._pending, self._server
        update = pending.joint_update()
        if update is not None and self._apply_joint(update):
            return [update]
        updates = pending.updates()
        if updates or server.ranks is not None:
            server.apply(updates, pending.forget_applied)
        return updates

    def _apply_joint(self, update: "JointUpdate") -> bool:
        """False, and nothing is done, where its rows are to be looked up table by table."""
        server, forget = self._server, self._pending.forget_joint
        if server.joint is not None:
            server.joint.apply(update, forget)
            return True
        return server.queued is not None and server.queued.apply_joint(update, forget)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what is pending, whatever `set_to_none` says."""
        self._pending.drop_all()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over learning rates and what schedulers keep beside them.

        Raises:
            ConfigError: the state is that of other tables.
        """
        stored = [group.get("table") for group in state_dict["param_groups"]]
        own = [group["table"] for group in self.param_groups]
        if stored != own:
            raise ConfigError(
                f"RowOptimizer: the state is of tables {stored}, the server has {own}"
            )
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses anything but tables: rows are all that this optimizer steps."""
        if "table" not in param_group:
            raise ConfigError(
                "RowOptimizer steps tables only; give dense parameters to a torch optimizer"
            )
        super().add_param_group(param_group)

    def _set_learning_rates(self) -> None:
        groups, server_rates = self.param_groups, self._server.learning_rates
        if _C.give_rates(groups, self._checked_rates, server_rates):  # as in most steps
            return
        rates = [float(group["lr"]) for group in groups]
        tables = [group["table"] for group in groups]
        server_rates.update(self._checked(dict(zip(tables, rates, strict=True))))
        self._checked_rates = rates

    def _checked(self, rates: dict[str, float]) -> dict[str, float]:
        for table, rate in rates.items():
            optimizer, where = (
                self._server.tables[table].optimizer,
                f"RowOptimizer: table {table!r}",
            )
            # The native core takes the rate as float32, where a tiny one is 0.
            least = _LEAST_DIVISOR if optimizer.divides_by_lr else None
            require_number(f"{where}: lr", rate, above=least)
            optimizer.check_decay(where, rate)
        return rates

    def _unscale(self) -> None:
        """Divides by the scaler's scale, if it has left that to us (no `unscale_` before)."""
        scale = cast("torch.Tensor | None", getattr(self, "grad_scale", None))
        if scale is None:
            return
        inverse = scale.double().reciprocal().float()
        for group in self.param_groups:
            grads = self._pending.grads(group["table"])
            if grads is not None:
                grads.mul_(inverse)
        # A step that is refused after this keeps its gradients, and they are unscaled now.
        self.grad_scale = None

    def _forget_scaler(self) -> None:
        """The scaler takes its marks off only after a step that returns."""
        for mark in ("grad_scale", "found_inf"):
            if hasattr(self, mark):
                delattr(self, mark)
