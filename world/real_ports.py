"""Ports of this machine that stay ours while nobody listens there."""

import socket

LOOPBACK = "127.0.0.1"


class ReservedPort:
    """A free port of the loopback. Whoever dials it is refused unless somebody listens there.

    A listener with SO_REUSEADDR, as all of ours are, may come and go; meanwhile the system gives
    the port to nobody who asks for any free one, and to no connection as its near end: one that
    dials a free port of that range can even get that very port, and is then connected to itself.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((LOOPBACK, 0))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
