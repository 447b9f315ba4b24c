"""The compiled part of the generator: draws examples, and writes them as text.

Above it: planted.py (the model's numbers) and log.py (threads and files). Below it: numba. All
kernels are in one file because numba's cache of compiled code looks at one file's time only.

Every random number is a pure function of (seed, example, purpose), so blocks of examples may be
made in any order by any number of threads. Unsigned and signed integers never meet in one
expression: numba would turn their result into a float.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hps.generate.compiled import compiled
from hps.generate.config import LANE

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
_SQRT_3 = math.sqrt(3.0)
# Ranks up to about this one carry full effects; those of rarer keys fade with the square root of
# their rank, since a log of a million lines shows them too seldom to be learned.
_EFFECT_RANK = 16.0
_MISSING = 0.05
# Of a key's life, see `holder`: it begins in the second quarter of its feature's ranks, is in the
# first one next, then in the third and the fourth.
_QUARTER_OF_STAGE = (1, 0, 2, 3)
_STAGE_OF_QUARTER = (1, 0, 2, 3)

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_CLICK = np.frombuffer(b"click:", np.uint8)
_DENSE_FEATURE = np.frombuffer(b" dense_feature:", np.uint8)
_TAB, _NEWLINE, _SPACE, _COLON, _DOT, _ZERO, _ONE = 9, 10, 32, 58, 46, 48, 49

Words = NDArray[np.uint64]
Whole = NDArray[np.int64]
Real = NDArray[np.float64]
Text = NDArray[np.uint8]
# Of each key, by its number: the last file that has it, from 1; 0 is none.
Marks = NDArray[np.unsignedinteger]


class PlantedModel(NamedTuple):
    """Numbers of a planted model; F features, D dense columns, M mixing features.

    Args:
        seeds: uint64 [3]: of draws, of effects, of keys.
        cardinalities: int64 [F]: keys that each feature has at a time.
        spans, bases: int64 [F]: keys that it has over all periods, and those of the features before
            it.
        zipf: float64 [F, 3]: both ends and the acceptance width of rejection-inversion.
        alpha: exponent of the Zipf laws.
        dense: float64 [D, 3]: mean and deviation of a column's logarithm, and its effect.
        mixing: int64 [M]: features whose keys interact in pairs.
        scales: float64 [4]: of categorical, dense and pair effects; then the intercept.
        drift: part of the keys that trade places, and the number of examples over which they do.
        moves: how often the keys of a lane move on from one period to the next; 0 where they stay.
        periods: int64 [2]: their number, and the number of examples over which they go.
        lengths: float64 [longest bag]: the probabilities of a bag of at most 1, 2, ... values.
        centers: float64 [F, 3]: the mean effect and the mean factor of a feature's keys, which are
            taken off each, so that a longer bag is not for that alone a better one; and the factor
            that a bag begins with. 0 where bags have one value.
    """

    seeds: Words
    cardinalities: Whole
    spans: Whole
    bases: Whole
    zipf: Real
    alpha: float
    dense: Real
    mixing: Whole
    scales: Real
    drift: Real
    moves: float
    periods: Whole
    lengths: Real
    centers: Real


class Block(NamedTuple):
    """Buffers of one block of B examples with L values.

    Args:
        offsets: int64 [B*F + 1]; bag b*F + f is ids[offsets[b*F + f]:offsets[b*F + f + 1]].
        ids: int64 [L]; a feature's keys count from 0, those most popular at the log's beginning
            first.
        dense: int64 [B, D]; -1 is missing.
        parts: float64 [B, 3]; the unscaled sums of categorical, dense and pair effects.
        logits: float64 [B]; the planted log-odds.
        labels: uint8 [B].
    """

    offsets: Whole
    ids: Whole
    dense: Whole
    parts: Real
    logits: Real
    labels: Text


@compiled
def mix(value: np.uint64) -> np.uint64:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection on 64 bits."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@compiled
def to_unit(bits: np.uint64) -> float:
    """Uniform in [0, 1)."""
    return np.float64(bits >> np.uint64(11)) * _TO_UNIT


@compiled
def zipf_integral(x: float, alpha: float) -> float:
    """The integral of t^-alpha from 1 to x."""
    if alpha == 1.0:
        return math.log(x)
    return math.expm1((1.0 - alpha) * math.log(x)) / (1.0 - alpha)


@compiled
def zipf_inverse(value: float, alpha: float) -> float:
    """The x with zipf_integral(x) == value."""
    if alpha == 1.0:
        return math.exp(value)
    return math.exp(math.log1p(value * (1.0 - alpha)) / (1.0 - alpha))


@compiled
def draw_rank(model: PlantedModel, feature: int, state: np.uint64) -> int:
    """A rank from 0 under the exact Zipf law, by rejection-inversion (Hormann, Derflinger 1996)."""
    alpha = model.alpha
    low, high = model.zipf[feature, 0], model.zipf[feature, 1]
    width = model.zipf[feature, 2]
    last = model.cardinalities[feature]
    while True:
        state += _GOLDEN
        value = high + to_unit(mix(state)) * (low - high)
        x = zipf_inverse(value, alpha)
        rank: int = min(max(np.int64(x + 0.5), 1), last)
        if rank - x <= width:
            return rank - 1
        if value >= zipf_integral(rank + 0.5, alpha) - math.exp(-alpha * math.log(rank)):
            return rank - 1


@compiled
def example_bits(model: PlantedModel, example: int) -> np.uint64:
    """What all random numbers of an example are made from."""
    return mix(mix(np.uint64(example) + model.seeds[0]) + _GOLDEN)


@compiled
def bag_bits(bits: np.uint64, feature: int) -> np.uint64:
    """What the length and the values of a bag are made from, of those of its example."""
    return mix(bits + np.uint64(feature + 1))


@compiled
def value_bits(bits: np.uint64, place: int) -> np.uint64:
    """What a value is made from, of those of its bag: the first is as in a log without bags."""
    return mix(bits + np.uint64(place)) if place > 0 else bits


@compiled
def draw_length(model: PlantedModel, bits: np.uint64) -> int:
    """Values of a bag, by bisection of the cumulated law."""
    low, high = 0, model.lengths.size - 1
    if high == 0:
        return 1
    unit = to_unit(mix(bits ^ _MIX_2))
    while low < high:
        middle = (low + high) // 2
        if model.lengths[middle] > unit:
            high = middle
        else:
            low = middle + 1
    return low + 1


@compiled
def draw_offsets(model: PlantedModel, first: int, offsets: Whole) -> None:
    """The offsets of the bags of the examples from `first` on."""
    num_features = model.cardinalities.size
    offsets[0] = 0
    for row in range((offsets.size - 1) // num_features):
        bits = example_bits(model, first + row)
        for feature in range(num_features):
            bag = row * num_features + feature
            offsets[bag + 1] = offsets[bag] + draw_length(model, bag_bits(bits, feature))


@compiled
def drifted(model: PlantedModel, feature: int, rank: int, example: int) -> int:
    """The id that holds this rank at this moment: the rank's own, or its opposite's."""
    opposite = model.cardinalities[feature] - 1 - rank
    pair = np.uint64(model.bases[feature] + min(rank, opposite))
    bits = mix(mix(pair ^ model.seeds[2]))
    if to_unit(bits) >= model.drift[0]:
        return rank
    moment = to_unit(mix(bits)) * model.drift[1]
    return opposite if example >= moment else rank


@compiled
def period_of(model: PlantedModel, example: int) -> int:
    """The period of an example; those that follow the log are of its last one."""
    last: int = model.periods[0] - 1
    period: int = example * model.periods[0] // model.periods[1]
    return min(period, last)


@compiled
def holder(model: PlantedModel, feature: int, rank: int, period: int) -> int:
    """The id that holds this rank in this period, where keys are born and die. Four keys share a
    lane, one in each quarter of the ranks. When they move on, the one in the fourth quarter dies,
    and another one is born into the second. Each lane has moments of its own."""
    size: int = model.cardinalities[feature]
    num_lanes: int = size // LANE
    if rank >= LANE * num_lanes:
        return rank
    quarter, lane = 0, rank
    while lane >= num_lanes:  # seldom, and a division takes longer
        quarter += 1
        lane -= num_lanes
    phase = to_unit(mix((np.uint64(model.bases[feature] + lane) ^ model.seeds[2]) + _GOLDEN))
    births = int(model.moves * period + phase) - _STAGE_OF_QUARTER[quarter]
    if births > 0:
        return size + (births - 1) * num_lanes + lane
    # One of the first: in period 0 it was where a key is that has as many stages behind it.
    return _QUARTER_OF_STAGE[-births] * num_lanes + lane


@compiled
def best_rank(model: PlantedModel, feature: int, identity: int) -> int:
    """The best of the ranks that a key ever has, or one as good: of the keys that trade places or
    follow one another it is the same."""
    size: int = model.cardinalities[feature]
    if model.moves == 0.0:
        return min(identity, size - 1 - identity)
    num_lanes: int = size // LANE
    if identity >= size:
        return (identity - size) % num_lanes
    return identity % num_lanes if identity < LANE * num_lanes else identity


@compiled
def lane_of(model: PlantedModel, feature: int, rank: int) -> int:
    """`best_rank` of a key by a rank that it has: of those that follow one another."""
    num_lanes = model.cardinalities[feature] // LANE
    if rank >= LANE * num_lanes:
        return rank
    while rank >= num_lanes:
        rank -= num_lanes
    return rank


@compiled
def fade(best: int) -> float:
    """How much of a full effect a key has, at every time the same, by its `best_rank`."""
    return math.sqrt(_EFFECT_RANK / (_EFFECT_RANK + best))


@compiled
def effect_bits(model: PlantedModel, feature: int, identity: int, best: int) -> np.uint64:
    """With bags those of keys that trade places or follow one another are the same, so that drift
    leaves a feature's mean, from which effects count, what it was."""
    if model.lengths.size > 1:
        identity = best
    return mix(np.uint64(model.bases[feature] + identity) * _GOLDEN ^ model.seeds[1])


