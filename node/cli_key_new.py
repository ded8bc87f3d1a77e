"""`busnode key new`: a cluster key in a file of its own."""
# ruff: noqa: PLC0415 - the help does without them

import json

import click

from busnode.node.cli import WrongUsage


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def new(file: str, as_json: bool) -> None:
    """Make a cluster key and write it to FILE, which must not be there yet.

    Copy FILE to each machine and start its node with --cluster-key FILE. To change the key of a
    running cluster, write the new one below the old one in every FILE and send each node SIGHUP;
    then move it above the old one, and again; then take the old one out, and again.
    """
    from busnode.node.peer_greeting import make_nonce
    from busnode.security.cluster_key import make_key, read_keys
    from busnode.world.real_entropy import RealEntropy
    from busnode.world.real_new_file import SECRET, write_new_file

    text = make_key(make_nonce(RealEntropy()))
    try:
        write_new_file(file, f"{text}\n".encode(), SECRET)
    except FileExistsError:
        raise WrongUsage(f"{file} is there already: name another file, or remove it") from None
    key_id = read_keys(text)[0].key_id.hex()
    if as_json:
        print(json.dumps({"file": file, "key_id": key_id}))
    else:
        click.echo(f"{file}: cluster key {key_id}; give it to all nodes with --cluster-key {file}")
