"""The row optimizers a table can name, and the numbers each needs.

Above it: `hps.config.TableConfig`. Below it: `csrc/optimizer/`, which holds the arithmetic. A
learning rate may change from step to step (see `hps.RowOptimizer`); every other number belongs to
the table.

`weight_decay` is an L2 decay apart from the gradient: a step first multiplies the weights of each
row that it updates, all columns, by 1 - lr * weight_decay, then takes its step; once a key, however
often it occurs. Rows that a step does not touch do not decay. So a row of a rare key keeps what it
has learned. In float32 a product lr * weight_decay below 2^-25 (3e-8) decays nothing. Source:
Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2.
"""

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, Self

from hps.common.field_checks import require_number
from hps.errors import ConfigError


def _require(owner: object, field: str, value: object, *, above: float | None = None) -> None:
    require_number(f"{type(owner).__name__}: {field}", value, above=above)


@dataclass(frozen=True)
class Optimizer:
    """What all row optimizers share: a kind, by which the native core and the store know it.

    FTRL has an l2 of its own and takes no weight_decay.
    """

    kind: ClassVar[str] = ""
    divides_by_lr: ClassVar[bool] = False  # a learning rate of 0 then makes NaN of a row
    decays: ClassVar[bool] = True
    lr: float = 0.01
    _: KW_ONLY
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require(self, "lr", self.lr, above=0 if self.divides_by_lr else None)
        _require(self, "weight_decay", self.weight_decay)
        if self.weight_decay and not self.decays:
            raise ConfigError(
                f"{type(self).__name__}: weight_decay={self.weight_decay!r}: this optimizer takes "
                "none; it has l2"
            )
        self.check_decay(type(self).__name__, self.lr)

    def check_decay(self, where: str, lr: float) -> None:
        """Refuses a learning rate with which a step would change the sign of weights.

        Raises:
            ConfigError: lr * weight_decay is above 1.
        """
        if not lr * self.weight_decay <= 1:
            raise ConfigError(
                f"{where}: lr={lr!r} times weight_decay={self.weight_decay!r} is "
                f"{lr * self.weight_decay:g}; a step multiplies weights by 1 - lr * weight_decay, "
                "so the product must be at most 1: lower one of them"
            )

    def hyperparameters(self) -> list[float]:
        """The numbers besides lr in the order in which csrc/optimizer/optimizer.h reads them."""
        return [self.weight_decay]

    def numbers(self) -> dict[str, Any]:
        """The fields by name, as files and messages have them: without a weight_decay of 0, which
        versions before it do not know.

        >>> SGD(lr=0.1).numbers()
        {'lr': 0.1}
        """
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.weight_decay:
            del named["weight_decay"]
        return named

    def without_lr(self) -> Self:
        """This one with a rate that is the same for all: to compare two tables by all else.

        >>> SGD(lr=0.1).without_lr() == SGD(lr=0.2).without_lr()
        True
        """
        rate = min(1.0, 1.0 / self.weight_decay) if self.weight_decay else 1.0
        return replace(self, lr=rate)


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr * g, as torch.optim.SGD without momentum. No state.

    >>> SGD(lr=0.1, weight_decay=0.01).hyperparameters()
    [0.01]
    """

    kind: ClassVar[str] = "sgd"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """One accumulator a weight: a += g*g; w -= lr * g / (sqrt(a) + eps), as torch.optim.Adagrad.

    torch's weight_decay is added to the gradient; this one is apart from it.

    >>> Adagrad(lr=0.05, weight_decay=0.01).hyperparameters()
    [1e-10, 0.0, 0.01]
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
        return [self.eps, self.initial_accumulator_value, self.weight_decay]


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

    A row's moments move only in steps that touch its key. With weight_decay it is AdamW's update.

    >>> Adam().hyperparameters()
    [0.9, 0.999, 1e-08, 0.0]
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
        return [self.betas[0], self.betas[1], self.eps, self.weight_decay]


@dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal with the usual power of one half (McMahan et al., KDD 2013, algorithm 1).

    lr is the paper's alpha. The weights a row starts with are kept: z starts so that the closed
    form returns them. It takes no weight_decay: l2 is what it has.

    >>> FTRL(lr=0.1, l1=0.5).hyperparameters()
    [1.0, 0.5, 0.0, 0.0]
    """

    kind: ClassVar[str] = "ftrl"
    divides_by_lr: ClassVar[bool] = True
    decays: ClassVar[bool] = False
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
