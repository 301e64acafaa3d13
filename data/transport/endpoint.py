"""Where a server listens, and the token without which it answers nobody: a file that only its owner can read."""

import hmac
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import flight

HEADER = "authorization"


@dataclass(frozen=True)
class Endpoint:
    """A server's address and token."""

    host: str
    port: int
    token: str = field(repr=False)

    def announce(self, path: Path) -> None:
        """Write `path` aside, for its owner alone, and rename it."""
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.touch(mode=0o600, exist_ok=False)
        aside.write_text(json.dumps(asdict(self)))
        aside.replace(path)

    @staticmethod
    def read(path: Path) -> "Endpoint":
        """What was announced."""
        return Endpoint(**json.loads(path.read_text()))

    @property
    def location(self) -> str:
        """As Flight writes it."""
        return f"grpc://{self.host}:{self.port}"

    @property
    def options(self) -> flight.FlightCallOptions:
        """What every call carries."""
        return flight.FlightCallOptions(headers=[(HEADER.encode(), self.token.encode())])


class TokenCheck(flight.ServerMiddlewareFactory):
    """Refuses every call that does not carry the token, whatever it asks."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token.encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Raises FlightUnauthenticatedError. The comparison takes as long for any token."""
        given = headers.get(HEADER, [""])[0]
        if not hmac.compare_digest(str(given).encode(), self._token):
            raise flight.FlightUnauthenticatedError("the call does not carry this server's token")
