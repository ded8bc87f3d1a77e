"""Certificates for tests, made by the product's own code, as files."""

from pathlib import Path

from busnode.security.certificates import Pem, make_authority, make_certificate
from busnode.world.real_clock import RealClock
from busnode.world.real_new_file import PUBLIC, SECRET, write_new_file
from busnode.world.tls import Demand, TlsTerms

HOSTS = ("127.0.0.1", "localhost")
DAYS = 30


class Files:
    """One certificate and its key."""

    def __init__(self, folder: Path, name: str, made: Pem) -> None:
        folder.mkdir(exist_ok=True)
        self.pem = made
        self.certificate = str(folder / f"{name}.pem")
        self.key = str(folder / f"{name}.key")
        for path, data, mode in (
            (self.certificate, made.certificate, PUBLIC),
            (self.key, made.key, SECRET),
        ):
            Path(path).unlink(missing_ok=True)
            write_new_file(path, data, mode)


class Authority(Files):
    """Who signs them."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        super().__init__(folder, name, make_authority(name, RealClock().utc_us()))

    def node(self, name: str = "node", *hosts: str, days: float = DAYS) -> Files:
        return Files(self.folder, name, self._make(name, hosts or HOSTS, days, is_node=True))

    def client(self, name: str = "alice", days: float = DAYS) -> Files:
        return Files(self.folder, name, self._make(name, (), days, is_node=False))

    def _make(self, name: str, hosts: tuple[str, ...], days: float, *, is_node: bool) -> Pem:
        now_us = RealClock().utc_us()
        return make_certificate(self.pem, name, hosts, now_us, is_node=is_node, days=days)

    def listening(self, shown: Files, demand: Demand = Demand.NOTHING) -> TlsTerms:
        return TlsTerms(True, demand, shown.certificate, shown.key, self.certificate)

    def dialling(self, shown: Files | None = None, demand: Demand = Demand.HOST) -> TlsTerms:
        certificate, key = (None, None) if shown is None else (shown.certificate, shown.key)
        return TlsTerms(False, demand, certificate, key, self.certificate)
