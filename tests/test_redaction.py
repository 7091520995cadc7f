"""Nothing secret is left in a URL that is shown."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from timeoutmgr.cli.output import MaskingFormatter, text_formatter
from timeoutmgr.contracts.reports import Finding, Level
from timeoutmgr.message.redaction import (
    LONGEST_LINE,
    LONGEST_TEXT,
    cut_line,
    masked,
    on_one_line,
    redact,
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://guest:guest@localhost//", "amqp://guest:***@localhost//"),
        ("amqp://guest@localhost//", "amqp://guest@localhost//"),
        ("redis://:s3cret@host:6379/0", "redis://:***@host:6379/0"),
        ("postgresql+psycopg://u:p%40ss@h/d", "postgresql+psycopg://u:***@h/d"),
        ("amqp://u:p@ss@h/v", "amqp://u:***@h/v"),
        ("amqp://a:one@h1;amqp://b:two@h2", "amqp://a:***@h1;amqp://b:***@h2"),
        ("postgresql://h/d?user=u&password=p", "postgresql://h/d?user=u&password=***"),
        ("postgresql://h/d?sslpassword=p&sslmode=x", "postgresql://h/d?sslpassword=***&sslmode=x"),
        ("x://h/?PASSWD=a&access_token=b&c=d", "x://h/?PASSWD=***&access_token=***&c=d"),
        ("x://h/?client_secret=a#f", "x://h/?client_secret=***#f"),
        ("sqs://h/?key=AKIA&aws-api-key=z", "sqs://h/?key=***&aws-api-key=***"),
        ("amqp://u:p/a?s#s@h/v", "amqp://u:***@h/v"),
        ("amqp://u:p//w@h:5672/v", "amqp://u:***@h:5672/v"),
        ("amqp://u:a/b@h1;amqp://b:c?d@h2", "amqp://u:***@h1;amqp://b:***@h2"),
        ("at amqp://h:5672/v says b@c", "at amqp://h:5672/v says b@c"),
        ("sqlite:///timeoutmgr.db", "sqlite:///timeoutmgr.db"),
        ("memory://", "memory://"),
        ("not a url", "not a url"),
        ("", ""),
    ],
)
def test_passwords_and_secret_parameters_are_masked(url: str, shown: str) -> None:
    assert redact(url) == shown


HALVES = ("c4n4ry", "s3cret")
FORMS = [
    "postgresql+psycopg://user:{}@db.example:5432/sales",
    "mysql+pymysql://user:{}@db.example/sales",
    "amqps://user:{}@mq.example:5671/v",
    "redis://:{}@r.example:6379/0",
    "sqla+postgresql://user:{}@db.example/sales",
    "sentinel://:{}@a.example:26379;sentinel://:{}@b.example:26379",
]
PRINTABLE = [chr(code) for code in range(32, 127)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sentence", ["{}", "cannot reach {}: refused", "{!r} is no URL"])
def test_no_sign_of_a_password_lets_a_part_of_it_through(form: str, sentence: str) -> None:
    formatter = MaskingFormatter("%(levelname)s %(message)s")
    leaks = []
    for sign in PRINTABLE:
        for spelt in (sign, f"%{ord(sign):02X}"):
            url = form.replace("{}", spelt.join(HALVES))
            text = sentence.format(url)
            record = logging.LogRecord("t", 40, "f", 1, "told: %s", (text,), None)
            for shown in (redact(text), masked(text), formatter.format(record)):
                if any(half in shown for half in HALVES):
                    leaks.append(shown)

    assert leaks == []


@pytest.mark.parametrize(
    "text",
    [
        "error: there is no queue 'billing@host1'; start or install the endpoint",
        "warn  paused: 'mail' is paused until a resume; by root@vm: upgrade -> resume mail",
        "paused: mail since 2030-01-01T00:00:00+00:00; by root@vm: upgrade",
        "first line\nunavailable: the queue of bob@example.com",
    ],
)
def test_a_sentence_with_an_at_sign_is_no_url(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "there is no column 'x'; leave it out with --ignore-extra, or say by --map due=COLUMN",
        "the batch is there; name another batch=NUMBER",
        "is that a question? Then set the name of its key in spark.pyspark.python=PATH",
    ],
)
def test_a_sentence_behind_a_semicolon_is_no_parameter(text: str) -> None:
    assert masked(text) == text


def test_a_secret_behind_a_semicolon_and_a_space_is_masked() -> None:
    assert masked("Server=x; Password=s3cret; Port=1") == "Server=x; Password=***; Port=1"


def test_a_log_line_about_a_name_with_an_at_sign_keeps_time_level_and_logger() -> None:
    record = logging.LogRecord("shop", 30, "f", 1, "no saga for %s", ("bob@example.com",), None)
    record.created, record.msecs = 0.0, 0.0

    line = text_formatter().format(record)

    assert line == "1970-01-01T00:00:00.000Z WARNING shop: no saga for bob@example.com"


def test_a_finding_about_an_actor_with_an_at_sign_stays_whole() -> None:
    found = Finding(level=Level.WARN, check="paused", text="by root@vm: x", remedy="resume a@b")

    assert found.line() == "warn  paused: by root@vm: x -> resume a@b"
    assert found.document()["text"] == "by root@vm: x"


@pytest.mark.parametrize("url", ["user:s3cret@host/db", "'user:s3cret@host'"])
def test_a_url_without_its_scheme_has_its_password_masked(url: str) -> None:
    assert redact(url) == url.replace("s3cret", "***")


def test_redacting_twice_changes_nothing() -> None:
    once = redact("amqp://u:p@h/v?token=t")

    assert redact(once) == once


@pytest.mark.parametrize("name", ["sslkey", "ssl_keyfile", "keyspace", "tokens_per_second"])
def test_a_masked_name_errs_on_the_side_of_hiding(name: str) -> None:
    shown = redact(f"x://h/?{name}=value")

    assert shown in (f"x://h/?{name}=value", f"x://h/?{name}=***")


def test_a_log_entry_stays_on_its_line() -> None:
    forged = on_one_line("id\n2026-01-01 CRITICAL all is lost\x1b[2J \ud800 ü")

    assert forged == "id\\n2026-01-01 CRITICAL all is lost\\x1b[2J \\ud800 ü"


SIGNS = "?&;:/@#=a"
TOKENS = [*SIGNS, *("".join(pair) for pair in itertools.permutations(SIGNS, 2))]


def cpu_seconds(do: Callable[[], object]) -> float:
    """Return the CPU time of the quickest of three runs: other work must not count."""
    elapsed = []
    for _ in range(3):
        began = time.process_time()
        do()
        elapsed.append(time.process_time() - began)
    return min(elapsed)


@pytest.mark.parametrize("token", TOKENS)
def test_masking_a_long_text_is_linear(token: str) -> None:
    text = (token * 1_000_000)[:1_000_000]
    quarter = text[:250_000]

    # Quadratic would be 16 times as long; a busy machine is half as fast now and then.
    assert cpu_seconds(lambda: redact(text)) < 10 * cpu_seconds(lambda: redact(quarter))


@pytest.mark.parametrize("token", [*SIGNS, "\n", "\ud800", "é"])
def test_a_long_text_for_the_log_costs_as_much_as_a_short_text(token: str) -> None:
    long, short = token * 1_000_000, token * 10_000

    assert cpu_seconds(lambda: on_one_line(long)) < 10 * cpu_seconds(lambda: on_one_line(short))


def test_the_text_of_an_error_is_cut_for_the_log() -> None:
    assert len(on_one_line("a" * 100_000)) == LONGEST_TEXT
    assert on_one_line("\n" * 100_000) == "\\n" * 511 + "\\…"
    assert on_one_line("a" * LONGEST_TEXT) == "a" * LONGEST_TEXT


@pytest.mark.parametrize("sign", ["a", "é", "\N{PILE OF POO}"])
def test_a_line_of_the_log_is_cut_to_four_kibibytes(sign: str) -> None:
    shown = cut_line(sign * 5000)

    assert LONGEST_LINE - 4 < len(shown.encode()) <= LONGEST_LINE
    assert shown == sign * (len(shown) - 1) + "…"
    assert cut_line("short") == "short"


def test_a_secret_that_a_cut_would_split_is_masked_first() -> None:
    record = logging.LogRecord("t", 40, "f", 1, "x" * 4070 + " amqp://u:s3cret@h/v", None, None)

    assert "s3" not in MaskingFormatter("%(message)s").format(record)


def test_a_parameter_in_a_second_query_is_masked() -> None:
    assert redact("x://h/?a?password=p") == "x://h/?a?password=***"


def test_the_value_of_a_parameter_with_an_endless_name_is_masked() -> None:
    assert redact(f"x://h/?{'n' * 65}=p") == f"x://h/?{'n' * 65}=***"


def test_a_text_is_escaped_without_a_file_descriptor() -> None:
    # In a process of its own: codecs that were used before need no file.
    program = """
import resource
from timeoutmgr.message.redaction import on_one_line
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
print(on_one_line("no\\nfile"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "no\\nfile\n", done.stderr
