"""How two nodes greet where their cluster has a key: each shows the other that it has it.

The dialler names the key and brings a nonce, and nothing else about itself: whoever listens at an
address that was only heard of may be anybody. The listener shows first, then the dialler does and
says who it is.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from busnode.security.cluster_key import NONCE_BYTES, ClusterKey, Transcript
from busnode.wire.control import PeerChallenge, PeerHello, PeerProof
from busnode.wire.errors import NotAuthenticated
from busnode.wire.ids import BrokerId
from busnode.wire.sessions import Side
from busnode.world.entropy import Entropy

HAS_NONE: Final = "this node has a cluster key, and the other one has shown none"
HAS_ANOTHER: Final = "the other node has another cluster key"
IS_SELF: Final = "a node shows nothing to itself: somebody between sends on what it has said"


class Challenge(NamedTuple):
    """What the listener has said, until the dialler has shown that it has the key."""

    hello: PeerHello
    message: PeerChallenge
    transcript: Transcript
    key: ClusterKey

    def answered(self, proof: PeerProof) -> PeerHello:
        """Who the dialler is; NotAuthenticated unless it has the key, and is another node."""
        if self.transcript.dialler == self.transcript.listener:
            raise NotAuthenticated(IS_SELF)
        if not self.transcript.is_proof(self.key, Side.DIALLER, proof.proof):
            raise NotAuthenticated(HAS_ANOTHER)
        return replace(
            self.hello, node=proof.node, clients_at=proof.clients_at, peers_at=proof.peers_at
        )


class Greeting(NamedTuple):
    """What the dialler says, and how it answers."""

    hello: PeerHello
    """All about itself."""
    key: ClusterKey | None
    nonce: bytes

    @property
    def first(self) -> PeerHello:
        """What is said before anything is known of the other side."""
        if self.key is None:
            return self.hello
        return replace(
            self.hello, node="", clients_at=[], peers_at=[],
            key_id=self.key.key_id, nonce=self.nonce,
        )  # fmt: skip

    def is_own(self, challenge: PeerChallenge) -> bool:
        """Whether it is this very node that listens there. It gets no answer: whoever has our own
        challenge come back to us could go on with the answer to it in our place."""
        return (
            self.key is not None
            and challenge.broker_id == self.hello.broker_id
            and self._is_shown(self.key, challenge)
        )

    def answer(self, challenge: PeerChallenge) -> PeerProof:
        """NotAuthenticated unless the listener has the key, and is another node."""
        if self.key is None:
            raise NotAuthenticated("the other node has a cluster key, and this one has none")
        hello = self.hello
        if challenge.broker_id == hello.broker_id:
            raise NotAuthenticated(IS_SELF)
        if not self._is_shown(self.key, challenge):
            raise NotAuthenticated(HAS_ANOTHER)
        proof = self._transcript(challenge).prove(self.key, Side.DIALLER)
        return PeerProof(proof, hello.node, hello.clients_at, hello.peers_at)

    def _transcript(self, challenge: PeerChallenge) -> Transcript:
        hello = self.hello
        return Transcript(
            hello.protocol, hello.cluster_id, hello.broker_id, challenge.broker_id,
            self.nonce, challenge.nonce,
        )  # fmt: skip

    def _is_shown(self, key: ClusterKey, challenge: PeerChallenge) -> bool:
        return len(challenge.nonce) == NONCE_BYTES and self._transcript(challenge).is_proof(
            key, Side.LISTENER, challenge.proof
        )

    def welcomed(self, *, was_challenged: bool) -> None:
        """NotAuthenticated when the other side welcomes us without having shown anything."""
        if self.key is not None and not was_challenged:
            raise NotAuthenticated(HAS_NONE)


def make_greeting(hello: PeerHello, keys: list[ClusterKey], entropy: Entropy) -> Greeting:
    return Greeting(hello, keys[0], make_nonce(entropy)) if keys else Greeting(hello, None, b"")


def make_challenge(
    keys: list[ClusterKey], hello: PeerHello, me: BrokerId, cluster_id: str, entropy: Entropy
) -> Challenge | None:
    """What a dialler must show; None where there is no key. NotAuthenticated when only one of the
    two has one, or they have different ones."""
    if not keys:
        if hello.key_id:
            raise NotAuthenticated("the other node has a cluster key, and this one has none")
        return None
    if not hello.key_id or len(hello.nonce) != NONCE_BYTES:
        raise NotAuthenticated(HAS_NONE)
    key = next((each for each in keys if each.key_id == hello.key_id), None)
    if key is None:
        raise NotAuthenticated(HAS_ANOTHER)
    nonce = make_nonce(entropy)
    transcript = Transcript(hello.protocol, cluster_id, hello.broker_id, me, hello.nonce, nonce)
    proof = transcript.prove(key, Side.LISTENER)
    return Challenge(hello, PeerChallenge(me, nonce, proof), transcript, key)


def make_nonce(entropy: Entropy) -> bytes:
    return b"".join(entropy.u64().to_bytes(8, "big") for _ in range(NONCE_BYTES // 8))