@compiled
def category_effect(model: PlantedModel, feature: int, identity: int, best: int) -> float:
    """What a key adds to the log-odds, by itself and its `best_rank`."""
    unit = to_unit(effect_bits(model, feature, identity, best))
    return (2.0 * unit - 1.0) * _SQRT_3 * fade(best)


@compiled
def factor(model: PlantedModel, feature: int, identity: int) -> float:
    """What a key of a mixing feature multiplies with those of the others. It fades faster than a
    single key's effect, since a product is learned from the joint occurrences of two keys."""
    best = best_rank(model, feature, identity)
    unit = to_unit(mix(effect_bits(model, feature, identity, best)))
    fading = fade(best)
    return (2.0 * unit - 1.0) * _SQRT_3 * fading * fading * fading


@compiled
def pair_effects(model: PlantedModel, block: Block, row: int) -> float:
    """The sum over all pairs of mixing features of the product of their bags' factors. That of
    a bag is the sum of its keys', as they differ from their mean, beside that mean."""
    total = squares = 0.0
    for feature in model.mixing:
        bag = row * model.cardinalities.size + feature
        value = model.centers[feature, 2]
        for place in range(block.offsets[bag], block.offsets[bag + 1]):
            value += factor(model, feature, block.ids[place]) - model.centers[feature, 1]
        total += value
        squares += value * value
    return 0.5 * (total * total - squares)


