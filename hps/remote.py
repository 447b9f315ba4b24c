"""RemoteParameterServer: the name of what is not built yet, so that asking for it says so.

Above it: users. Below it: nothing.
"""

from typing import Any

from hps.errors import ConfigError


class RemoteParameterServer:
    """The verbs of `ParameterServer` over gRPC.

    Raises:
        ConfigError: always, until the service is built.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise ConfigError(
            "RemoteParameterServer: the service over gRPC is not built yet; open the store in this "
            "process with hps.ParameterServer (docs/roadmap.md)"
        )
