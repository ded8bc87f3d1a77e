"""`busnode log repair`: what is damaged in a data directory, mended from others."""
# ruff: noqa: PLC0415 - trio, which the real files need, takes longer to import than all the rest

from typing import TYPE_CHECKING, Any

import click

from busnode.node.cli_log_directory import (
    FOUND_DAMAGE,
    check_directory,
    directory_argument,
    json_option,
    log_parts,
    print_json,
    remark_damage,
)
from busnode.node.presentation import Lines, Part, counted

if TYPE_CHECKING:
    from busnode.segments.directory_repair import Repaired


@click.command()
@directory_argument
@click.option(
    "--from",
    "others",
    metavar="OTHER_DIR",
    multiple=True,
    type=click.Path(resolve_path=True),
    help="The data directory of another node, of its mirror for one. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Tell what could be mended, and change nothing.")
@json_option
@click.pass_context
def repair(
    context: click.Context, *, directory: str, others: tuple[str, ...], dry_run: bool, as_json: bool
) -> None:
    """Mend what is damaged or missing in DIR from other data directories.

    Every record in DIR is read. What is damaged is taken from an OTHER_DIR that has it, checked,
    and put in its place; the damaged bytes are kept in DIR/quarantine. All nodes must be down.
    Exit code 0: all is good now, or could be with --dry-run. 1: something remains.
    """
    from busnode.segments.directory_repair import repair_directory
    from busnode.world.real_world import real_world

    world = real_world()
    for each in (directory, *others):
        check_directory(world.files, each)
    if directory in others:
        raise click.UsageError(f"{directory} cannot be mended from itself")
    found = list(repair_directory(world.files, world.clock, directory, others, dry_run=dry_run))
    if as_json:
        print_json(_fields(found, directory, dry_run=dry_run))
    else:
        _show(found, directory, others, dry_run=dry_run)
    if not all(each.is_whole for each in found):
        context.exit(FOUND_DAMAGE)


def _fields(found: "list[Repaired]", directory: str, *, dry_run: bool) -> dict[str, Any]:
    from busnode.node.log_export import hole_fields, log_fields

    return {
        "directory": directory,
        "dry_run": dry_run,
        "good": all(each.is_whole for each in found),
        "damaged_messages": sum(each.mended + each.remaining for each in found),
        "mended_messages": sum(each.mended for each in found),
        "remaining_messages": sum(each.remaining for each in found),
        "holes": [
            {
                **log_fields(each.log_id),
                **hole_fields(each.hole),
                "mended": each.mended,
                "remaining": each.remaining,
                "sources": list(each.sources),
                "quarantine": list(each.quarantine),
            }
            for each in found
        ],
    }


def _show(
    found: "list[Repaired]", directory: str, others: tuple[str, ...], *, dry_run: bool
) -> None:
    lines = Lines()
    done = "could be mended" if dry_run else "mended"
    for each in found:
        hole = each.hole
        numbers = f"messages {hole.first_no}–{hole.last_no}: "
        if each.is_whole:
            outcome: Part = (done, "green")
        elif each.mended:
            outcome = (f"{done} up to {each.mended_no}, the rest remains", "yellow")
        else:
            outcome = ("remains", "bold red")
        lines.write([[*log_parts(each.log_id), (numbers, ""), outcome]])
        remark_damage(lines, hole, directory)
        for source in each.sources:
            lines.remark(f"from {source}")
        for path in each.quarantine:
            lines.remark(f"damaged bytes are kept in {path.removeprefix(f'{directory}/')}")
    mended = sum(each.mended for each in found)
    remaining = sum(each.remaining for each in found)
    if not found:
        lines.write([[("nothing is damaged or missing", "bold green")]])
        return
    total = f"{counted(len(found), 'hole')}, {counted(mended, 'message')} {done}, "
    style = "bold red" if remaining else "bold green"
    lines.write([[(total, "bold"), (f"{counted(remaining, 'message')} remaining", style)]])
    if remaining and not others:
        lines.remark("name other data directories with --from: those of this node's mirrors")
