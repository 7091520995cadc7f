"""Nothing secret is left in a URL that is shown."""

import pytest

from timeoutmgr.redaction import on_one_line, redact


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
        ("sqlite:///timeoutmgr.db", "sqlite:///timeoutmgr.db"),
        ("memory://", "memory://"),
        ("not a url", "not a url"),
        ("", ""),
    ],
)
def test_passwords_and_secret_parameters_are_masked(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_redacting_twice_changes_nothing() -> None:
    once = redact("amqp://u:p@h/v?token=t")

    assert redact(once) == once


@pytest.mark.parametrize("name", ["sslkey", "ssl_keyfile", "keyspace", "tokens_per_second"])
def test_a_masked_name_errs_on_the_side_of_hiding(name: str) -> None:
    shown = redact(f"x://h/?{name}=value")

    assert shown in (f"x://h/?{name}=value", f"x://h/?{name}=***")


def test_what_is_logged_stays_on_its_line() -> None:
    forged = on_one_line("id\n2026-01-01 CRITICAL all is lost\x1b[2J \ud800 ü")

    assert forged == "id\\n2026-01-01 CRITICAL all is lost\\x1b[2J \\ud800 ü"
