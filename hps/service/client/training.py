"""LoopGradients: what a training loop keeps at its server between backward and step.

Above it: parameter_server.py; checkpoints.py, which goes back to none while a pipeline is open.
Below it: the contract; hps.nn.gradients reads and writes it.
"""

from hps.contracts.training import Pending


class LoopGradients:
    """The gradients that are pending, and who listens to them."""

    def __init__(self) -> None:
        self.pending_gradients: Pending | None = None  # until hps.nn.gradients makes it

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered."""
        return 0 if self.pending_gradients is None else len(self.pending_gradients.listeners)
