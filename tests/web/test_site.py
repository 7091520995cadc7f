"""The pages: what each shows on real stores, what it changes, and what it says without a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import STORES
from tests.web.site import HOUR, Site, fail, fill, pending, waiting
from timeoutmgr import Endpoint, EndpointConfiguration, ToSend
from timeoutmgr.contracts import CancelResult, Count, TimeoutFilter, TimeoutState
from timeoutmgr.contracts.audit import AuditRecord
from timeoutmgr.message import headers
from timeoutmgr.message.instants import Micros
from timeoutmgr.message.message import Message, Outgoing
from timeoutmgr.message.routes import timeout_id
from timeoutmgr.web import source

SCRIPT = "<script>document.title = 'run'</script>"
NEW_YEAR_2090: Micros = 3_786_912_000_000_000
PAGES = (
    *("/", "/load", "/pending", "/late", "/errors", "/dead-letters", "/processes"),
    *("/runs", "/pauses"),
)


def now_of(endpoint: Endpoint) -> Micros:
    """The time of the endpoint's store."""
    return endpoint.timeouts.now()


def audit_of(endpoint: Endpoint) -> Sequence[AuditRecord]:
    """The rows of the audit."""
    return endpoint.timeouts.audit()


def ids(text: str) -> list[str]:
    """The timeouts that a page links to, in order."""
    return re.findall(r'class="id" href="[^"]*/timeouts/([^"]+)"', text)


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of database."""
    found: str = request.param
    return found


def test_the_pages_show_what_the_store_holds(
    endpoint_of: Callable[[str], Endpoint], kind: str
) -> None:
    endpoint = endpoint_of(kind)
    now = now_of(endpoint)
    fill(endpoint, [pending(f"late{n}", now - HOUR) for n in range(2)])
    fill(endpoint, [pending(f"soon{n}", now + HOUR, saga=f"s{n}") for n in range(3)])
    fill(endpoint, [pending("other", now + 2 * HOUR, destination="mail")])
    fail(endpoint, 2, reason="broken")
    with Site(endpoint) as site:
        overview = site.get("/")
        listed = site.get("/pending")
        by_saga = site.get("/pending?saga=s1")
        by_prefix = site.get("/pending?id=soon")
        late = site.get("/late")
        load = site.get("/load?span=day")
        errors = site.get("/errors")

    assert re.findall(r"<span>(Pending|Overdue)</span><strong>(\d+)</strong>", overview) == [
        ("Pending", "6"),
        ("Overdue", "2"),
    ]
    assert ids(listed) == ["late0", "late1", "soon0", "soon1", "soon2", "other"]
    assert ids(by_saga) == ["s1".replace("s", "soon")]
    assert ids(by_prefix) == ["soon0", "soon1", "soon2"]
    assert ids(late) == ["late0", "late1"]
    assert "<strong>4</strong> timeouts from" in load
    assert "KeyError" in errors
    assert "<strong>2</strong> messages" in errors


def test_the_overview_says_that_it_groups_the_earliest_timeouts(
    endpoint_of: Callable[[str], Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_GROUPED", 2)
    endpoint = endpoint_of("sqlite")
    due = now_of(endpoint) + HOUR
    with Site(endpoint) as site:
        fill(endpoint, [pending(f"t{n}", due) for n in range(2)])
        whole = site.get("/")
    with Site(endpoint) as site:
        fill(endpoint, [pending("t2", due)])
        cut = site.get("/")

    assert "<h2>Pending by destination</h2>" in whole
    assert "<h2>The earliest 2 by destination</h2>" in cut


def test_a_selection_of_the_histogram_is_a_filter_of_the_list(
    site: Site, endpoint: Endpoint
) -> None:
    now = now_of(endpoint)
    fill(endpoint, [pending(f"t{n}", now + n * HOUR) for n in range(1, 5)])

    (first, *_rest) = re.findall(r'href="(/pending\?due_from=[^"]+)"', site.get("/load"))
    listed = site.get(first.replace("&amp;", "&"))

    assert ids(listed) == ["t1"]


def test_a_long_list_goes_on_at_the_next_page(site: Site, endpoint: Endpoint) -> None:
    now = now_of(endpoint)
    fill(endpoint, [pending(f"t{n:03}", now + HOUR + n) for n in range(120)])
    page, found = "/pending?destination=billing", []
    while page:
        text = site.get(page)
        found += ids(text)
        following = re.findall(r'href="([^"]+after=[^"]+)"', text)
        page = following[0].replace("&amp;", "&") if following else ""

    assert found == [f"t{n:03}" for n in range(120)]


def test_a_list_that_is_kept_for_later_holds_no_bodies(endpoint: Endpoint) -> None:
    now = now_of(endpoint)
    fill(endpoint, [pending("t1", now + HOUR, body=b"large"), pending("t2", now, body=b"large")])
    read = source.EndpointSource(endpoint)

    kept = repr([read.pending(TimeoutFilter(), None), read.late()])

    assert "t1" in kept
    assert "large" not in kept


@pytest.mark.parametrize(
    "query",
    ["due_from=yesterday", "after=nowhere", "after=1"],
)
def test_an_input_that_cannot_be_read_is_named(site: Site, query: str) -> None:
    assert "expected" in site.get(f"/pending?{query}", 400)


def test_an_unknown_span_is_named(site: Site) -> None:
    assert "not a span" in site.get("/load?span=aeon", 400)


def test_a_histogram_shows_the_age_of_background_counts_and_days_of_a_zone(
    site: Site, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeoutmgr.persistence.sql.insight.LOOKED_AT", 1)
    monkeypatch.setattr("timeoutmgr.persistence.sql.searches.FIRST", 1)
    now = now_of(endpoint)
    fill(endpoint, [pending(f"t{n}", now + n * HOUR) for n in range(1, 9)])
    first = site.get("/load?span=month&zone=Asia/Kathmandu")
    store: Any = endpoint.parts.features.store
    while store.run_maintenance():
        pass
    later = site.get("/load?span=year&zone=Asia/Kathmandu")

    assert "<strong>8</strong>" not in first
    assert "counts back to" not in first
    assert "<strong>8</strong> timeouts from" in later
    assert re.search(r"As of [^<]+ UTC; counts back to [^<]+ UTC", later)
    assert re.search(r"from \S+ 00:00:00 \+0545 to \S+ 00:00:00 \+0545", later)
    assert "is no time zone here" in site.get("/load?zone=Nowhere", 400)


# --- one timeout ------------------------------------------------------------------------------


def test_a_timeout_is_shown_moved_sent_and_cancelled(
    endpoint_of: Callable[[str], Endpoint], kind: str
) -> None:
    endpoint = endpoint_of(kind)
    fill(endpoint, [pending("t1", now_of(endpoint) + HOUR, saga="s", given={"tenant": "acme"})])
    page = "/timeouts/t1"
    with Site(endpoint) as site:
        first = site.get(page)
        moved = site.post(page, f"{page}/reschedule", at="2090-01-02T03:04")
        due = endpoint.timeouts.show("t1")
        both = site.post(page, f"{page}/reschedule", at="2090-01-02T03:04", delay="5m")
        sent = site.post(page, f"{page}/send-now")
        cancelled = site.post(page, f"{page}/cancel")
        after = site.get(page)
        unknown = site.get("/timeouts/none", 404)

    for text in ("acme", "PaymentOverdue", "Pending", "{&#34;n&#34;: 1}"):
        assert text in first
    assert "Moved." in moved.text
    assert due is not None
    assert due[1] is not None
    assert due[1].due == 3787009440_000_000
    assert "either a time or a delay" in both.text
    assert "Moved." in sent.text
    assert "Cancelled" in cancelled.text
    assert endpoint.timeouts.show("t1") == (TimeoutState.CANCELLED, None)
    assert "by web: ann" in after
    assert [(row.action, row.actor, row.role, row.channel) for row in audit_of(endpoint)] == [
        ("reschedule", "ann", "admin", "web"),
        ("send-now", "ann", "admin", "web"),
        ("cancel", "ann", "admin", "web"),
    ]
    assert "does not know this id" in unknown


def test_an_id_with_a_slash_has_a_page_and_actions(site: Site, endpoint: Endpoint) -> None:
    fill(endpoint, [pending("order/7 a?b", now_of(endpoint) + HOUR)])
    (link,) = ids(site.get("/pending"))

    answer = site.post(f"/timeouts/{link}", f"/timeouts/{link}/cancel")

    assert answer.status_code == 200
    assert "Cancelled" in answer.text
    assert endpoint.timeouts.count() == 0


@pytest.mark.parametrize("query", ["id=+t", "saga=s+", "destination=q+", "due_from=2090-01-01+"])
def test_a_list_keeps_outer_spaces_of_texts_and_drops_those_of_times(
    site: Site, endpoint: Endpoint, query: str
) -> None:
    due = NEW_YEAR_2090
    fill(endpoint, [pending("t", due - HOUR, saga="s", destination="q")])
    fill(endpoint, [pending(" t", due, saga="s ", destination="q ")])

    assert ids(site.get(f"/pending?{query}")) == ["%20t"]
    assert "q </a></dd>" in site.get("/timeouts?id=+t")


def test_a_second_cancel_says_that_it_is_too_late_or_done(site: Site, endpoint: Endpoint) -> None:
    fill(endpoint, [pending(f"t{n}", now_of(endpoint) + HOUR) for n in range(2)])
    assert endpoint.timeouts.cancel("t1") is CancelResult.CANCELLED

    answer = site.post("/timeouts/t0", "/timeouts/t1/cancel")

    assert "Cancelled" in answer.text


def test_a_closed_timeout_is_found_by_the_id_of_its_message(site: Site, endpoint: Endpoint) -> None:
    due = now_of(endpoint) + HOUR
    sent = timeout_id(endpoint.name, "m-1")
    fill(endpoint, [replace(pending(sent, due), message=Message(id="m-1"))])
    endpoint.timeouts.cancel(sent)

    found = site.get("/timeouts?id=m-1")

    assert f'<span class="id">{sent}</span>' in found
    assert "Cancelled" in found
    assert "does not know" in site.get("/timeouts?id=a/b%20c", 404)


# --- errors -----------------------------------------------------------------------------------


def test_a_group_is_retried_some_first_and_then_all(site: Site, endpoint: Endpoint) -> None:
    fail(endpoint, 12, reason="broken")
    fail(endpoint, 1, reason="other", exception="ValueError")
    group = {"exception": "KeyError", "type": "PaymentOverdue"}

    some = site.post("/errors", "/errors/retry", **group, limit="10")
    after_some = waiting(endpoint, endpoint.name)
    every = site.post("/errors", "/errors/retry", **group, expected="2")

    assert "10 retried." in some.text
    assert after_some == 10
    assert "2 retried." in every.text
    assert waiting(endpoint, endpoint.parts.settings.error_queue) == 1
    assert [(row.outcome, row.changed, row.actor) for row in audit_of(endpoint)] == [
        *(("started", None, "ann"), ("done", 10, "ann")),
        *(("started", None, "ann"), ("done", 2, "ann")),
    ]
    assert {row.action for row in audit_of(endpoint)} == {"retry-failed"}
    assert '"exception":"KeyError"' in audit_of(endpoint)[0].selection


@pytest.mark.parametrize("shown", ["ValueError", "Unknown exception"])
def test_the_forms_of_a_group_without_a_type_or_an_exception_change_no_other_group(
    site: Site, endpoint: Endpoint, shown: str
) -> None:
    settings = endpoint.parts.settings
    fail(endpoint, 2, reason="broken", exception="ValueError")
    without = {headers.EXCEPTION_TYPE: "ValueError" if shown == "ValueError" else ""}
    with closing(settings.transport.session()) as session:
        session.send([Outgoing(settings.error_queue, Message(id="of no type", headers=without))])
    forms = [one for one in site.get("/errors").split("<article")[1:] if "no type" in one]
    given = dict(re.findall(r'name="(exception|type|expected)" value="([^"]*)"', forms[0]))

    group = site.get(f"/errors?exception={given['exception']}&type={given['type']}")
    answer = site.post("/errors", "/errors/delete", **given)

    assert shown in forms[0]
    assert f"<h1>Errors: {shown}</h1>" in group
    assert "1 deleted." in answer.text
    assert "does not hold" in site.get("/errors/message?id=of%20no%20type", 404)
    assert waiting(endpoint, settings.error_queue) == 2


def test_more_than_a_hundred_messages_need_their_number(site: Site, endpoint: Endpoint) -> None:
    fail(endpoint, 101, reason="broken")
    queue = endpoint.parts.settings.error_queue

    refused = site.post("/errors", "/errors/delete", expected="101")
    wrong = site.post("/errors", "/errors/delete", expected="101", typed="100")
    left = waiting(endpoint, queue)
    done = site.post("/errors", "/errors/delete", expected="101", typed="101")

    assert "type the number 101" in refused.text
    assert "type the number 101" in wrong.text
    assert left == 101
    assert "101 deleted." in done.text
    assert waiting(endpoint, queue) == 0


@pytest.mark.parametrize("expected", [{}, {"expected": "-5"}, {"expected": "0"}])
def test_a_form_without_the_number_of_messages_changes_nothing(
    site: Site, endpoint: Endpoint, expected: dict[str, str]
) -> None:
    fail(endpoint, 3, reason="broken")

    refused = site.post("/errors", "/errors/delete", **expected)

    assert "the number" in refused.text
    assert waiting(endpoint, endpoint.parts.settings.error_queue) == 3


def test_a_form_changes_no_more_messages_than_its_page_showed(
    site: Site, endpoint: Endpoint
) -> None:
    fail(endpoint, 3, reason="broken")

    assert "2 deleted." in site.post("/errors", "/errors/delete", expected="2").text


@pytest.mark.parametrize("kind", STORES)
def test_a_long_queue_is_counted_up_to_a_bound(
    endpoint_of: Callable[[str], Endpoint], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MOST_COUNTED", 5)
    endpoint = endpoint_of(kind)
    fail(endpoint, 9, reason="broken")
    error_queue = endpoint.parts.settings.error_queue
    endpoint.send_many(ToSend(endpoint.name, "Ping", {}) for _ in range(4))

    found = source.EndpointSource(endpoint).queues()
    with Site(endpoint) as site:
        page = site.get("/")

    assert found[error_queue] == Count(5, exact=False)
    assert found[endpoint.name] == Count(4)
    assert f'{error_queue}</td><td class="right">≥ 5<' in page


def test_a_failed_message_shows_its_traceback(site: Site, endpoint: Endpoint) -> None:
    fail(endpoint, 1, reason="'customer'")

    text = site.get("/errors/message?id=KeyError-0")

    assert "Traceback (most recent call last)" in text
    assert "does not hold" in site.get("/errors/message?id=none", 404)


@pytest.mark.parametrize("action", ["retry", "delete"])
def test_the_form_of_an_id_with_an_outer_space_changes_its_own_message(
    site: Site, endpoint: Endpoint, action: str
) -> None:
    fail(endpoint, 1, reason="broken")
    fail(endpoint, 1, reason="broken", exception=" KeyError")
    page = site.get("/errors/message?id=+KeyError-0")
    (given,) = set(re.findall(r'name="id" value="([^"]*)"', page))

    site.post("/errors", f"/errors/{action}", id=given, limit="1")

    assert "does not hold" in site.get("/errors/message?id=+KeyError-0", 404)
    assert "Traceback" in site.get("/errors/message?id=KeyError-0")


# --- texts of strangers -----------------------------------------------------------------------


def test_texts_of_strangers_are_escaped_everywhere(site: Site, endpoint: Endpoint) -> None:
    now = now_of(endpoint)
    made = pending("t1", now - HOUR, saga=SCRIPT, destination=f"q{SCRIPT}", given={SCRIPT: SCRIPT})
    fill(endpoint, [made])
    fail(endpoint, 1, reason=SCRIPT, exception=SCRIPT)

    texts = [site.get(path) for path in (*PAGES, "/timeouts/t1", f"/pending?saga={SCRIPT}")]
    texts.append(site.get(f"/errors/message?id={SCRIPT}-0"))

    assert any("&lt;script&gt;" in text for text in texts)
    for text in texts:
        assert "<script>" not in text


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/load?start=9999-12-31&span=year", "beyond the years 1 to 9999"),
        ("/load?start=9999-12-31&span=month&zone=Europe/Berlin", "beyond the years 1 to 9999"),
        ("/load?start=0001-01-01T00:00%2B23:00", "outside of the years 1 to 9999"),
        ("/pending?due_before=9999-12-31T23:59-23:00", "outside of the years 1 to 9999"),
        ("/pending?due_from=2030-01-02&due_before=2030-01-01", "due_from is before due_before"),
        ("/load?destination=%00", "has NUL"),
        ("/pending?saga=%00", "has NUL"),
        (f"/pending?after={'9' * 30}/x", "is not a cursor"),
        ("/pending?after=1/%00", "has NUL"),
        ("/timeouts/%00", "has NUL"),
        ("/runs/%00", "has NUL"),
        ("/audit?run=%00", "has NUL"),
        ("/regions/run?run=%00", "has NUL"),
    ],
)
def test_an_address_that_no_store_can_answer_is_refused_with_a_sentence(
    site: Site, path: str, complaint: str
) -> None:
    assert complaint in site.get(path, 400)


@pytest.mark.parametrize(
    ("shown", "refused"), [("0001-01-02", "0001-01-01"), ("9998-12-29", "9998-12-31")]
)
def test_windows_end_a_day_before_the_calendar_does(site: Site, shown: str, refused: str) -> None:
    for zone in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
        assert "timeouts from" in site.get(f"/load?span=year&zone={zone}&start={shown}")
        assert "beyond" in site.get(f"/load?span=year&zone={zone}&start={refused}", 400)


def test_a_region_beyond_the_calendar_has_no_numbers(site: Site) -> None:
    assert "Not read yet" in site.get("/regions/load?start=9999-12-31&span=year")


@pytest.mark.parametrize(
    ("form", "fields", "complaint", "status"),
    [
        ("/pauses/pause", {"destination": "q", "reason": "\0"}, "has NUL", 400),
        ("/pauses/pause", {"reason": "r", "at": "9999-12-31T23:59-23:00"}, "years 1 to 9999", 200),
        ("/runs/%00/apply", {"reason": "r"}, "has NUL", 400),
        ("/timeouts/%00/cancel", {}, "has NUL", 400),
    ],
)
def test_a_form_that_no_store_can_answer_is_refused_with_a_sentence(
    site: Site, form: str, fields: dict[str, str], complaint: str, status: int
) -> None:
    answer = site.post("/pauses", form, **fields)

    assert (answer.status_code, complaint in answer.text) == (status, True)


# --- without data, without a store ------------------------------------------------------------


def test_each_empty_page_says_what_to_do(site: Site) -> None:
    said = {
        "/pending": "timeoutmgr send",
        "/late": "Nothing is overdue",
        "/errors": "is empty",
        "/dead-letters": "dead-letter-queues",
        "/processes": "timeoutmgr run",
        "/runs": "No run yet",
        "/pauses": "Nothing is paused",
        "/audit": "Nothing was changed yet",
    }

    for path, text in said.items():
        assert text in site.get(path), path


def test_before_the_installation_each_page_names_the_command(tmp_path: Path, unique: str) -> None:
    from tests.web.site import configuration

    file = tmp_path / "none.db"
    endpoint = Endpoint(configuration(unique, f"sqlite:///{file}"))
    with Site(endpoint) as site:
        texts = [site.get(path) for path in PAGES if path != "/dead-letters"]
        texts.append(site.get("/timeouts/t1"))
    endpoint.close()

    for text in texts:
        assert "timeoutmgr install" in text
    assert not file.exists()


def test_an_endpoint_without_a_store_says_why_there_are_no_numbers(
    sqlite_url: str, unique: str
) -> None:
    config = EndpointConfiguration(unique)
    config.use_transport(sqlite_url)
    endpoint = Endpoint(config)
    endpoint.install()
    with Site(endpoint) as site:
        text = site.get("/")
    endpoint.close()

    assert "keeps no timeouts that can be listed" in text
    assert unique in text


def test_numbers_stay_with_their_age_while_the_store_is_away(
    private_server: Callable[..., Any], tmp_path: Path, unique: str
) -> None:
    from tests.web.site import configuration

    server = private_server("postgres")
    server.start()
    queues = f"sqlite:///{tmp_path / 'queues.db'}"
    endpoint = Endpoint(configuration(unique, server.url, queues))
    endpoint.install()
    fill(endpoint, [pending("t1", now_of(endpoint) + HOUR)])
    with Site(endpoint) as site:
        before = {path: site.get(path) for path in ("/", "/pending", "/load")}
        server.stop()
        site.app.state.readings.forget()
        away = {path: site.get(path) for path in before}
        server.start()
        site.app.state.readings.forget()
        back = site.get("/pending")
    endpoint.close()

    for path, text in away.items():
        assert "The store does not answer." in text, path
        assert "The numbers below are from" in text, path
    assert ids(away["/pending"]) == ids(before["/pending"]) == ids(back) == ["t1"]
    assert "does not answer" not in back
