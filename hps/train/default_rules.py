"""How many examples a batch has, and how rows learn, where nobody says it.

Above it: `hps.train.run`. Below it: `estimate_examples`, base_rate.py. How the rules were found:
docs/benchmarks.md, "Model quality".

- A model learns by its steps: on a log of 10,000 examples batches of 4,096 are three steps, after
  which it has learned next to nothing.
- Adagrad's first update of a row moves each weight by the whole learning rate, whatever the
  gradient. An example of L keys, whose rows are summed, is moved by L times that: the more keys,
  the lower the rate.
- So a key's first click, which tells little, moves its row as much as all that it learns later. A
  sum of squared gradients that does not begin at 0 holds the first updates back. An example gives
  the first-order weights of its rows a gradient of at most 1 / batch; the sum begins at
  (c / batch)^2. Where most keys of the log are frequent, a c of 0.3 is best; the more keys of an
  example occur once, the longer updates are to be held back. Gradients of embeddings are smaller,
  and so is the c of rows that are nothing else.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from hps.errors import HpsError
from hps.models import class_of
from hps.reader.estimate import estimate_examples
from hps.reader.files import find_files
from hps.reader.find_format import find_format
from hps.train.base_rate import NUM_EXAMPLES, FirstLabels
from hps.train.options import DEFAULT_BATCH_SIZE, DEFAULT_LEARNING_RATE, TrainOptions

if TYPE_CHECKING:
    from hps.train.progress import Progress
    from hps.train.reading import StoredModel

LEAST = 32
_KEYS = 16  # of an example, up to which rows learn at the default rate
_HELD_BACK, _MOST_HELD_BACK = 0.3, 3.0  # c, without rare keys and at most
_OF_VECTORS = 0.25  # of it, where rows have no first-order weight
_BY_SIGN = ("adagrad", "rowwise_adagrad")
_STEPS = 200  # of an epoch, at least, above LEAST


def batch_size_for(examples: int, accumulate: int = 1) -> int:
    """The largest power of two from 32 to 4096 with which an epoch has 200 steps.

    Args:
        examples: of the log, about.
        accumulate: batches a step.

    >>> [batch_size_for(examples) for examples in (0, 12_800, 100_000, 10_000_000)]
    [32, 64, 256, 4096]
    """
    batch = LEAST
    while batch < DEFAULT_BATCH_SIZE and 2 * batch * accumulate * _STEPS <= examples:
        batch *= 2
    return batch


def with_batch_size(
    options: TrainOptions, stored: "StoredModel | None", progress: "Progress"
) -> TrainOptions:
    """The options with a batch size: that which was given, or that of the model, or by the rule; of
    a folder that is followed the largest.

    A log that cannot be read is left to who opens it, and says so.
    """
    if options.batch_size is not None:
        return options
    if stored is not None:
        return replace(
            options, batch_size=stored.recipe.reader.get("batch_size", DEFAULT_BATCH_SIZE)
        )
    if options.follow is not None:  # nobody knows how long it gets
        progress.say(f"batches of {DEFAULT_BATCH_SIZE:,} examples (--batch-size)")
        return replace(options, batch_size=DEFAULT_BATCH_SIZE)
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
    kept = examples * (1.0 - (options.hashed_share or 0.0))
    return round(kept * (1.0 if options.negative_rate is None else options.negative_rate))


def row_rate_for(keys: float) -> float:
    """The learning rate of Adagrad's rows, to two digits: lower in proportion where an example has
    more than 16 keys.

    Args:
        keys: that a model sums of an example, on average.

    >>> [row_rate_for(keys) for keys in (0, 16, 26, 100)]
    [0.05, 0.05, 0.031, 0.008]
    """
    return float(f"{DEFAULT_LEARNING_RATE * min(1.0, _KEYS / max(keys, 1.0)):.2g}")


def accumulator_for(examples: int, rare: float, *, has_first_order: bool = True) -> float:
    """The sum of squared gradients at which Adagrad begins a new row, to two digits.

    Args:
        examples: of a step.
        rare: keys of an example that occur once among the log's first 10,000, on average; of a log
            of fewer, as much less.
        has_first_order: of the model's rows: without such a weight gradients are smaller.

    >>> [accumulator_for(1000, rare) for rare in (0, 0.7, 20)]
    [9e-08, 1e-06, 9e-06]
    """
    held_back = min(_HELD_BACK + rare, _MOST_HELD_BACK)
    if not has_first_order:
        held_back *= _OF_VECTORS
    return float(f"{(held_back / examples) ** 2:.2g}")


def with_row_defaults(
    options: TrainOptions, first: FirstLabels | None, progress: "Progress"
) -> TrainOptions:
    """The options of a new run, of which Adagrad's rows have a learning rate and a sum of squared
    gradients to begin with: those that were given, or by the rules.

    Args:
        options: with a batch size.
        first: of the log's first examples; None where they were not looked at.

    >>> from io import StringIO
    >>> from hps.train.progress import Progress
    >>> options = TrainOptions(data=["log"], store="store", batch_size=1000)
    >>> options = with_row_defaults(
    ...     options, FirstLabels(1000, 9000, keys=100.0, rare=0.7), Progress(0, StringIO())
    ... )
    >>> options.lr, options.initial_accumulator
    (0.008, 1e-06)
    """
    if options.shape().optimizer not in _BY_SIGN:
        return options
    assert options.batch_size is not None, options
    keys, rare = (first.keys, first.rare) if first is not None else (None, None)
    if first is not None and rare is not None:
        rare *= min(1.0, first.examples / NUM_EXAMPLES)  # few examples do not tell what is rare
    rate, start = options.lr, options.initial_accumulator
    if rate is not None and start is not None:
        return options
    if rate is None and keys is not None:
        rate = row_rate_for(keys)
    if start is None:
        start = accumulator_for(
            options.batch_size * options.accumulate,
            rare or 0.0,
            has_first_order=class_of(options.shape().model).has_first_order,
        )
    options = replace(options, lr=rate, initial_accumulator=start)
    if keys is not None:
        progress.say(
            f"rows learn at {options.row_rate():g} (--lr), new ones from squared gradients of "
            f"{options.initial_accumulator:g} (--initial-accumulator): an example has about "
            f"{keys:.0f} keys, {rare:.1f} of them rare"
        )
    return options
