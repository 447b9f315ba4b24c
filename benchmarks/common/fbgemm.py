"""FBGEMM's table-batched embeddings (TBE) in host memory, optimizer fused into the backward.

Above it: the benchmarks that have FBGEMM as a peer. Below it: fbgemm_gpu, optional.
"""

from collections.abc import Sequence
from typing import Any

ROW_WISE_ADAGRAD = "rowwise_adagrad"
ADAGRAD = "adagrad"


def fbgemm_tables(
    tables: Sequence[tuple[int, int]],
    optimizer: str,
    learning_rate: float,
    eps: float,
    *,
    pooling: str = "sum",
    features: Sequence[int] | None = None,
) -> Any:
    """A TBE module with a table a feature, its weights not yet set.

    Sums over bags: for bags of one that is many times as fast as PoolingMode.NONE, and twice as
    fast as the same ids laid out as 26 features.

    Args:
        tables: rows and dim of each; a dim is a multiple of 4.
        optimizer: ROW_WISE_ADAGRAD or ADAGRAD.
        learning_rate: of the optimizer.
        eps: of the optimizer.
        pooling: "sum" or "mean".
        features: each feature's table by number; None: a feature a table.
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    kinds = {
        ROW_WISE_ADAGRAD: EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        ADAGRAD: EmbOptimType.EXACT_ADAGRAD,
    }
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, dim in tables],
        feature_table_map=None if features is None else list(features),
        optimizer=kinds[optimizer],
        learning_rate=learning_rate,
        eps=eps,
        pooling_mode={"sum": PoolingMode.SUM, "mean": PoolingMode.MEAN}[pooling],
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.NONE,
        device="cpu",
    )
