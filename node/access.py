"""Who may come in here and what they may do, as the files of keys, users and rules say now."""

import hashlib
import hmac
import logging
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import trio

from busnode.node.config import BadSetting, NodeConfig
from busnode.security.cluster_key import ClusterKey, read_keys
from busnode.security.quotas import place_of
from busnode.security.rules import BadRules, Rights, Rules, read_rules
from busnode.security.users import ANONYMOUS, Users, digest_token, is_password, read_users
from busnode.security.verbs import Verb
from busnode.wire.control import Hello
from busnode.wire.errors import Forbidden, NotAuthenticated
from busnode.wire.ids import Pattern, Topic
from busnode.world.files import Files, read_whole
from busnode.world.world import World

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 16 * 1024 * 1024

VERIFIED_MAX: Final = 10_000
"""Passwords that were found right and are remembered, as a keyed hash: a whole cluster's clients
come back at once after an outage, and Argon2id would take them minutes."""

TRIED_AT_ONCE_MAX: Final = 2
"""Passwords from one address that are verified or stand in line for it: the others from there wait
behind those, and who comes from elsewhere does not."""

WRONG: Final = "no such user, or not with this password or token"

T = TypeVar("T")


class Shown(NamedTuple):
    """Who somebody has shown to be, and by what: a hash of it, or that it was a certificate."""

    identity: str
    by: str


NOBODY: Final = Shown("", "")
BY_CERTIFICATE: Final = "certificate"


class Access:
    """`authenticate` says who somebody is, `rights` what such a one may do. None: everything."""

    def __init__(self, world: World, config: NodeConfig) -> None:
        """Reads the files; BadSetting when one makes no sense."""
        self._world = world
        self._config = config
        self._pepper = world.entropy.broker_id()
        self._verified: dict[bytes, None] = {}
        self._trying: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()
        """By address, while somebody there waits."""
        self.users: Users | None
        self.rules: Rules | None
        self.keys: list[ClusterKey]
        self.users, self.rules, self.keys = self._read()

    @property
    def asks_clients(self) -> bool:
        """Whether clients have to show who they are."""
        return self._config.asks_clients

    def reload(self) -> None:
        """Read the files again. BadSetting when one makes no sense: then all stays as it was."""
        self.users, self.rules, self.keys = self._read()
        self._verified.clear()

    def _read(self) -> tuple[Users | None, Rules | None, list[ClusterKey]]:
        config, files = self._config, self._world.files
        users = None if config.users is None else load_users(files, config.users)
        rules = None if config.acl is None else load_rules(files, config.acl)
        keys = [] if config.cluster_key is None else _load(files, config.cluster_key, read_keys)
        if rules is not None and users is None and not config.asks_clients:
            raise BadSetting(
                "acl without users: nobody could show who they are; give users, too, or "
                "--tls-client-cert required"
            )
        return users, rules, keys

    # Clients --------------------------------------------------------------------------------------

    async def authenticate(self, hello: Hello, certificate: str | None, host: str) -> Shown:
        """Who says HELLO from an address; nobody where nobody is asked. NotAuthenticated.

        `certificate` is the name in a client certificate that was verified.
        """
        users = self.users
        if users is None:
            # Then TLS lets in whom it lets in; who has shown nothing is nobody.
            if certificate is None:
                return NOBODY
            if not certificate:
                raise NotAuthenticated("the certificate has no common name, so it names nobody")
            return Shown(certificate, BY_CERTIFICATE)
        if hello.user:
            shown = Shown(hello.user, users.password_of(hello.user))
            if not await self._is_password(hello.secret, shown.by, host):
                raise NotAuthenticated(WRONG)
        elif hello.secret:
            shown = Shown(users.by_token(hello.secret) or "", digest_token(hello.secret))
        elif certificate is not None:
            shown = Shown(certificate, BY_CERTIFICATE)
        elif self.rules is not None and ANONYMOUS in self.rules:
            shown = Shown(ANONYMOUS, "")
        else:
            raise NotAuthenticated("this node wants to know who you are, and nothing was said")
        if not self.still_holds(shown):
            raise NotAuthenticated(WRONG)
        return shown

    async def _is_password(self, password: str, encoded: str, host: str) -> bool:
        known = hmac.digest(self._pepper, f"{encoded}\0{password}".encode(), hashlib.sha256)
        if known in self._verified:
            return True
        place = place_of(host)
        trying = self._trying.get(place)
        if trying is None:
            trying = self._trying[place] = trio.CapacityLimiter(TRIED_AT_ONCE_MAX)
        async with trying:
            right = await self._world.threads.compute(partial(is_password, password, encoded))
        if not right:
            return False
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[known] = None
        return True

    def still_holds(self, shown: Shown) -> bool:
        """Whether somebody who has shown this would be let in now."""
        if self.users is None:
            return True
        if shown.identity == ANONYMOUS:
            return self.rules is not None and ANONYMOUS in self.rules
        user = self.users.get(shown.identity)
        if user is None:
            return False
        if shown.by == BY_CERTIFICATE:
            return user.certificate
        return shown.by == user.password or shown.by in user.tokens

    def rights(self, identity: str) -> Rights | None:
        return None if self.rules is None else self.rules.rights(identity)


def check_right(rights: Rights | None, verb: Verb, topic: Topic) -> None:
    """Forbidden unless it is allowed; the answer is the same whether there is such a topic."""
    if rights is not None and not rights.allows(verb, topic):
        raise forbidden(rights, verb, topic)


def forbidden(rights: Rights, verb: Verb, target: Topic | Pattern) -> Forbidden:
    return Forbidden(f"{rights.identity} may not {verb} {target}, or it is not there")


def load_users(files: Files, path: str) -> Users:
    """BadSetting when the file cannot be read or makes no sense."""
    return _load(files, path, partial(_toml, read_users))


def load_rules(files: Files, path: str) -> Rules:
    """BadSetting when the file cannot be read or makes no sense."""
    return _load(files, path, partial(_toml, read_rules))


def _load(files: Files, path: str, read: Callable[[str], T]) -> T:
    try:
        return read(read_whole(files, path, FILE_BYTES_MAX).decode())
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is no text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{path} is no TOML: {error}") from None
    except BadRules as error:
        raise BadSetting(f"{path}: {error.text}") from None


def _toml(read: Callable[[Mapping[str, Any]], T], text: str) -> T:
    return read(tomllib.loads(text))