@compiled
def draw_dense(model: PlantedModel, column: int, bits: np.uint64) -> int | np.int64:
    """A count whose logarithm is nearly normal (a sum of four uniforms), or -1: missing."""
    if to_unit(mix(bits + _GOLDEN)) < _MISSING:
        return -1
    total = -2.0
    for _ in range(4):
        total += (np.float64(bits & np.uint64(0xFFFF)) + 0.5) * 2.0**-16
        bits >>= np.uint64(16)
    log = model.dense[column, 0] + model.dense[column, 1] * _SQRT_3 * total
    return np.int64(math.exp(log))


@compiled
def draw_examples(model: PlantedModel, first: int, block: Block) -> None:
    """Fills a block, whose offsets are drawn, with the examples from `first` on."""
    offsets, ids, dense, parts = block.offsets, block.ids, block.dense, block.parts
    num_features, num_dense = model.cardinalities.size, dense.shape[1]
    drifts = model.drift[0] > 0.0
    for row in range(dense.shape[0]):
        example = first + row
        state = example_bits(model, example)
        period = period_of(model, example) if model.moves > 0.0 else 0
        category_sum = dense_sum = 0.0
        for feature in range(num_features):
            bits = bag_bits(state, feature)
            begin = offsets[row * num_features + feature]
            for place in range(begin, offsets[row * num_features + feature + 1]):
                rank = draw_rank(model, feature, value_bits(bits, place - begin))
                if model.moves > 0.0:
                    identity = holder(model, feature, rank, period) if period > 0 else rank
                    best = lane_of(model, feature, rank)
                else:
                    identity = drifted(model, feature, rank, example) if drifts else rank
                    best = min(rank, model.cardinalities[feature] - 1 - rank)
                ids[place] = identity
                effect = category_effect(model, feature, identity, best)
                category_sum += effect - model.centers[feature, 0]
        state = mix(state ^ _MIX_1)
        for column in range(num_dense):
            value = draw_dense(model, column, mix(state + np.uint64(column + 1)))
            dense[row, column] = value
            log = math.log1p(max(value, 0))
            dense_sum += model.dense[column, 2] * (log - model.dense[column, 0])
        pair_sum = pair_effects(model, block, row)
        parts[row, 0], parts[row, 1], parts[row, 2] = category_sum, dense_sum, pair_sum
        scales = model.scales
        logit = scales[3] + scales[0] * category_sum + scales[1] * dense_sum + scales[2] * pair_sum
        block.logits[row] = logit
        is_click = to_unit(mix(state ^ _MIX_2)) < 1.0 / (1.0 + math.exp(-logit))
        block.labels[row] = 1 if is_click else 0


