"""The service's recipes of kills and networks by name: what each does, and what must have happened.

Above it: test_service_kills.py, run.py. Below it: service_kills.py, service_chaos.py.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.torture.service_chaos import Chaos, Proxied, cutting
from tests.torture.service_kills import Case, ServiceReport, run_kills
from tests.torture.service_shards import Nursery


@dataclass(frozen=True)
class ServiceRecipe:
    """One recipe.

    what: the fault, in words.
    case: makes its case of a seed and a planted bug.
    needed: tallies without which a run proves nothing.
    plants: bugs of service_planted.py that it must find.
    """

    what: str
    case: Callable[[int, str], Case]
    needed: tuple[str, ...]
    plants: tuple[str, ...]


def _behind(chaos: Chaos) -> Callable[[int, str], Case]:
    return lambda seed, plant: Case(seed, plant, doors=Proxied(chaos))


_NEEDED_OF_KILLS = (
    "pushes", "replayed", "sessions that went on", "ahead of what was acknowledged",
    "openings killed",
)  # fmt: skip

RECIPES = {
    "K1": ServiceRecipe(
        "shards killed under four pushing clients",
        lambda seed, plant: Case(seed, plant),
        _NEEDED_OF_KILLS,
        ("acknowledged-unlogged", "replay-forgets", "marks-forgotten", "replay-torn"),
    ),
    "N1": ServiceRecipe(
        "pushes that arrive twice, some after a restart",
        _behind(Chaos(duplicates=0.3)),
        ("duplicates", "old pushes sent again", "repeats", "replayed"),
        ("repeats-applied",),
    ),
    "N2": ServiceRecipe(
        "pushes that overtake each other",
        _behind(Chaos(delays=0.2)),
        ("delayed", "overtaken", "gaps", "replayed"),
        ("gaps-applied",),
    ),
    "N3": ServiceRecipe(
        "replies that are lost",
        _behind(Chaos(lost_replies=0.2)),
        ("lost replies", "sessions that went on", "replayed"),
        ("marks-told-low",),
    ),
    "N4": ServiceRecipe(
        "connections cut in the middle of a message",
        lambda seed, plant: Case(seed, plant, doors=cutting),
        ("cut connections", "sessions that went on", "replayed"),
        ("marks-told-low",),
    ),
}


def run_recipe(
    process: Nursery, name: str, seed: int, kills: int, plant: str = ""
) -> ServiceReport:
    """Runs one; with a planted bug until the first violation."""
    return run_kills(process, RECIPES[name].case(seed, plant), kills)


def fresh_seed() -> int:
    """A seed for a run, printed."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed
