"""`busnode user`: who may come in."""
# ruff: noqa: PLC0415 - the help does without them

import json
import sys
from getpass import getpass
from typing import TYPE_CHECKING, Final

import click

from busnode.node.cli import HelpfulGroup, WrongUsage

if TYPE_CHECKING:
    from busnode.security.users import Users

FILE: Final = "users.toml"
WAYS: Final = ("token", "password", "certificate")


@click.group(cls=HelpfulGroup)
def user() -> None:
    """Who may come in as a client, in a file that nodes are given with --users.

    \b
      busnode user add billing                     prints a token, once: BUSNODE_TOKEN=…
      busnode user add ada --by password           asks for it
      busnode user ls

    A node reads the file again on SIGHUP. To take somebody out, remove the table from the file.
    """


@user.command()
@click.argument("name")
@click.option("--by", "way", type=click.Choice(WAYS), default="token", show_default=True)
@click.option("--file", default=FILE, show_default=True, type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def add(name: str, way: str, file: str, as_json: bool) -> None:
    """Add a user to the file.

    By token: it is printed once and kept as a hash. By password: it is asked for, or read from
    stdin where that is no terminal. By certificate: whoever has one for this common name that the
    node's --tls-ca has signed.
    """
    from busnode.node.peer_greeting import make_nonce
    from busnode.security.rules import BadRules
    from busnode.security.users import (
        SALT_BYTES,
        check_identity,
        digest_token,
        hash_password,
        make_token,
    )
    from busnode.world.real_entropy import RealEntropy
    from busnode.world.real_new_file import append_secret

    try:
        check_identity(name)
    except BadRules as error:
        raise WrongUsage(error.text) from None
    if name in _users(file, may_be_missing=True):
        raise WrongUsage(f"{file} has a user {name} already: remove the table first")
    random_bytes = make_nonce(RealEntropy())
    token = None
    match way:
        case "token":
            token = make_token(name, random_bytes)
            row = f'tokens = ["{digest_token(token)}"]'
        case "password":
            row = f'password = "{hash_password(_password(), random_bytes[:SALT_BYTES])}"'
        case _:
            row = "certificate = true"
    append_secret(file, f'\n["{name}"]\n{row}\n'.encode())
    if as_json:
        print(json.dumps({"file": file, "user": name, "by": way, "token": token}))
        return
    click.echo(f"{file}: {name} may come in by {way}")
    if token is not None:
        click.echo("Its token, which is shown now and never again:", err=True)
        click.echo(token)


@user.command()
@click.option("--file", default=FILE, show_default=True, type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ls(file: str, as_json: bool) -> None:
    """List the users of the file, and how each comes in."""
    users = _users(file)
    rows: dict[str, list[str]] = {}
    for name in users.names():
        found = users.get(name)
        assert found is not None
        ways = {"token": found.tokens, "password": found.password, "certificate": found.certificate}
        rows[name] = [way for way in WAYS if ways[way]]
    if as_json:
        print(json.dumps({"users": [{"user": name, "by": by} for name, by in rows.items()]}))
        return
    for name, by in rows.items():
        click.echo(f"{name}  by {', '.join(by)}")


def _password() -> str:
    from busnode.security.users import PASSWORD_BYTES_MIN

    if sys.stdin.isatty():
        text = getpass("Password: ")
        if getpass("Once more: ") != text:
            raise WrongUsage("these are two different passwords; nothing was written")
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    if len(text.encode()) < PASSWORD_BYTES_MIN:
        raise WrongUsage(f"a password has at least {PASSWORD_BYTES_MIN} bytes")
    return text


def _users(path: str, *, may_be_missing: bool = False) -> "Users":
    from busnode.node.access import load_users
    from busnode.node.config import BadSetting
    from busnode.security.users import Users
    from busnode.world.real_files import RealFiles

    files = RealFiles()
    if not files.exists(path):
        if may_be_missing:
            return Users({})
        raise WrongUsage(f"there is no file {path}: `busnode user add NAME` makes it")
    try:
        return load_users(files, path)
    except BadSetting as error:
        raise WrongUsage(error.text) from None