@compiled
def add_effects(model: PlantedModel, block: Block, sums: Real) -> None:
    """Adds to float64 [F, 3] the effects and the factors of a feature's keys in the block, and how
    many they are."""
    num_features = model.cardinalities.size
    for bag in range(block.offsets.size - 1):
        feature = bag % num_features
        for place in range(block.offsets[bag], block.offsets[bag + 1]):
            identity = block.ids[place]
            best = best_rank(model, feature, identity)
            sums[feature, 0] += category_effect(model, feature, identity, best)
            sums[feature, 1] += factor(model, feature, identity)
            sums[feature, 2] += 1.0


@compiled
def find_unmarked(model: PlantedModel, block: Block, marks: Marks, mark: int) -> Whole:
    """The numbers of a block's keys that do not have the mark, some of them several times. Others
    may set the mark meanwhile: then a few are found that have it."""
    num_features = model.cardinalities.size
    found = np.empty(block.ids.size, np.int64)
    count = 0
    for bag in range(block.offsets.size - 1):
        base = model.bases[bag % num_features]
        for place in range(block.offsets[bag], block.offsets[bag + 1]):
            number = base + block.ids[place]
            found[count] = number
            count += marks[number] != mark
    return found[:count]


@compiled
def set_marks(numbers: Whole, marks: Marks, mark: int, counts: Whole) -> None:
    """Sets the mark of keys; counts[0] grows by those that had another, counts[1] by those that had
    none."""
    for number in numbers:
        before = marks[number]
        if before != mark:
            counts[0] += 1
            counts[1] += before == 0
            marks[number] = mark


