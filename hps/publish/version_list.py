"""listed(): what is kept at a destination, for people and for those who choose a version.

Above it: follower.py, `hps versions`. Below it: version.py, destination.py.
"""

from collections.abc import Sequence

from hps.common.json_text import Json
from hps.errors import HpsError
from hps.publish.destination import Destination
from hps.publish.version import Version, listed_versions, load_version

MOST = 100  # that are described if nothing is said


def list_versions(destination: Destination, most: int = MOST) -> tuple[int, list[Json]]:
    """The versions that are kept.

    Args:
        destination: where they are.
        most: of them that are described, the newest ones.

    Returns:
        (how many are kept, those that are described, the oldest first), each as `version`, `kind`,
        `created` (seconds since 1970), `checkpoint` (of its store: a tag, or id:N), `lineage`,
        `period`, `rows` (of all tables), `bytes` (of its own files) and `error` (None). Of one that
        cannot be read `error` says why, and all but `version` is None.

    Raises:
        StoreError: the destination cannot be listed.

    Cost: a small file a version is read.
    """
    numbers = listed_versions(destination)
    return len(numbers), [_described(destination, number) for number in numbers[-most:]]


def _described(destination: Destination, number: int) -> Json:
    try:
        return {**_about(load_version(destination, number)), "error": None}
    except HpsError as error:  # also one that its publisher removes at this moment
        return {"version": number, **dict.fromkeys(_NAMES), "error": str(error)}


_NAMES = ("kind", "created", "checkpoint", "lineage", "period", "rows", "bytes")


def _about(version: Version) -> Json:
    values: Sequence[object] = (
        version.kind,
        version.created,
        version.source["checkpoint"],
        version.lineage,
        version.period,
        version.num_rows,
        sum(one.bytes for one in version.files if one.name.startswith(f"{version.folder}/")),
    )
    return {"version": version.number, **dict(zip(_NAMES, values, strict=True))}
