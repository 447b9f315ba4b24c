"""The pages of Python: the public names, grouped by what one does with them.

Above it: pages.py; tests/site/ holds that every public name is in a group. Below it: mkdocstrings,
which reads the docstrings where a page says `::: module.name`.
"""

from importlib import import_module

# Name of the page -> (title, what the group is for, names).
GROUPS = {
    "1_rows": (
        "Rows by key",
        "A store of embedding rows, and what it may use of the machine.",
        (
            "hps.ParameterServer",
            "hps.open",
            "hps.Config",
            "hps.TableConfig",
            "hps.DramCacheConfig",
            "hps.GpuCacheConfig",
            "hps.SsdStoreConfig",
        ),
    ),
    "2_optimizers": (
        "Optimizers and first values",
        "How a table's rows are updated, and what a new row holds.",
        (
            "hps.Adagrad",
            "hps.RowWiseAdagrad",
            "hps.Adam",
            "hps.SGD",
            "hps.FTRL",
            "hps.Constant",
            "hps.Normal",
            "hps.Uniform",
        ),
    ),
    "3_life": (
        "Rows that come and go",
        "Which keys get a row, and when a row dies.",
        ("hps.Admission", "hps.Expiry"),
    ),
    "4_torch": (
        "Training with PyTorch",
        "Rows in a torch model: look-ups in place of `nn.EmbeddingBag`, the step, batches ahead.",
        (
            "hps.SparseEmbedding",
            "hps.SparseEmbeddings",
            "hps.RowOptimizer",
            "hps.Pipeline",
            "hps.Batch",
            "hps.Ids",
        ),
    ),
    "5_logs": (
        "Logs, keys and features",
        "Click logs as batches, and how a raw value becomes a key.",
        (
            "hps.reader.open_reader",
            "hps.reader.ReaderConfig",
            "hps.Features",
            "hps.key_of",
            "hps.keys_of",
        ),
    ),
    "6_models": (
        "Stored models",
        "A trained model that scores, and its dense part for other programs.",
        ("hps.Model", "hps.export_dense"),
    ),
    "7_servers": (
        "Rows on servers",
        "The same verbs against `hps serve`.",
        ("hps.RemoteParameterServer", "hps.TlsConfig"),
    ),
    "8_ranks": (
        "Rows over ranks",
        "The same verbs under torchrun, where each key has one owner.",
        ("hps.ClusterParameterServer", "hps.ClusterConfig", "hps.ClusterGradScaler"),
    ),
    "9_errors": (
        "Errors",
        "Every error that hps raises on purpose is an `HpsError` and says what to do.",
        (
            "hps.HpsError",
            "hps.ConfigError",
            "hps.DataError",
            "hps.CapacityError",
            "hps.NonFiniteError",
            "hps.PendingGradientError",
            "hps.StoreError",
            "hps.CorruptionError",
            "hps.RemoteError",
            "hps.ClusterError",
        ),
    ),
}


def pages() -> dict[str, str]:
    """Name -> page, in Markdown."""
    return {name: _page(*group) for name, group in GROUPS.items()}


def _page(title: str, about: str, names: tuple[str, ...]) -> str:
    text = f"# {title}\n\n{about}\n"
    for name in names:
        text += f"\n::: {home_of(name)}\n    options:\n      heading: {name}\n"
        text += f"      toc_label: {name.rpartition('.')[2]}\n"
    return text


def home_of(name: str) -> str:
    """Where a public name is defined: hps loads most of them at first use."""
    module, _, own = name.rpartition(".")
    what = getattr(import_module(module), own)
    return f"{what.__module__}.{what.__qualname__}"
