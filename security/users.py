"""Who there is, and how each shows it: by password, token or certificate.

A file of users is TOML, a table for each identity:

    [billing]
    tokens = ["sha256:…"]

    [ada]
    password = "$argon2id$…"

    [gateway]
    certificate = true

A password is kept as Argon2id makes it. A token has 256 random bits, so there is nothing to guess
and a plain hash will do, at a millionth of the cost; it begins with its identity, which is no
secret.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from busnode.security.rules import EVERYBODY, BadRules
from busnode.wire.shapes import is_list, is_map

ANONYMOUS: Final = "anonymous"
"""Who shows nothing, where the rules say what such a one may do."""

MEMORY_KIB: Final = 19 * 1024
ITERATIONS: Final = 2
LANES: Final = 1
"""As OWASP advises for Argon2id; about 50 ms of one processor."""

MEMORY_KIB_MAX: Final = 256 * 1024
"""With ten iterations it takes some seconds of one processor, for whoever wants to try."""

SALT_BYTES: Final = 16
TOKEN_BYTES: Final = 32
PASSWORD_BYTES_MIN: Final = 8

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,62}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

NOBODYS_PASSWORD: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$bm9ib2R5cy1zYWx0LTEyMw$"
    "dGhlIHBhc3N3b3JkIG9mIG5vYm9keSBhdCBhbGwhISE"
)
"""What is tried where there is no such user, so that it takes as long as where there is one."""


@dataclass(frozen=True, slots=True)
class User:
    password: str | None = field(default=None, repr=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    certificate: bool = False


class Users:
    """All users of a file."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = dict(users)

    def __contains__(self, identity: str) -> bool:
        return identity in self._users

    def __len__(self) -> int:
        return len(self._users)

    def names(self) -> list[str]:
        return sorted(self._users)

    def by_token(self, token: str) -> str | None:
        """Whose token it is."""
        identity = token.rpartition(".")[0]
        user = self._users.get(identity)
        digest = digest_token(token)
        known = user.tokens if user is not None else ()
        return identity if any(hmac.compare_digest(digest, each) for each in known) else None

    def password_of(self, identity: str) -> str:
        """What a password is verified against; that of nobody where there is none."""
        user = self._users.get(identity)
        return NOBODYS_PASSWORD if user is None or user.password is None else user.password

    def get(self, identity: str) -> User | None:
        return self._users.get(identity)


def check_identity(name: str) -> str:
    """BadRules unless it can be the name of a user."""
    if not _NAME.fullmatch(name) or name in (ANONYMOUS, EVERYBODY):
        raise BadRules(
            f"{name!r:.100} cannot be a user: expected up to 63 letters, digits and _.@-, not "
            f"{ANONYMOUS!r}"
        )
    return name


def make_token(identity: str, random_bytes: bytes) -> str:
    assert len(random_bytes) >= TOKEN_BYTES
    return f"{identity}.{base64.urlsafe_b64encode(random_bytes).decode().rstrip('=')}"


def digest_token(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode(errors='replace')).hexdigest()}"


def hash_password(password: str, salt: bytes) -> str:
    """Takes a while on purpose: never where others wait for it."""
    kdf = Argon2id(salt=salt, length=32, iterations=ITERATIONS, lanes=LANES, memory_cost=MEMORY_KIB)
    return kdf.derive_phc_encoded(password.encode())


def is_password(password: str, encoded: str) -> bool:
    """Whether it is the one; takes as long as hashing it."""
    try:
        Argon2id.verify_phc_encoded(password.encode(errors="replace"), encoded)
    except InvalidKey:
        return False
    return True


def read_users(table: Mapping[str, Any]) -> Users:
    """The users of a file that was parsed; BadRules names what is wrong with it, and no secret."""
    users: dict[str, User] = {}
    for name, row in table.items():
        check_identity(name)
        if not is_map(row):
            raise BadRules(f"[{name}] is no table")
        unknown = set(row) - {"password", "tokens", "certificate"}
        if unknown:
            raise BadRules(f"[{name}] {min(unknown)} is unknown: password, tokens or certificate")
        users[name] = _read_user(name, row)
    return Users(users)


def _read_user(name: str, row: Mapping[str, Any]) -> User:
    password, tokens = row.get("password"), row.get("tokens", [])
    certificate = row.get("certificate", False)
    if password is not None and not _is_encoded(password):
        raise BadRules(f"[{name}] password is not as `busnode user add` writes it")
    if not is_list(tokens) or not all(
        isinstance(each, str) and _DIGEST.fullmatch(each) for each in tokens
    ):
        raise BadRules(f"[{name}] tokens are not as `busnode user add` writes them")
    if not isinstance(certificate, bool):
        raise BadRules(f"[{name}] certificate is neither true nor false")
    if password is None and not tokens and not certificate:
        raise BadRules(f"[{name}] has no way to come in: give it a password, tokens or certificate")
    return User(password, tuple(tokens), certificate)


def _is_encoded(password: object) -> bool:
    """Whether it is an Argon2id string that verifying takes for one, and of a bearable size."""
    if not isinstance(password, str):
        return False
    found = re.fullmatch(
        r"\$argon2id\$v=19\$m=(\d{1,7}),t=(\d{1,2}),p=(\d)\$[A-Za-z0-9+/]{11,64}\$[A-Za-z0-9+/]{22,128}",
        password,
    )
    if found is None:
        return False
    memory_kib, iterations, lanes = map(int, found.groups())
    return lanes >= 1 and 8 * lanes <= memory_kib <= MEMORY_KIB_MAX and 1 <= iterations <= 10
