"""`busnode key ca` and `busnode key cert`: TLS for a cluster within a minute."""
# ruff: noqa: PLC0415 - the help does without cryptography

import json
import posixpath
from typing import TYPE_CHECKING, Final

import click

from busnode.node.cli import WrongUsage
from busnode.node.presentation import Lines, Part

if TYPE_CHECKING:
    from busnode.security.certificates import Pem

AUTHORITY: Final = "busnode-ca"
FILE_BYTES_MAX: Final = 1024 * 1024

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_days = click.option(
    "--days",
    metavar="N",
    type=click.IntRange(1, 36500),
    help="For how long it is valid; an authority 10 years, a certificate 825 days if not given.",
)
_directory = click.option(
    "--directory",
    metavar="DIR",
    default=".",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Where the files are, and are made.  [default: the current one]",
)


@click.command()
@click.option("--name", metavar="NAME", default="busnode authority", show_default=True)
@_days
@_directory
@_as_json
def ca(name: str, days: int | None, directory: str, as_json: bool) -> None:
    """Make an authority: busnode-ca.pem, which all nodes and clients get, and busnode-ca.key, with
    which certificates are signed and which nobody else should have. No file is overwritten."""
    from busnode.security.certificates import AUTHORITY_DAYS, BadCertificate, make_authority

    try:
        made = make_authority(name, _now_us(), days or AUTHORITY_DAYS)
    except BadCertificate as error:
        raise WrongUsage(f"--name {error}") from None
    _write(directory, AUTHORITY, made, as_json)


@click.command()
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="A name or an address at which it is dialled; may be repeated. If none is given: "
    "localhost, this machine's name and its addresses.",
)
@click.option("--client", is_flag=True, help="For a client, whose identity is NAME: no node's.")
@_days
@_directory
@_as_json
def cert(
    name: str,
    hosts: tuple[str, ...],
    client: bool,
    days: int | None,
    directory: str,
    as_json: bool,
) -> None:
    """Make a certificate for a node, NAME.pem and NAME.key, signed by the busnode-ca in the same
    directory. No file is overwritten."""
    from busnode.security.certificates import (
        CERTIFICATE_DAYS,
        BadCertificate,
        Pem,
        make_certificate,
    )

    if name == AUTHORITY or "/" in name or name.startswith("."):
        raise WrongUsage(f"{name[:100]!r} cannot be the name of a file and of a node or a client")
    if client and hosts:
        raise WrongUsage("nobody dials a client: --host is for nodes")
    beginning = posixpath.join(directory, AUTHORITY)
    authority = Pem(_read(f"{beginning}.pem"), _read(f"{beginning}.key"))
    try:
        made = make_certificate(
            authority, name, () if client else hosts or _own_hosts(), _now_us(),
            is_node=not client, days=days or CERTIFICATE_DAYS,
        )  # fmt: skip
    except BadCertificate as error:
        raise WrongUsage(f"{beginning}.pem, {name}: {error}") from None
    _write(directory, name, made, as_json)


def _own_hosts() -> list[str]:
    from busnode.world.real_interfaces import reachable_addresses
    from busnode.world.real_process import host_name

    there = [*reachable_addresses("0.0.0.0"), *reachable_addresses("::")]
    found = ["localhost", "127.0.0.1", "::1", host_name(), *there]
    return list(dict.fromkeys(found))


def _now_us() -> int:
    from busnode.world.real_clock import RealClock

    return RealClock().utc_us()


def _read(path: str) -> bytes:
    from busnode.world.files import read_whole
    from busnode.world.real_files import RealFiles

    try:
        return read_whole(RealFiles(), path, FILE_BYTES_MAX)
    except FileNotFoundError:
        raise WrongUsage(f"there is no {path}: `busnode key ca` makes it") from None
    except OSError as error:
        raise WrongUsage(f"{path}: {error.strerror}") from None


def _write(directory: str, name: str, made: "Pem", as_json: bool) -> None:
    from busnode.world.real_new_file import PUBLIC, SECRET, write_new_file

    certificate = posixpath.join(directory, f"{name}.pem")
    key = posixpath.join(directory, f"{name}.key")
    try:
        # The key first: a certificate without one would look as if all were well.
        write_new_file(key, made.key, SECRET)
        write_new_file(certificate, made.certificate, PUBLIC)
    except FileExistsError as error:
        raise WrongUsage(f"{error.filename} is there already, and is not overwritten") from None
    if as_json:
        click.echo(json.dumps({"certificate": certificate, "key": key}))
        return
    lines: list[list[Part]] = [
        [("certificate ", "dim"), (certificate, "")],
        [("key         ", "dim"), (key, "bold"), ("  for its owner only", "dim")],
    ]
    Lines().write(lines)
