"""The key that all nodes of a cluster share, and how two of them show each other that they have it.

Dialler and listener each bring a fresh nonce. What each shows is an HMAC of everything that both
have said so far (the transcript: protocol, cluster, both brokerIds, both nonces), under a key made
by HKDF from the cluster's for this one conversation and this one side. So nothing that was recorded
is of use later, and nothing that one side has shown can be sent back to it.
"""

import base64
import binascii
import hmac
from typing import Final, NamedTuple

import msgpack
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from busnode.security.rules import BadRules
from busnode.wire.ids import BrokerId
from busnode.wire.sessions import Side

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
KEYS_MAX: Final = 4
"""In one file: the one in use, and those before or after it while a cluster changes its key."""

PREFIX: Final = "busnode-key-1:"


class ClusterKey(NamedTuple):
    secret: bytes

    def __repr__(self) -> str:
        return f"ClusterKey({self.key_id.hex()})"

    @property
    def key_id(self) -> bytes:
        """Tells keys apart, and nothing about them."""
        return _derive(self.secret, b"", b"busnode cluster key id")[:KEY_ID_BYTES]


class Transcript(NamedTuple):
    """What both sides have said; the same on both, or neither believes the other."""

    protocol: int
    cluster_id: str
    dialler: BrokerId
    listener: BrokerId
    dialler_nonce: bytes
    listener_nonce: bytes

    def prove(self, key: ClusterKey, side: Side) -> bytes:
        """What a side shows."""
        salt = self.dialler_nonce + self.listener_nonce
        code = HMAC(
            _derive(key.secret, salt, f"busnode peer {side.value}".encode()), hashes.SHA256()
        )
        packed: bytes = msgpack.packb(["busnode peer handshake 1", side.value, *self])
        code.update(packed)
        return code.finalize()

    def is_proof(self, key: ClusterKey, side: Side, proof: bytes) -> bool:
        return hmac.compare_digest(self.prove(key, side), proof)


def make_key(random_bytes: bytes) -> str:
    """As it stands in a file."""
    assert len(random_bytes) == KEY_BYTES
    return PREFIX + base64.urlsafe_b64encode(random_bytes).decode().rstrip("=")


def read_keys(text: str) -> list[ClusterKey]:
    """The keys of a file, one a line, the one in use first; BadRules, which repeats none of it."""
    keys: list[ClusterKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        body = line.strip().removeprefix(PREFIX)
        try:
            secret = base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not line.startswith(PREFIX) or len(secret) != KEY_BYTES:
            raise BadRules(f"line {number} is no cluster key: make one with `busnode key new`")
        keys.append(ClusterKey(secret))
    if not keys or len(keys) > KEYS_MAX:
        raise BadRules(f"{len(keys)} cluster keys; expected 1 to {KEYS_MAX}")
    return keys


def _derive(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(secret)
