"""`busnode acl`: who may do what, and which rule says so."""
# ruff: noqa: PLC0415 - the help does without them

import json
from typing import Final

import click

from busnode.node.cli import FAILED, HelpfulGroup, WrongUsage
from busnode.security.verbs import MEANINGS, VERBS, Verb

FILE: Final = "acl.toml"


@click.group(cls=HelpfulGroup)
def acl() -> None:
    """What each user may do, in a file that nodes are given with --acl: see docs/security.md.

    \b
      busnode acl check billing publish /orders/new
    """


@acl.command(epilog="\b\n" + "\n".join(f"{verb:<10} {MEANINGS[verb]}" for verb in VERBS))
@click.argument("who", metavar="USER")
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("topic")
@click.option("--file", default=FILE, show_default=True, type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(who: str, verb: Verb, topic: str, file: str, as_json: bool) -> None:
    """Say whether USER may do VERB on TOPIC, and which rule decides. Exit code 1 when not."""
    from busnode.node.access import load_rules
    from busnode.node.config import BadSetting
    from busnode.wire.topics import check_topic
    from busnode.world.real_files import RealFiles

    try:
        rules = load_rules(RealFiles(), file)
    except BadSetting as error:
        raise WrongUsage(error.text) from None
    decision = rules.rights(who).decide(verb, check_topic(topic))
    rule = None if decision.rule is None else str(decision.rule)
    if as_json:
        told = {"user": who, "verb": verb, "topic": topic, "allowed": decision.allowed}
        print(json.dumps({**told, "rule": rule}))
    else:
        word = (
            click.style("may", fg="green") if decision.allowed else click.style("may not", fg="red")
        )
        why = rule or f"no rule of {who} or of everybody is about it"
        click.echo(f"{who} {word} {verb} {topic}: {why}")
    if not decision.allowed:
        raise click.exceptions.Exit(FAILED)
