"""ClusterGradScaler: torch.amp.GradScaler whose scale is the same on every rank.

Above it: the training loop, where it takes the place of torch's. Below it: `RowServer.ranks`.
"""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hps.contracts.training import RowServer


def on_any_rank(server: "RowServer", flag: bool) -> bool:
    """True if the flag is on any of the ranks that train together. Every rank calls it."""
    return flag if server.ranks is None else server.ranks.agree(flag)


class ClusterGradScaler(torch.amp.GradScaler):
    """Scales losses so that float16 gradients do not vanish; an infinity on one rank counts on all.

    DistributedDataParallel averages gradients that are still scaled, so the ranks must not come to
    have different scales. torch's own scaler looks at the gradients of its process only, and those
    of rows differ from rank to rank.

    Args:
        server: of the rows; with one rank this is torch's own scaler.
        device: as torch's GradScaler takes it, and the rest by name.

    >>> import hps, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = hps.Config(path=folder, tables=[hps.TableConfig(name="ads", dim=4)])
    ...     with hps.ParameterServer(config) as server:
    ...         ClusterGradScaler(server, "cpu", init_scale=1024.0).get_scale()
    1024.0
    """

    def __init__(self, server: "RowServer", device: str = "cuda", **options: Any) -> None:
        super().__init__(device, **options)
        self._server = server

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """As torch's; every rank calls it.

        Raises:
            ClusterError: another rank is gone or does not answer.
        """
        if self.is_enabled() and new_scale is None:
            marks = [
                mark
                for state in self._per_optimizer_states.values()
                for mark in state["found_inf_per_device"].values()
            ]
            if on_any_rank(self._server, any(bool(mark) for mark in marks)):
                for mark in marks:
                    mark.fill_(1.0)
        super().update(new_scale)
