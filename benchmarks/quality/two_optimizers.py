"""Adagrad for rows, Adam for all else: the optimizers of hps, for peers that are plain torch.

Above it: deepctr.py, torchrec_dlrm.py. Below it: torch.
"""

import torch

from benchmarks.quality.settings import Settings


class TwoOptimizers:
    """Both as one optimizer.

    Args:
        model: of plain torch; gradients of rows are dense.
        rows: part of the names of the modules that hold rows.
        settings: with the rates.
    """

    def __init__(self, model: torch.nn.Module, rows: str, settings: Settings) -> None:
        assert settings.lr is not None and settings.dense_lr is not None, settings
        named = list(model.named_parameters())
        of_rows = [weights for name, weights in named if f".{rows}." in f".{name}"]
        others = [weights for name, weights in named if f".{rows}." not in f".{name}"]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Adagrad(of_rows, lr=settings.lr),
            torch.optim.Adam(others, lr=settings.dense_lr),
        ]

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()
