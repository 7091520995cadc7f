"""Passwords with any sign of ASCII, in each form of URL: no part of them is shown or logged.

Letters and digits mean nothing to a parser of URLs; ``tests/test_redaction.py`` has them too.
"""

from __future__ import annotations

import logging
import string
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import Final

import pytest
from click.testing import CliRunner

from timeoutmgr.cli.main import cli
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url

HALVES: Final = ("c4n4ry", "s3cret")
SIGNS: Final = string.punctuation + " a0"
PARTING: Final = "/?#@;:%["
"""Signs that part a URL: a sample for the commands."""
NOBODY: Final = "127.0.0.1:1"


def use_transport(url: str) -> None:
    with closing(transport_from_url(url, accept_loss=True)) as transport:
        logging.getLogger("shop").info("%s, %r", transport.describe(), transport)
        transport.check()


def use_store(url: str) -> None:
    with closing(persistence_from_url(url)) as persistence:
        assert persistence.database is not None
        logging.getLogger("shop").info("%s, %r", persistence.database.describe(), persistence)
        persistence.database.ping()


BROKERS: Final = {
    "amqp": f"amqp://user:{{}}@{NOBODY}//",
    "amqps": f"amqps://user:{{}}@{NOBODY}/v",
    "redis": f"redis://:{{}}@{NOBODY}/0",
    "rediss": f"rediss://user:{{}}@{NOBODY}/0",
    "sentinel": f"sentinel://:{{}}@{NOBODY};sentinel://:{{}}@{NOBODY}",
    "sqla": f"sqla+postgresql://user:{{}}@{NOBODY}/none",
    "sql queue": f"postgresql+psycopg://user:{{}}@{NOBODY}/none",
}
STORES: Final = {
    "postgresql": f"postgresql+psycopg://user:{{}}@{NOBODY}/none",
    "mysql": f"mysql+pymysql://user:{{}}@{NOBODY}/none",
}
USES: Final = {
    **{f"{name} as transport": (use_transport, form) for name, form in BROKERS.items()},
    **{f"{name} as store": (use_store, form) for name, form in STORES.items()},
}


def urls(form: str, signs: str) -> list[str]:
    """Return *form* with passwords that have each of *signs* in their middle, raw and quoted."""
    return [
        form.replace("{}", spelt.join(HALVES))
        for sign in signs
        for spelt in (sign, f"%{ord(sign):02X}")
    ]


def leaks(texts: list[str]) -> list[str]:
    return [text for text in texts if any(half in text for half in HALVES)]


@pytest.mark.parametrize(("use", "form"), USES.values(), ids=list(USES))
def test_errors_and_log_of_an_embedding_program_show_no_part_of_a_password(
    use: Callable[[str], None], form: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for url in urls(form, SIGNS):
            with pytest.raises(Exception, match=r"\S") as failed:
                use(url)
            shown.append("".join(traceback.format_exception(failed.value)))

    assert leaks([*shown, *caplog.text.splitlines()]) == []


@pytest.mark.parametrize("setting", ["TRANSPORT", "PERSISTENCE"])
@pytest.mark.parametrize("words", [["install"], ["--json", "list"]], ids=["install", "list"])
def test_commands_that_fail_show_no_part_of_a_password(setting: str, words: list[str]) -> None:
    shown: list[str] = []
    forms = BROKERS if setting == "TRANSPORT" else STORES
    for form in forms.values():
        for url in urls(form, PARTING):
            settings = {
                "TIMEOUTMGR_ENDPOINT": "sales",
                "TIMEOUTMGR_TRANSPORT": "amqp://guest@127.0.0.1:1//",
                "TIMEOUTMGR_PERSISTENCE": f"postgresql+psycopg://{NOBODY}/none",
                "TIMEOUTMGR_FEATURES": "timeout-manager",
                "TIMEOUTMGR_ACCEPT_LOSS": "true",
                f"TIMEOUTMGR_{setting}": url,
            }
            ended = CliRunner().invoke(cli, words, env=settings)
            assert ended.exit_code != 0
            assert ended.output
            shown.append(ended.output)

    assert leaks(shown) == []
