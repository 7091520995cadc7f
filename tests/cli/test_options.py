"""Parsing, help, errors and printing: tests without a process of their own."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from freezegun import freeze_time

from tests.cli.commands import COMMANDS
from timeoutmgr import errors
from timeoutmgr.cli import output
from timeoutmgr.cli.bulk_runs import Delta
from timeoutmgr.cli.exits import Exit, exit_of
from timeoutmgr.cli.main import cli
from timeoutmgr.cli.options import Duration, Instant, Pair
from timeoutmgr.cli.output import MaskingFormatter


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    return CliRunner()


@pytest.mark.parametrize("frozen", ["2024-02-29T23:59:59", "2030-06-15"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-31T09:00:00Z", datetime(2030, 1, 31, 9, tzinfo=UTC)),
        ("2030-01-31T09:00Z", datetime(2030, 1, 31, 9, tzinfo=UTC)),
        ("2030-01-31T10:00:00+01:00", datetime(2030, 1, 31, 9, tzinfo=UTC)),
        ("2030-01-31T09:00:00.123456Z", datetime(2030, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)),
        ("1969-12-31T00:00Z", datetime(1969, 12, 31, tzinfo=UTC)),
    ],
)
def test_a_time_means_the_same_whenever_it_is_read(
    text: str, expected: datetime, frozen: str
) -> None:
    with freeze_time(frozen):
        assert Instant().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["2030-01-31T09:00:00", "2030-01-31"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="has no time zone; add Z for UTC"):
        Instant().convert(text, None, None)


@pytest.mark.parametrize("text", ["", "soon", "2030-02-30T00:00Z", "10000-01-01T00:00Z"])
def test_a_text_that_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected ISO 8601"):
        Instant().convert(text, None, None)


def test_durations_and_headers_are_read() -> None:
    assert Duration().convert("1h30m", None, None) == timedelta(minutes=90)
    assert Pair().convert("a=b=c", None, None) == ("a", "b=c")
    assert Pair().convert("a=", None, None) == ("a", "")
    with pytest.raises(click.BadParameter, match="expected seconds, or text"):
        Duration().convert("soon", None, None)
    with pytest.raises(click.BadParameter, match="expected NAME=VALUE"):
        Pair().convert("=b", None, None)


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--watch", "--every", "-1"],
        ["status", "--max-overdue", "-5"],
        ["top", "--every", "-1"],
        ["restored", "--at", "2030-01-31T09:00Z", "--overdue", "-5", "--reason", "x"],
        ["deadletters", "delete", "--older-than", "-1", "--dry-run"],
        ["change", "spread", "A", "--over", "-1", "--reason", "x"],
        ["send", "billing", "T", "{}", "--delay", "-5"],
    ],
)
def test_a_negative_duration_is_a_usage_error(runner: CliRunner, words: list[str]) -> None:
    said = runner.invoke(cli, words)

    assert said.exit_code == 2
    assert "a duration is never negative, got '-" in said.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--watch", "--every", "0"],
        ["top", "--every", "0s"],
        ["status", "--watch", "--every", "200000d"],
    ],
)
def test_an_interval_is_longer_than_nothing_and_at_most_a_year(
    runner: CliRunner, words: list[str]
) -> None:
    said = runner.invoke(cli, words)

    assert said.exit_code == 2
    assert f"an interval is over 0, up to a year, got {words[-1]!r}; such as 2s" in said.stderr


def test_a_shift_may_go_backwards() -> None:
    assert Delta().convert("-30m", None, None) == timedelta(minutes=-30)


@pytest.mark.parametrize("text", ["9999999d", "-9999999d"])
def test_a_shift_is_not_longer_than_any_calendar(runner: CliRunner, text: str) -> None:
    said = runner.invoke(cli, ["change", "shift", "--by", text, "A", "--reason", "x"])

    assert said.exit_code == 2
    assert "'9999999d' is longer than any calendar" in said.stderr


@pytest.mark.parametrize("blank", ["", "   "])
@pytest.mark.parametrize(
    "words",
    [
        ["pause", "billing"],
        ["resume", "billing"],
        ["change", "cancel", "A"],
        ["runs", "apply", "A"],
        ["restored", "--at", "2030-01-31T09:00Z"],
        ["errors", "delete"],
        ["deadletters", "delete"],
        ["journal", "delete"],
    ],
)
def test_a_blank_reason_is_refused(runner: CliRunner, words: list[str], blank: str) -> None:
    said = runner.invoke(cli, [*words, "--reason", blank])

    assert said.exit_code == 2
    assert f"{blank!r} is blank; give a text" in said.stderr


@pytest.mark.parametrize("words", [["send", "billing", "T", "{}"], ["reschedule", "A"]])
def test_delay_and_at_together_are_refused_by_their_names(
    runner: CliRunner, words: list[str]
) -> None:
    said = runner.invoke(cli, [*words, "--delay", "1d", "--at", "2030-01-31T09:00Z"])

    assert said.exit_code == 2
    assert said.stderr.endswith("error: --delay and --at exclude each other; give only one\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidMessage("x"), Exit.USAGE),
        (errors.MessageTooLarge("body", 2, 1, "limits.max_body"), Exit.USAGE),
        (errors.Unroutable("q"), Exit.NOT_FOUND),
        (errors.ConfigurationError("x"), Exit.CONFIGURATION),
        (errors.SchemaMissing("x"), Exit.CONFIGURATION),
        (errors.StorageUnavailable("x"), Exit.UNAVAILABLE),
        (errors.TransportUnavailable("x"), Exit.UNAVAILABLE),
        (errors.DeliveryUnknown("x"), Exit.UNAVAILABLE),
        (errors.DeliveryFailed("x"), Exit.FAILED),
        (errors.LeaseLost("x"), Exit.FAILED),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: Exit) -> None:
    assert exit_of(error) is code


TYPED_ONLY = {("run", "purged")}
"""Options without a twin: a variable that is left behind would remove messages at each start."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_and_every_option_an_environment_twin(
    runner: CliRunner, name: str
) -> None:
    result = runner.invoke(cli, [name, "--help"], prog_name="timeoutmgr", terminal_width=200)

    assert result.exit_code == 0
    assert "\\b" not in result.output, "click's sign for lines as they are written"
    assert f"Examples:\n    timeoutmgr {name}" in result.output.replace(
        "timeoutmgr --config sales.toml", "timeoutmgr"
    ).replace("timeoutmgr --json", "timeoutmgr")
    of_the_group = {param.name for param in cli.params}
    for param in COMMANDS[name].params:
        if (name, param.name) in TYPED_ONLY:
            assert isinstance(param, click.Option)
            assert param.envvar is None
        elif isinstance(param, click.Option) and not (param.hidden or param.name in of_the_group):
            twin = f"TIMEOUTMGR_CLI_{name}_{param.opts[0][2:]}".replace("-", "_").upper()
            assert param.envvar == twin
            assert f"env var: {twin}" in result.output