@compiled
def token_of(model: PlantedModel, feature: int, identity: int) -> np.uint32:
    """32 bits that name a key within its feature: a bijection (MurmurHash3's 32-bit finaliser)."""
    value = np.uint32(identity) ^ np.uint32(mix(model.seeds[2] + np.uint64(feature)))
    value = np.uint32((value ^ (value >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    value = np.uint32((value ^ (value >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return value ^ (value >> np.uint32(16))


@compiled
def key_of(model: PlantedModel, feature: int, identity: int) -> np.uint64:
    """64 bits that name a key among all features' keys: a bijection."""
    return mix(np.uint64(model.bases[feature] + identity) + model.seeds[2])


@compiled
def fill_keys(model: PlantedModel, block: Block, keys: Words, offsets: Whole) -> None:
    """A block's keys as a reader has them, feature by feature: keys uint64 [L], and offsets int64
    [F*B + 1], where bag f*B + b is keys[offsets[f*B + b]:offsets[f*B + b + 1]]."""
    num_features = model.cardinalities.size
    num_examples = block.labels.size
    end = 0
    offsets[0] = 0
    for feature in range(num_features):
        for row in range(num_examples):
            bag = row * num_features + feature
            for place in range(block.offsets[bag], block.offsets[bag + 1]):
                keys[end] = key_of(model, feature, block.ids[place])
                end += 1
            offsets[feature * num_examples + row + 1] = end


@compiled
def put_unsigned(text: Text, end: int, value: np.uint64) -> int:
    """Decimal digits of a uint64; returns the new end."""
    num_digits = 1
    rest = value
    while rest >= np.uint64(10):
        rest //= np.uint64(10)
        num_digits += 1
    for place in range(end + num_digits - 1, end - 1, -1):
        quotient = value // np.uint64(10)
        text[place] = _ZERO + np.int64(value - quotient * np.uint64(10))
        value = quotient
    return end + num_digits


@compiled
def put_bytes(text: Text, end: int, source: Text) -> int:
    for place in range(source.size):
        text[end + place] = source[place]
    return end + source.size


@compiled
def put_log(text: Text, end: int, value: int) -> int:
    """log1p of a count (0 if missing) with four decimals, cut off."""
    scaled = np.int64(math.log1p(max(value, 0)) * 1e4)
    end = put_unsigned(text, end, np.uint64(scaled // 10000))
    text[end] = _DOT
    rest = scaled % 10000
    for place in range(end + 4, end, -1):
        text[place] = _ZERO + rest % 10
        rest //= 10
    return end + 5


@compiled
def write_criteo(model: PlantedModel, block: Block, text: Text) -> int:
    """label, counts (empty: missing), tokens of 8 hex digits, tab separated; returns the bytes. Of
    a bag it has no place for more than one value."""
    dense, num_features = block.dense, model.cardinalities.size
    end = 0
    for row in range(dense.shape[0]):
        text[end] = _ZERO + block.labels[row]
        end += 1
        for column in range(dense.shape[1]):
            text[end] = _TAB
            end += 1
            if dense[row, column] >= 0:
                end = put_unsigned(text, end, np.uint64(dense[row, column]))
        for feature in range(num_features):
            place = block.offsets[row * num_features + feature]
            token = token_of(model, feature, block.ids[place])
            text[end] = _TAB
            for digit in range(8):
                text[end + 8 - digit] = _HEX[token & np.uint32(15)]
                token >>= np.uint32(4)
            end += 9
        text[end] = _NEWLINE
        end += 1
    return end


@compiled
def put_token(text: Text, end: int, field: int, index: int) -> int:
    """A space, the field if it is not -1, the index, and the colon before the value."""
    text[end] = _SPACE
    end += 1
    if field >= 0:
        end = put_unsigned(text, end, np.uint64(field))
        text[end] = _COLON
        end += 1
    end = put_unsigned(text, end, np.uint64(index))
    text[end] = _COLON
    return end + 1


@compiled
def write_weighted(model: PlantedModel, block: Block, text: Text, has_fields: bool) -> int:
    """libsvm (index:value) or libffm (field:index:value). Dense columns are the first indices and
    fields, with log1p of their counts as values; keys follow with value 1."""
    dense, num_features = block.dense, model.cardinalities.size
    num_dense = dense.shape[1]
    end = 0
    for row in range(dense.shape[0]):
        text[end] = _ZERO + block.labels[row]
        end += 1
        for column in range(num_dense):
            if dense[row, column] >= 0:
                end = put_token(text, end, column if has_fields else -1, column)
                end = put_log(text, end, dense[row, column])
        for feature in range(num_features):
            bag = row * num_features + feature
            field = num_dense + feature if has_fields else -1
            for place in range(block.offsets[bag], block.offsets[bag + 1]):
                index = num_dense + model.bases[feature] + block.ids[place]
                end = put_token(text, end, field, index)
                text[end] = _ONE
                end += 1
        text[end] = _NEWLINE
        end += 1
    return end


@compiled
def write_slots(model: PlantedModel, block: Block, text: Text) -> int:
    """click:L, dense_feature:log1p(count) for every column, then slot:key with slots from 1; a
    bag's slot is repeated with each of its keys."""
    dense, num_features = block.dense, model.cardinalities.size
    end = 0
    for row in range(dense.shape[0]):
        end = put_bytes(text, end, _CLICK)
        text[end] = _ZERO + block.labels[row]
        end += 1
        for column in range(dense.shape[1]):
            end = put_bytes(text, end, _DENSE_FEATURE)
            end = put_log(text, end, dense[row, column])
        for feature in range(num_features):
            bag = row * num_features + feature
            for place in range(block.offsets[bag], block.offsets[bag + 1]):
                text[end] = _SPACE
                end = put_unsigned(text, end + 1, np.uint64(feature + 1))
                text[end] = _COLON
                end = put_unsigned(text, end + 1, key_of(model, feature, block.ids[place]))
        text[end] = _NEWLINE
        end += 1
    return end
