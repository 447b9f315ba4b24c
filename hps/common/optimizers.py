"""The row optimizers a table can name, and the numbers each needs.

Above it: `hps.config.TableConfig`. Below it: `csrc/optimizer/`, which holds the arithmetic. A
learning rate may change from step to step (see `hps.RowOptimizer`); every other number belongs to
the table.
"""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from hps.common.field_checks import require_number
from hps.errors import ConfigError


def _require(owner: object, field: str, value: object, *, above: float | None = None) -> None:
    require_number(f"{type(owner).__name__}: {field}", value, above=above)


@dataclass(frozen=True)
class Optimizer:
    """What all row optimizers share: a kind, by which the native core and the store know it."""

    kind: ClassVar[str] = ""
    divides_by_lr: ClassVar[bool] = False  # a learning rate of 0 then makes NaN of a row
    lr: float = 0.01

    def __post_init__(self) -> None:
        _require(self, "lr", self.lr, above=0 if self.divides_by_lr else None)

    def hyperparameters(self) -> list[float]:
        """The numbers besides lr in the order in which csrc/optimizer/optimizer.h reads them."""
        return []


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr * g, as torch.optim.SGD without momentum. No state.

    >>> SGD(lr=0.1).kind
    'sgd'
    """

    kind: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """One accumulator a weight: a += g*g; w -= lr * g / (sqrt(a) + eps), as torch.optim.Adagrad.

    >>> Adagrad(lr=0.05).hyperparameters()
    [1e-10, 0.0]
    """

    kind: ClassVar[str] = "adagrad"
    _: KW_ONLY
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self, "eps", self.eps)
        _require(self, "initial_accumulator_value", self.initial_accumulator_value)

    def hyperparameters(self) -> list[float]:
        return [self.eps, self.initial_accumulator_value]


@dataclass(frozen=True)
class RowWiseAdagrad(Adagrad):
    """One accumulator a row: a += mean(g*g); w -= lr * g / (sqrt(a) + eps), as FBGEMM's.

    >>> RowWiseAdagrad(lr=0.05).kind
    'rowwise_adagrad'
    """

    kind: ClassVar[str] = "rowwise_adagrad"
    _: KW_ONLY
    eps: float = 1e-8


@dataclass(frozen=True)
class Adam(Optimizer):
    """Lazy Adam: torch.optim.Adam's update, with moments and steps counted per row.

    A row's moments move only in steps that touch its key.

    >>> Adam().hyperparameters()
    [0.9, 0.999, 1e-08]
    """

    kind: ClassVar[str] = "adam"
    lr: float = 0.001
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        betas: object = self.betas
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ConfigError(f"Adam(betas={betas!r}): betas must be two numbers in [0, 1)")
        object.__setattr__(self, "betas", tuple(self.betas))
        for beta in self.betas:
            _require(self, "betas", beta)
            if beta >= 1.0:
                raise ConfigError(f"Adam(betas={betas!r}): betas must be two numbers in [0, 1)")
        _require(self, "eps", self.eps)

    def hyperparameters(self) -> list[float]:
        return [self.betas[0], self.betas[1], self.eps]


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal with the usual power of one half (McMahan et al., KDD 2013, algorithm 1).

    lr is the paper's alpha. The weights a row starts with are kept: z starts so that the closed
    form returns them.

    >>> FTRL(lr=0.1, l1=0.5).hyperparameters()
    [1.0, 0.5, 0.0, 0.0]
    """

    kind: ClassVar[str] = "ftrl"
    divides_by_lr: ClassVar[bool] = True
    lr: float = 0.05
    _: KW_ONLY
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("beta", "l1", "l2", "initial_accumulator_value"):
            _require(self, field, getattr(self, field))

    def hyperparameters(self) -> list[float]:
        return [self.beta, self.l1, self.l2, self.initial_accumulator_value]


OPTIMIZERS: dict[str, type[Optimizer]] = {
    optimizer.kind: optimizer for optimizer in (SGD, Adagrad, RowWiseAdagrad, Adam, FTRL)
}