def test_the_help_names_the_exit_codes(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["--help"], prog_name="timeoutmgr")

    for code in Exit:
        assert f"\n  {code.value} " in result.output


def test_an_option_is_read_from_its_environment_variable(runner: CliRunner) -> None:
    result = runner.invoke(
        cli,
        ["list"],
        env={"TIMEOUTMGR_CLI_LIST_FROM": "yesterday", "TIMEOUTMGR_CLI_JSON": "1"},
    )

    assert result.exit_code == 2
    assert "'yesterday' is not a time" in json.loads(result.stdout)["error"]


@pytest.mark.parametrize(
    "arguments", [["--json", "reschedule", "x"], ["reschedule", "x", "--json"]]
)
def test_json_may_stand_before_or_behind_the_command(
    runner: CliRunner, arguments: list[str]
) -> None:
    result = runner.invoke(cli, arguments)

    assert result.exit_code == 2
    assert json.loads(result.stdout) == {
        "error": "give either --delay or --at",
        "kind": "UsageError",
        "exit_code": 2,
    }


def test_a_usage_error_is_one_error_line_on_standard_error(runner: CliRunner) -> None:
    result = runner.invoke(cli, ["retry"])

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("error: select messages: --all, --id")


@pytest.mark.parametrize(
    "command", [["errors", "retry"], ["errors", "delete"], ["retry"], ["errors", "list"]]
)
def test_an_id_given_as_an_argument_leads_to_the_option(
    runner: CliRunner, command: list[str]
) -> None:
    said = runner.invoke(cli, [*command, "A7"])
    other = runner.invoke(cli, ["status", "A7"])

    assert (said.exit_code, other.exit_code) == (2, 2)
    assert said.stderr.endswith("error: unexpected argument 'A7'; give an id as --id A7\n")
    assert other.stderr.endswith("error: unexpected argument 'A7'\n")


