"""ClusterConfig: what of a cluster may be chosen beside its stores: formats on the way, hot rows.

Above it: parameter_server.py, `hps train`. Below it: nothing.
"""

from dataclasses import dataclass

from hps.common.field_checks import require_whole
from hps.common.wire_format import Wire

MAX_HOT_ROWS = 2**20


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """How rows and gradients travel between the ranks; the same on every rank.

    Args:
        row_wire: of rows: "float32", "float16", "bfloat16" or "int8".
        gradient_wire: of gradients; what a narrower one rounds away is added to the same key's
            next gradient.
        hot_rows: of each table so many rows that most ranks ask for are kept on every rank; 0 for
            none. Changes no bit.

    Raises:
        ConfigError: a field outside its limits.

    >>> ClusterConfig(row_wire="bfloat16").row_wire
    'bfloat16'
    """

    row_wire: str = "float32"
    gradient_wire: str = "float32"
    hot_rows: int = 0

    def __post_init__(self) -> None:
        Wire.named(self.row_wire, "row_wire (--row-wire)")
        Wire.named(self.gradient_wire, "gradient_wire (--gradient-wire)")
        require_whole("ClusterConfig.hot_rows", self.hot_rows, 0, MAX_HOT_ROWS)
