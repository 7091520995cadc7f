"""Commands that dead letters and journals both have, made for one of them."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timeoutmgr.cli import output
from timeoutmgr.cli.exits import Exit
from timeoutmgr.cli.letters import (
    Chosen,
    choosing,
    letter_document,
    opened_letters,
    print_letters,
    progress_of,
)
from timeoutmgr.cli.options import Command, common, option
from timeoutmgr.cli.shared import Shared


def add_commands(
    group: click.Group, in_queue: Callable[[Any], Any], *, journal: bool, examples: dict[str, str]
) -> None:
    """Add list, show, delete and export to *group*; *examples* are the help's, by command."""
    within = str(group.name)

    @group.command("list", cls=Command, within=within, help=examples["list"])
    @in_queue
    @choosing
    @option("--id", "ids", multiple=True, help="The message of this id; many times.")
    @option("--groups", is_flag=True, help="Only how many there are of each class and reason.")
    @option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most.")
    @common(environment=False)
    @click.pass_obj
    def list_letters(
        shared: Shared, /, queue_name: str, groups: bool, limit: int, **which: Any
    ) -> None:
        chosen = chosen_by(which)
        with opened_letters(shared, queue_name, journal=journal) as opened:
            grouped = [
                group
                for each in chosen.filters(opened.queue)
                for group in opened.queue.groups(each)
            ]
            letters = [] if groups else list(chosen.letters(opened.queue, limit))
        total = sum(group.count for group in grouped)
        document: dict[str, Any] = {
            "total": total,
            "groups": [
                {
                    "class": _name(group.message_class),
                    "reason": group.reason,
                    "count": group.count,
                    "oldest": output.shown_time(group.oldest),
                    "newest": output.shown_time(group.newest),
                }
                for group in grouped
            ],
        }
        if not groups:
            document["letters"] = [letter_document(letter) for letter in letters]

        def for_people() -> None:
            if grouped:
                output.print_table(
                    ["count", "class", "oldest", "reason"],
                    [
                        (one["count"], one["class"], one["oldest"], one["reason"][:100])
                        for one in document["groups"]
                    ],
                )
            if letters:
                click.echo()
                print_letters(letters)
            shown = "" if groups or len(letters) == total else f", {len(letters)} shown (--limit)"
            click.echo(f"{total} in the queue{shown}" if total else "empty")

        shared.show(document, for_people)

    @group.command("show", cls=Command, within=within, help=examples["show"])
    @click.argument("message_id", metavar="ID")
    @in_queue
    @option("--body", is_flag=True, help="Show the body too: as text, or base64 if it is none.")
    @common(environment=False)
    @click.pass_obj
    def show_letter(shared: Shared, message_id: str, queue_name: str, body: bool) -> Exit:
        with opened_letters(shared, queue_name, journal=journal) as opened:
            found = list(Chosen(ids=(message_id,)).letters(opened.queue, None))
        documents = [letter_document(letter, whole=True) for letter in found]
        for letter, document in zip(found, documents, strict=True):
            if not body:
                del document["body_base64"]
                continue
            try:
                document["body"] = letter.message.body.decode()
                del document["body_base64"]
            except UnicodeDecodeError:
                continue

        def for_people() -> None:
            for document in documents:
                told = document.pop("headers")
                output.print_pairs(list(document.items()))
                for name, value in told.items():
                    click.echo(f"  {output.plain(name)}: {output.plain(value)}")
            if not documents:
                click.echo(f"no message {output.plain(message_id)} is there")

        shared.show({"letters": documents}, for_people)
        return Exit.OK if found else Exit.NOT_FOUND

    @group.command("delete", cls=Command, within=within, help=examples["delete"])
    @in_queue
    @choosing
    @option("--id", "ids", multiple=True, help="The message of this id; many times.")
    @option("--all", "everything", is_flag=True, help="All that are there.")
    @option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first.")
    @option("--dry-run", is_flag=True, help="Only say what would be done.")
    @common(environment=False)
    @click.pass_obj
    def delete_letters(
        shared: Shared,
        /,
        queue_name: str,
        everything: bool,
        limit: int | None,
        dry_run: bool,
        **which: Any,
    ) -> Exit:
        chosen = require_choice(chosen_by(which), everything, limit, dry_run)
        deleted = total = 0
        with opened_letters(shared, queue_name, journal=journal) as opened:
            count = chosen.count(opened.queue)
            with progress_of(shared, "deleting", count) as step:
                for letter in chosen.letters(opened.queue, limit):
                    total += 1
                    if not dry_run:
                        deleted += opened.queue.delete([letter])
                    step()
        document = {"chosen": total, "deleted": deleted, "dry_run": dry_run}
        verb = f"{total} would be deleted" if dry_run else f"{deleted} deleted"
        shared.show(document, lambda: click.echo(verb))
        return Exit.OK if total else Exit.NOT_FOUND

    @group.command("export", cls=Command, within=within, help=examples["export"])
    @in_queue
    @choosing
    @option("--id", "ids", multiple=True, help="The message of this id; many times.")
    @option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first.")
    @option(
        "--output",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The file to write; without it, standard output.",
    )
    @common(environment=False)
    @click.pass_obj
    def export_letters(
        shared: Shared, /, queue_name: str, limit: int | None, path: Path | None, **which: Any
    ) -> Exit:
        chosen = chosen_by(which)
        count = 0
        to = str(path) if path is not None else "-"
        with (
            opened_letters(shared, queue_name, journal=journal) as opened,
            # Once there is something to read from: it empties a file that is there.
            click.open_file(to, "w", encoding="utf-8") as target,
        ):
            for letter in chosen.letters(opened.queue, limit):
                target.write(json.dumps(letter_document(letter, whole=True)) + "\n")
                count += 1
        if path is not None:
            shared.show(
                {"exported": count, "file": str(path)},
                lambda: click.echo(f"{count} exported to {path}"),
            )
        return Exit.OK if count else Exit.NOT_FOUND


def require_choice(chosen: Chosen, everything: bool, limit: int | None, dry_run: bool) -> Chosen:
    """Return *chosen*; raise UsageError where nothing, or two things, were said."""
    if everything and chosen.says_something:
        raise click.UsageError("--all and a choice (--id, --class, …) exclude each other")
    if not (everything or chosen.says_something or limit or dry_run):
        raise click.UsageError(
            "say which: --all, --id, --class, --destination, --older-than or --limit; or look "
            "first with --dry-run"
        )
    return chosen


def chosen_by(which: dict[str, Any]) -> Chosen:
    """Return the choice that the options of a command make."""
    older: timedelta | None = which.pop("older_than")
    newer: timedelta | None = which.pop("newer_than")
    return Chosen(older=older, newer=newer, **which)


def _name(message_class: int) -> str:
    from timeoutmgr.deadletter.classes import MessageClass

    known = {each.value: each.name for each in MessageClass}
    return known.get(message_class, f"{message_class:#06x}")
