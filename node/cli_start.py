"""`busnode start`: runs a node until it is told to leave."""
# ruff: noqa: PLC0415 - what the help or a wrong flag does not need is imported when it is needed

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from busnode.node.cli import WrongUsage
from busnode.node.config import BadSetting, NodeConfig
from busnode.node.logs import configure, fields
from busnode.node.presentation import Lines, Part
from busnode.node.setting_kinds import QueueRetries, Seeds, Switch
from busnode.node.settings import (
    CONFIG,
    FILE_BYTES_MAX,
    SETTINGS,
    Settings,
    resolve,
    safe_name,
    warn_if_open,
)

if TYPE_CHECKING:
    from busnode.node.node import RunningNode

logger = logging.getLogger(__name__)

SIGNALLED: Final = 128
"""A shell's exit code for a process that a signal has ended is this and the signal's number."""


def _flags(command: Callable[..., None]) -> Callable[..., None]:
    """The flags of all settings, from their table."""
    for setting in reversed(SETTINGS):
        shown = setting.help
        if setting.default is not None and not isinstance(setting.kind, Switch):
            shown += f"  [default: {setting.default}]"
        how: dict[str, Any] = {"metavar": setting.kind.metavar}
        if isinstance(setting.kind, Switch):
            how = {"is_flag": True, "default": None}
        if isinstance(setting.kind, Seeds | QueueRetries):
            how["multiple"] = True
        command = click.option(setting.flag, setting.name, help=shown, **how)(command)
    return command


@click.command()
@_flags
@click.option("--config", metavar="FILE", help="A TOML file with settings; flags override it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when it is ready.")
def start(config: str | None, as_json: bool, **flags: Any) -> None:
    """Run a node until SIGTERM or Ctrl-C: then it drains and leaves. A second one ends it at once.

    Each setting can also come from the environment (--http-port is BUSNODE_HTTP_PORT) or from a
    TOML file (http_port). Flags come first, then the environment, then the file.
    """
    settings = _settings({name: raw for name, raw in flags.items() if raw != ()}, config)
    from busnode.world.real_process import keep_freed_memory, raise_file_limit

    configure(settings.logs)
    raise_file_limit()
    keep_freed_memory()
    import trio

    code = trio.run(_run, settings.node, as_json)
    if code:
        sys.exit(code)


def _settings(flags: dict[str, Any], path: str | None) -> Settings:
    from busnode.world.real_process import environment

    around = environment()
    path = path or around.get(CONFIG)
    try:
        return resolve(flags, around, None if path is None else (path, _text(path)))
    except BadSetting as error:
        raise WrongUsage(error.text) from None


def _text(path: str) -> str:
    from busnode.world.files import read_whole
    from busnode.world.real_files import RealFiles

    try:
        return read_whole(RealFiles(), path, FILE_BYTES_MAX).decode()
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is no text in UTF-8") from None


async def _run(config: NodeConfig, as_json: bool) -> int:
    import signal

    import trio

    from busnode.node.node import start_node
    from busnode.node.surroundings import surroundings
    from busnode.world.real_process import absolute, host_name, leave_alone_what_is_there

    try:
        config, world = surroundings(config)
    except BadSetting as error:
        raise WrongUsage(error.text) from None
    name = safe_name(host_name())
    if config.storage != "memory":
        data = absolute(config.data or f"busnode-data/{config.name or name}")
        config = replace(config, data=data)
    hurried = 0
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            async with start_node(world, config, name) as node:
                await nursery.start(node.reloading.run)
                _announce(node, as_json)
                leave_alone_what_is_there()
                _leave(await anext(signals))

                async def hurry() -> None:
                    nonlocal hurried
                    hurried = await anext(signals)
                    node.hurry()

                nursery.start_soon(hurry)
            nursery.cancel_scope.cancel()
    return SIGNALLED + hurried if hurried else 0


def _leave(signal_no: int) -> None:
    if sys.stderr.isatty():
        click.echo(err=True)  # the log shall not go on behind a ^C
    logger.info("draining and leaving", extra=fields(signal=signal_no))


def _announce(node: "RunningNode", as_json: bool) -> None:
    addresses = node.listeners.addresses()
    if as_json:
        told = {"ready": True, "broker_id": node.broker_id.hex(), "name": node.name, **addresses}
        print(json.dumps(told), flush=True)
    else:
        http = "http://" if node.config.tls_cert is None else "https://"
        schemes = {"client": node.scheme, "peer": "", "http": http}
        lines: list[list[Part]] = [
            [(f"{what:<7} ", "dim"), (f"{schemes[what]}{address}", "")]
            for what, address in addresses.items()
        ]
        lines.append(
            [
                ("ready  ", "bold green"),
                (f" node {node.name} of cluster {node.config.cluster_id}", ""),
                (f"  brokerId {node.broker_id.hex()}", "dim"),
            ]
        )
        Lines().write(lines)
        sys.stdout.flush()
    facts = fields(name=node.name, storage=node.config.storage, data=node.config.data)
    logger.info("node is ready", extra=facts)
    warn_if_open(node.config)
