"""Who may call a server, and each call only once. Looks at headers alone, before anything else is read or done."""

import hmac
import threading
from collections import OrderedDict
from typing import Any

from pyarrow import flight

from data.transport.endpoint import CALL, HEADER

WINDOW = 1024
"""Threads of one session may overtake each other by so many calls."""
SESSIONS = 2**16
"""That are remembered, about 20 MiB of them; then the one that was silent for longest is forgotten."""


class Guard(flight.ServerMiddlewareFactory):
    """Refuses calls without the token, those for another start of the server, and those that came before.

    It raises FlightUnauthenticatedError and FlightUnauthorizedError; the token is compared in a time that says nothing.
    """

    def __init__(self, token: str, start: str) -> None:
        super().__init__()
        self._token, self._start = token.encode(), start
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """The highest number of each session, and a bit for each of the `WINDOW` numbers up to it that was seen."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """See the class."""
        given = headers.get(HEADER, [""])[0]
        if not hmac.compare_digest(str(given).encode(), self._token):
            raise flight.FlightUnauthenticatedError("the call does not carry this server's token")
        start, _, call = str(headers.get(CALL, [""])[0]).partition(".")
        if start != self._start:
            raise flight.FlightUnauthenticatedError("the call is meant for another start of this server")
        session, _, number = call.partition(".")
        if not (session and len(session) <= 32 and number.isascii() and number.isdigit() and len(number) <= 18):
            raise flight.FlightUnauthenticatedError("the call has no number")
        if not self._first(session, int(number)):
            raise flight.FlightUnauthorizedError("this call came before")

    @property
    def remembered(self) -> int:
        """Sessions, at most `SESSIONS`."""
        return len(self._sessions)

    def _first(self, session: str, number: int) -> bool:
        with self._lock:
            highest, seen = self._sessions.pop(session, (0, 0))
            behind = highest - number
            first = behind < 0 or (behind < WINDOW and not seen >> behind & 1)
            if behind < 0:
                highest, seen = number, (seen << min(-behind, WINDOW) | 1) & ((1 << WINDOW) - 1)
            elif first:
                seen |= 1 << behind
            self._sessions[session] = highest, seen
            if len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        return first