def test_an_argument_that_is_no_text_is_a_usage_error(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text('endpoint = "shop"\nfeatures = ["timeout-manager"]\n')
    assert runner.invoke(cli, ["--config", "shop.toml", "install"]).exit_code == Exit.OK

    named = runner.invoke(cli, ["--config", "shop.toml", "resume", "a\udcff"])
    words = ["pipeline", "forecast", "--destination", "a\udcff"]
    refused = runner.invoke(cli, ["--config", "shop.toml", *words])

    assert (named.exit_code, refused.exit_code) == (Exit.USAGE, Exit.USAGE)
    assert named.stderr.startswith(r"error: destination, 'a\udcff', has NUL or half a surrogate")
    assert refused.stderr.splitlines()[-1] == r"error: 'a\udcff' is not UTF-8 text"


def test_an_error_that_names_a_queue_with_an_at_sign_is_shown_whole(
    runner: CliRunner, tmp_path: Path
) -> None:
    (tmp_path / "shop.toml").write_text('endpoint = "shop"\nfeatures = ["timeout-manager"]\n')
    assert runner.invoke(cli, ["--config", "shop.toml", "install"]).exit_code == Exit.OK

    refused = runner.invoke(cli, ["--config", "shop.toml", "send", "billing@host1", "T", "{}"])

    assert refused.stderr.startswith("error: there is no queue 'billing@host1'; ")


def test_a_group_without_a_command_prints_its_help_once(runner: CliRunner) -> None:
    said = runner.invoke(cli, ["errors"])

    assert said.exit_code == 2
    assert said.stderr.startswith("Usage: ")
    assert "error: " not in said.stderr
    assert said.stderr.count("Usage: ") == 1


def test_a_command_without_an_endpoint_names_the_app_option(runner: CliRunner) -> None:
    said = runner.invoke(cli, ["list"])

    assert said.exit_code == 4
    assert "give --app MODULE:ATTRIBUTE, or set endpoint" in said.stderr


def test_an_app_that_has_no_signature_is_refused_by_name(runner: CliRunner) -> None:
    said = runner.invoke(cli, ["--app", "datetime:timedelta", "list"])

    assert said.exit_code == 4
    assert "--app datetime:timedelta is type; expected an EndpointConfiguration" in said.stderr


def test_an_unexpected_error_shows_its_traceback_without_its_secrets(
    runner: CliRunner, tmp_path: Path
) -> None:
    (tmp_path / "broken_app.py").write_text(
        "def config():\n    raise RuntimeError('no amqp://u:s3cret@h and ?token=s3cret&x=1')\n"
    )

    result = runner.invoke(cli, ["--app", "broken_app:config", "status"])

    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "s3cret" not in result.output
    assert result.stderr.splitlines()[-1] == "error: no amqp://u:***@h and ?token=***&x=1"


def test_a_handler_given_as_the_app_is_refused_by_name(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text("def handle(message, context):\n    return None\n")

    result = runner.invoke(cli, ["--app", "shop_app:handle", "status"])

    assert result.exit_code == 4
    assert "--app shop_app:handle is function; expected an EndpointConf" in result.stderr


def test_log_lines_and_their_tracebacks_have_no_secrets() -> None:
    try:
        raise RuntimeError("lost amqp://u:s3cret@h")
    except RuntimeError as error:
        info = (RuntimeError, error, error.__traceback__)
    record = logging.LogRecord("a", 40, "f", 1, "at %s", ("redis://:s3cret@h",), info)

    text = MaskingFormatter("%(asctime)s %(message)s").format(record)

    assert "at redis://:***@h" in text
    assert "Traceback" in text
    assert "s3cret" not in text


def test_control_characters_are_spelt_out_and_long_ids_are_not_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_table(["id", "type"], [("x" * 300, "a\x1b[31mb"), (None, "[red]")])

    printed = capsys.readouterr().out
    assert "x" * 300 in printed
    assert "a\\x1b[31mb" in printed
    assert "[red]" in printed


def test_a_cancel_by_labels_takes_a_single_label(runner: CliRunner) -> None:
    said = runner.invoke(cli, ["cancel", "--help"])

    assert "Label of the timeouts; only one label." in " ".join(said.stdout.split())
    assert "several times" not in said.stdout
