"""Writes a log of what a made-up shop showed, and what of it was clicked: a csv file a day.

Run it: python examples/make_shop_log.py [OUT] [--rows N] [--days N] [--seed N]. docs/tutorial.md
trains on it. Clicks are drawn from a planted model, so the best possible AUC of each day is known
and printed. Like a real log it has a number over several magnitudes (price), holes (age, price,
query), combinations that count for more than their parts (who likes which category, at what hour on
what device), items that are new each day, a column that says nothing (impression), one that is
known only after the click (seconds_viewed), and impressions kept one in two (weight).
Above it: nobody. Below it: numpy, pyarrow, hps.metrics.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from hps.metrics import BinaryMetrics

CATEGORIES = ("shoes", "shirts", "coats", "phones", "laptops", "cameras", "books", "games")
CATEGORIES += ("lamps", "chairs", "café sets", "plants")
STYLES = ("cheap", "red", "new", "small", "best")
DEVICES = ("phone", "desktop", "tablet")
AGE_BOUNDS = (25, 35, 50)  # and of unknown age: five groups, each with a taste of its own
KEPT_OF_TABLETS = 0.5  # share of a tablet's impressions that the log has; their weight is 2
IMPRESSIONS_A_USER, IMPRESSIONS_AN_ITEM = 25, 200  # a day
NEW_ITEMS = 0.08  # share of the first day's items that each further day adds

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Users, items and what decides a click; the same for all days.

    U users, I items of all days, C categories, G groups of age, P devices.
    """

    age_U: Integers  # 0: not known
    leaning_U: Floats  # how readily a user clicks at all
    category_I: Integers
    price_I: Floats  # NaN: not known
    quality_I: Floats
    first_day_I: Integers
    taste_GC: Floats
    evening_PC: Floats  # what the evening adds, by device


def make_shop(rows: int, days: int, seed: int) -> Shop:
    """Draws the users, items and tastes."""
    random = np.random.default_rng([seed, 0])
    users = max(20, rows // IMPRESSIONS_A_USER)
    items = max(2 * len(CATEGORIES), rows // IMPRESSIONS_AN_ITEM)
    new = max(1, int(items * NEW_ITEMS))
    first_day = np.concatenate([np.zeros(items, int), np.repeat(np.arange(1, days), new)])
    category = random.integers(0, len(CATEGORIES), len(first_day))
    magnitude = np.linspace(2.0, 6.0, len(CATEGORIES))[category]
    price = np.round(np.exp(magnitude + random.normal(0, 0.7, len(category))), 2)
    age = np.clip(random.gamma(9.0, 4.2, users), 16, 90).astype(int)
    return Shop(
        age_U=np.where(random.random(users) < 0.25, 0, age),
        leaning_U=random.normal(0, 0.5, users),
        category_I=category,
        price_I=np.where(random.random(len(price)) < 0.05, np.nan, price),
        quality_I=random.normal(0, 0.4, len(price)),
        first_day_I=first_day,
        taste_GC=random.normal(0, 0.9, (len(AGE_BOUNDS) + 2, len(CATEGORIES))),
        evening_PC=random.normal(0, 0.7, (len(DEVICES), len(CATEGORIES))),
    )


def draw_day(shop: Shop, day: int, rows: int, seed: int) -> tuple[pa.Table, Floats]:
    """One day's log, and the true probability of a click in each of its rows."""
    random = np.random.default_rng([seed, 1, day])
    user = random.integers(0, len(shop.age_U), rows)
    item = random.choice(np.flatnonzero(shop.first_day_I <= day), rows)
    category, price, age = shop.category_I[item], shop.price_I[item], shop.age_U[user]
    hour = random.choice(24, rows, p=_share_of_hours())
    device = random.choice(len(DEVICES), rows, p=[0.6, 0.28, 0.12])
    position = random.integers(1, 13, rows)
    # Some look for what they are shown, some for something else, and the others for nothing.
    aim = random.random(rows)
    searched = np.where(aim < 0.2, category, random.integers(0, len(CATEGORIES), rows))
    style = random.integers(0, len(STYLES), rows)
    has_query = aim < 0.55

    group = np.where(age == 0, 0, 1 + np.searchsorted(AGE_BOUNDS, age, side="right"))
    logit = shop.leaning_U[user] + shop.quality_I[item] + shop.taste_GC[group, category]
    logit += np.where((hour >= 18) & (hour < 23), shop.evening_PC[device, category], 0.0)
    logit += np.where(has_query, np.where(searched == category, 1.2, -0.6), 0.0)
    # What is cheap goes, what is dear is looked at, what lies between is passed over.
    logit += np.where(np.isnan(price), -0.4, 0.35 * (np.log(np.nan_to_num(price, nan=1)) - 4) ** 2)
    probability = 1 / (1 + np.exp(-(logit - 2.7 - 0.12 * position)))
    clicked = random.random(rows) < probability
    words = np.array([f"{style} {name}" for style in STYLES for name in CATEGORIES])
    viewed = np.where(clicked, np.round(random.gamma(2.0, 15.0, rows), 1) + 0.1, 0.0)
    columns = {
        "impression": day * 1_000_000_000 + random.permutation(rows),
        "clicked": clicked.astype(int),
        "user": 10_000 + user,
        "age": pa.array(age, mask=age == 0),
        "device": np.array(DEVICES)[device],
        "hour": hour,
        "query": pa.array(words[style * len(CATEGORIES) + searched], mask=~has_query),
        "item": 500_000 + item,
        "category": np.array(CATEGORIES)[category],
        "price": pa.array(price, mask=np.isnan(price)),
        "position": position,
        "seconds_viewed": viewed,
        "weight": np.where(device == DEVICES.index("tablet"), round(1 / KEPT_OF_TABLETS), 1),
    }
    return pa.table(columns), probability


def _share_of_hours() -> Floats:
    """How the impressions of a day are spread over its hours: few at night, most in the evening."""
    share = 1.2 + np.sin((np.arange(24) - 13) * np.pi / 12)
    return np.asarray(share / share.sum())


def best_auc(table: pa.Table, probability: Floats) -> float:
    """The AUC of the planted model itself on a day's clicks."""
    metrics = BinaryMetrics()
    logits = np.log(probability / (1 - probability)).astype(np.float32)
    metrics.update(logits, table["clicked"].to_numpy())
    return float(metrics.compute()["auc"])


def write(folder: Path, rows: int, days: int, seed: int) -> list[float]:
    """Writes day-0.csv, day-1.csv, ...; returns the best possible AUC of each day."""
    folder.mkdir(parents=True, exist_ok=True)
    shop = make_shop(rows, days, seed)
    best = []
    for day in range(days):
        table, probability = draw_day(shop, day, rows, seed)
        path = folder / f"day-{day}.csv"
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
        best.append(best_auc(table, probability))
        share = np.mean(table["clicked"].to_numpy())
        print(f"{path}: {rows:,} rows, {share:.2%} clicked, best possible AUC {best[-1]:.4f}")
    return best


def main() -> None:
    """Writes the days and says of each what could be reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=Path("."), help="folder of the files")
    parser.add_argument("--rows", type=int, default=100_000, help="of each day")
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.out, arguments.rows, arguments.days, arguments.seed)


if __name__ == "__main__":
    main()
