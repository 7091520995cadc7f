"""``timeoutmgr journal``: copies of what was delivered."""

import click

from timeoutmgr.cli.letter_commands import add_commands
from timeoutmgr.cli.options import option, with_examples

_HELP = """
    Look after the journals of the endpoint's node.

    Examples:
      timeoutmgr journal list
      timeoutmgr journal delete --older-than 7d
    """

_EXAMPLES = {
    "list": """
    List journal copies, the oldest first.

    Examples:
      timeoutmgr journal list --newer-than 1h
      timeoutmgr journal list --queue billing
    """,
    "show": """
    Show the journal copies of message ID, whole.

    Examples:
      timeoutmgr journal show 6f1c0c9e-0a4e-4c39-8f5e-3f6f2b1f7d11 --body
    """,
    "delete": """
    Delete journal copies for good.

    Examples:
      timeoutmgr journal delete --older-than 7d
      timeoutmgr journal delete --all --dry-run
    """,
    "export": """
    Write journal copies as JSON, one a line, with headers and body (base64). They stay.

    Examples:
      timeoutmgr journal export --output journal.jsonl
    """,
}


@click.group("journal", help=with_examples(_HELP))
def journal() -> None:
    """Hold the commands."""


add_commands(
    journal,
    option(
        "--queue",
        "queue_name",
        metavar="NAME",
        help="The queue whose journal is meant; without it, the node's own.",
        default="",
    ),
    journal=True,
    examples=_EXAMPLES,
)
