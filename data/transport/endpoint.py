"""Where a server listens, and what whoever calls it has to carry: a file that only its owner can read."""

import itertools
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import flight
from pydantic import BaseModel, ValidationError

HEADER = "authorization"
CALL = "call"
"""The header with the server's start, the caller's session and the number of the call in that session."""
INVALID, MISSING = b"invalid", b"missing"
"""What goes with an error: the call was wrong, or what it asks for is not there."""
END = b"end"
"""The last message of a stream to a server. One without it broke off, whatever has come."""
NAME = "qianka"
"""The name in each certificate. It is the certificate itself that is trusted, whatever the address."""


def what_is_wrong(kind: type[BaseModel], error: ValidationError) -> str:
    """Why a message is no such message, without what it says, which may be a token."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"this is no {kind.__name__}: {place}: {first['msg']}"[:500]


class Session:
    """Numbers all calls of this process, from all its threads; a fork begins one of its own."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin another one."""
        self._name, self._numbers = secrets.token_hex(8), itertools.count(1)

    def next(self) -> str:
        """The session's name, and a number that it has not given yet."""
        return f"{self._name}.{next(self._numbers)}"


_SESSION = Session()
os.register_at_fork(after_in_child=_SESSION.renew)


@dataclass(frozen=True)
class Endpoint:
    """A server's address and token."""

    host: str
    port: int
    token: str = field(repr=False)
    start: str = ""
    """Of the server's process; a call that was meant for another start is refused."""
    certificate: str = field(default="", repr=False)
    """In PEM, of this start alone; "" where nothing is encrypted."""
    identity: str = field(default="", repr=False)
    """Certificate and key of whoever calls, in PEM: without them the handshake fails before any call is read."""

    def announce(self, path: Path) -> None:
        """Write `path` aside, for its owner alone, and rename it. Its folder is made where there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        aside.touch(mode=0o600, exist_ok=False)
        aside.write_text(json.dumps(asdict(self)))
        aside.replace(path)

    @staticmethod
    def read(path: Path) -> "Endpoint":
        """What was announced. FileNotFoundError where nothing is."""
        return Endpoint(**json.loads(path.read_text()))

    @property
    def location(self) -> str:
        """As Flight writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.certificate else ''}://{host}:{self.port}"

    @property
    def options(self) -> flight.FlightCallOptions:
        """What one call carries that may take as long as it likes. Each call needs its own."""
        return self.within(None)

    def within(self, seconds: float | None) -> flight.FlightCallOptions:
        """What one call carries that fails after so many seconds. Each call needs its own: the server takes it once."""
        headers = [
            (HEADER.encode(), self.token.encode()),
            (CALL.encode(), f"{self.start}.{_SESSION.next()}".encode()),
        ]
        return flight.FlightCallOptions(timeout=seconds, headers=headers)

    def connect(self) -> flight.FlightClient:
        """A client, which several threads may use. It connects with its first call."""
        # A proxy for the web, which clusters put in the environment, knows nothing of compute nodes.
        options: dict[str, Any] = {"generic_options": [("grpc.enable_http_proxy", 0)]}
        if self.certificate:
            options |= {"tls_root_certs": self.certificate.encode(), "override_hostname": NAME}
        if self.identity:
            options |= {"cert_chain": self.identity.encode(), "private_key": self.identity.encode()}
        return flight.FlightClient(self.location, **options)
