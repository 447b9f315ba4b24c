"""How many examples a batch has, and how fast rows learn, where nobody says it.

Above it: `hps.train.run`. Below it: `estimate_examples`, base_rate.py. How the rules were found:
docs/benchmarks.md, "Model quality".

- A model learns by its steps: on a log of 10,000 examples batches of 4,096 are three steps, after
  which it has learned next to nothing.
- Adagrad's first update of a row moves each weight by the whole learning rate, whatever the
  gradient. An example of L keys, whose rows are summed, is moved by L times that.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hps.errors import HpsError
from hps.reader.estimate import estimate_examples
from hps.reader.files import find_files
from hps.reader.find_format import find_format
from hps.train.base_rate import FirstLabels
from hps.train.options import DEFAULT_BATCH_SIZE, TrainOptions

if TYPE_CHECKING:
    from hps.train.progress import Progress
    from hps.train.reading import StoredModel

LEAST = 32
_KEYS = 26  # of an example, up to which rows learn at the default rate
_BY_SIGN = ("adagrad", "rowwise_adagrad")
_STEPS = 100  # of an epoch, at least, above LEAST


def batch_size_for(examples: int, accumulate: int = 1) -> int:
    """The largest power of two from 32 to 4096 with which an epoch has 100 steps.

    Args:
        examples: of the log, about.
        accumulate: batches a step.

    >>> [batch_size_for(examples) for examples in (0, 6_400, 100_000, 10_000_000)]
    [32, 64, 512, 4096]
    """
    batch = LEAST
    while batch < DEFAULT_BATCH_SIZE and 2 * batch * accumulate * _STEPS <= examples:
        batch *= 2
    return batch


def with_batch_size(
    options: TrainOptions, stored: "StoredModel | None", progress: "Progress"
) -> TrainOptions:
    """The options with a batch size: that which was given, or that of the model, or by the rule.

    A log that cannot be read is left to who opens it, and says so.
    """
    if options.batch_size is not None:
        return options
    if stored is not None:
        return replace(
            options, batch_size=stored.recipe.reader.get("batch_size", DEFAULT_BATCH_SIZE)
        )
    try:
        files = find_files(options.data)
        kind = options.format or find_format(files, options.dense)
        examples = _trained_on(options, estimate_examples(files, kind))
    except (HpsError, OSError):
        return replace(options, batch_size=DEFAULT_BATCH_SIZE)
    chosen = batch_size_for(examples, options.accumulate)
    if chosen != DEFAULT_BATCH_SIZE:
        progress.say(
            f"batches of {chosen:,} examples, as about {examples:,} are trained on (--batch-size)"
        )
    return replace(options, batch_size=chosen)


def _trained_on(options: TrainOptions, examples: int) -> int:
    """Of the examples of a log at least so many. A limit does not count: a run that is ended by one
    and goes on without has the bits of a run that never had it."""
    kept = examples * (1.0 - (options.valid_share or 0.0))
    return round(kept * (1.0 if options.negative_rate is None else options.negative_rate))


def with_row_rate(
    options: TrainOptions, first: FirstLabels | None, progress: "Progress"
) -> TrainOptions:
    """The options of a new run with a learning rate of rows: that which was given, or the default,
    which is lower in proportion where an example has more than 26 keys.

    Args:
        first: of the log's first examples.

    >>> from io import StringIO
    >>> from hps.train.progress import Progress
    >>> options = TrainOptions(data=["log"], store="store")
    >>> first = FirstLabels(10, 90, keys=104.0)
    >>> with_row_rate(options, first, Progress(0, StringIO())).lr
    0.005
    """
    keys = None if first is None else first.keys
    if options.lr is not None or keys is None or options.shape().optimizer not in _BY_SIGN:
        return options
    if keys <= _KEYS:
        return options
    rate = float(f"{options.row_rate() * _KEYS / keys:.2g}")
    progress.say(f"rows learn at {rate:g}, as an example has about {keys:.0f} keys (--lr)")
    return replace(options, lr=rate)
