"""Messages that are objects of a class: sent as JSON, handled as an equal object, or refused."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import a_message
from timeoutmgr import (
    Endpoint,
    EndpointConfiguration,
    HandlerContext,
    RecoverabilitySettings,
    SendOptions,
    ToSend,
)
from timeoutmgr.contracts import BrowsesQueues
from timeoutmgr.endpoint.handled_classes import read_typed
from timeoutmgr.errors import ConfigurationError, InvalidMessage, MessageRejected
from timeoutmgr.message import headers
from timeoutmgr.message.classes import BodyMismatch, message_class
from timeoutmgr.message.message import Outgoing
from timeoutmgr.message.validation import encode_body
from timeoutmgr.satellites import TimeoutManager
from timeoutmgr.testing.signals import RecordingTelemetry, Signal


class Currency(Enum):
    EUR = "eur"
    USD = "usd"


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass(frozen=True)
class Rate:
    percent: float | None
    others: tuple[Any, ...] = ()


class ModelledRate(pydantic.BaseModel):
    percent: float | None
    other: Any = None


class ConstantRate(ModelledRate):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")


@dataclass(frozen=True)
class PaymentOverdue:
    order: UUID
    due: datetime
    since: date
    lines: list[Line]
    currency: Currency = Currency.EUR
    note: str | None = None
    labels: dict[str, int] = field(default_factory=dict)
    waits: timedelta = timedelta(0)
    proof: bytes = b""


class Customer(pydantic.BaseModel):
    name: str
    born: date


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    number: int = pydantic.Field(alias="no")
    customer: Customer
    total: Decimal
    prices: dict[str, int] = {}

    @pydantic.field_validator("total")
    @classmethod
    def _positive(cls, total: Decimal) -> Decimal:
        if total < 0:
            raise ValueError(f"{total} is negative")
        return total


class Shipped(msgspec.Struct):
    message_type: ClassVar[str] = "logistics.Shipped"
    order: str


def of_wire(message: Any) -> object:
    """Return *message* as its handler gets it."""
    body, content_type = encode_body(message)
    found = message_class(type(message))
    return read_typed(a_message("m1", body), found) if content_type == "application/json" else None


zones = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(-timedelta(minutes=210))])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
prices = st.decimals(allow_nan=False, allow_infinity=False, places=3)
lines = st.builds(Line, article=texts, price=prices, count=st.integers(-(2**62), 2**62))
overdue = st.builds(
    PaymentOverdue,
    order=st.uuids(),
    due=st.datetimes(timezones=zones),
    since=st.dates(),
    lines=st.lists(lines, max_size=3),
    currency=st.sampled_from(Currency),
    note=st.none() | texts,
    labels=st.dictionaries(texts, st.integers(0, 9), max_size=3),
    waits=st.timedeltas(timedelta(days=-3000), timedelta(days=3000)),
    proof=st.binary(max_size=20),
)
invoices = st.builds(
    lambda number, name, born, total: Invoice(
        no=number, customer=Customer(name=name, born=born), total=total
    ),
    st.integers(),
    texts,
    st.dates(),
    st.decimals(0, 10**9, allow_nan=False, places=2),
)


@given(overdue | invoices)
def test_a_handler_gets_an_object_equal_to_the_sent_object(message: object) -> None:
    assert of_wire(message) == message


@dataclass
class Seen:
    """The messages of a handler."""

    messages: list[object] = field(default_factory=list)
    signal: Signal = field(default_factory=Signal)

    def handle(self, message: object, _context: HandlerContext) -> None:
        with self.signal.change():
            self.messages.append(message)

    def wait(self, count: int) -> None:
        self.signal.wait_until(lambda: len(self.messages) == count, lambda: str(self.messages))


@pytest.fixture
def config(tmp_path: Path) -> EndpointConfiguration:
    config = EndpointConfiguration("sales")
    config.use_transport(f"sqlite:///{tmp_path / 'sales.db'}")
    config.use_persistence(f"sqlite:///{tmp_path / 'sales.db'}")
    config.enable_feature(TimeoutManager())
    config.recoverability = RecoverabilitySettings(immediate=3, delayed=0)
    return config


def failed(endpoint: Endpoint) -> list[Any]:
    """Return the messages in the error queue."""
    with closing(endpoint._parts.settings.transport.session()) as session:
        assert isinstance(session, BrowsesQueues)
        return [one.message for one in session.browse("error", 10)]


LINE = Line("pen", Decimal("1.20"))


def test_each_send_takes_an_object_in_place_of_type_and_body(config: EndpointConfiguration) -> None:
    seen = Seen()
    config.add_handler(Line, seen.handle)

    @config.handler(Shipped)
    def shipped(message: Shipped, context: HandlerContext) -> None:
        context.send("sales", Line(message.order, Decimal(1)))
        context.send_local(Line(message.order, Decimal(2)), delay=0.001)
        context.reply(Line(message.order, Decimal(3)), options=SendOptions(saga_id="s"))

    with Endpoint(config) as endpoint:
        endpoint.send("sales", Shipped("A7"))
        endpoint.send_local(LINE, delay=timedelta(milliseconds=1))
        endpoint.send_many([ToSend.of("sales", LINE, SendOptions(headers={"tenant": "a"}))])
        seen.wait(5)

    answers = [Line("A7", Decimal(number)) for number in (1, 2, 3)]
    assert sorted(seen.messages, key=str) == sorted([LINE, LINE, *answers], key=str)


def test_the_message_type_is_the_plain_name_or_the_class_attribute() -> None:
    @dataclass
    class Named:
        message_type: str = "a field, as any other"

    @dataclass
    class Again(Named):
        pass

    class Sub(Shipped):
        pass

    names = [message_class(each).name for each in (Line, Shipped, Sub, Named, Again)]

    assert names == ["Line", "logistics.Shipped", "Sub", "Named", "Again"]


def test_a_body_that_does_not_fit_goes_to_the_error_queue_at_once(
    config: EndpointConfiguration, caplog: pytest.LogCaptureFixture
) -> None:
    seen, telemetry = Seen(), RecordingTelemetry()
    config.telemetry = telemetry
    config.add_handler(Line, seen.handle)
    config.add_handler(Invoice, seen.handle)
    with caplog.at_level(logging.DEBUG), Endpoint(config) as endpoint:
        endpoint.send_local("Line", {"article": "pen", "price": "secret"})
        endpoint.send_local("Invoice", {"no": 1, "total": "-4711", "secret": 1})
        telemetry.wait_for("moved_to_error", 2)
        reasons = {each.headers[headers.EXCEPTION_MESSAGE] for each in failed(endpoint)}

    assert seen.messages == []
    assert any("does not fit Line" in each and "`$.price`" in each for each in reasons)
    assert any("missing at `$.customer`" in each for each in reasons)
    assert "does not fit Line" in caplog.text
    assert "secret" not in caplog.text
    assert "4711" not in caplog.text
    assert "attempt 2" not in caplog.text, "no retry can mend it"


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (Line, b'{"article": 5, "price": "1"}', "Expected `str`, got `int` at `$.article`"),
        (Line, b'{"article": "a"}', "missing required field `price` at `$`"),
        (Line, b'{"article": "a', "truncated"),
        (Line, b"\xff", "malformed"),
        (Invoice, b'{"no": 1, "customer": {"name": 1}, "total": 1}', "`$.customer.name`"),
        (Invoice, b'{"no": 1, "customer": {"name": ""}, "total": -1}', "value_error at `$.total`"),
        (Invoice, b'{"no": 1, "prices": {"private": "x"}}', "int_parsing at `$.prices[...]`"),
        (Invoice, b'{"private": 1}', "extra_forbidden at `$[...]`"),
    ],
)
def test_a_mismatch_names_the_place_and_no_value(kind: type, body: bytes, reason: str) -> None:
    with pytest.raises(BodyMismatch) as caught:
        message_class(kind).read(body)

    assert reason in str(caught.value)
    assert "private" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_mismatch_shows_neither_enumerated_values_nor_texts_of_the_class() -> None:
    @dataclass
    class Checked:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(f"private {self.number}")

    with pytest.raises(BodyMismatch, match="the class raised ValueError") as checked:
        message_class(Checked).read(b'{"number": -5}')
    body = b'{"order":"6fa459ea-ee8a-3ca4-894e-db77e160355e","due":"2030-01-01T00:00:00Z",'
    with pytest.raises(BodyMismatch, match=r"Invalid enum value at `\$.currency`") as enumerated:
        message_class(PaymentOverdue).read(
            body + b'"since":"2030-01-01","lines":[],"currency":"private - at x"}'
        )

    assert "private" not in str(checked.value) + str(enumerated.value)


def test_unknown_fields_of_a_dataclass_are_ignored_and_missing_fields_have_defaults() -> None:
    found = message_class(Line).read(b'{"article": "pen", "price": "1.20", "colour": "red"}')

    assert found == LINE


@pytest.mark.parametrize(
    "wrong",
    [
        Line(5, Decimal(1)),  # type: ignore[arg-type]  # the mistake
        Line("pen", object()),  # type: ignore[arg-type]  # the mistake
        Line("\ud800", Decimal(1)),
        Customer.model_construct(name=5, born=date(2000, 1, 1)),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_object_that_cannot_be_read_again_is_refused_when_it_is_sent(wrong: object) -> None:
    with pytest.raises(InvalidMessage, match="does not survive"):
        encode_body(wrong)


@pytest.mark.parametrize(
    "lost",
    [
        Rate(math.nan),
        Rate(None, ({"rate": [math.inf]},)),
        ModelledRate(percent=-math.inf),
        ModelledRate(percent=1.5, other=(math.nan, None)),
    ],
)
def test_a_float_that_would_arrive_as_null_is_refused_when_it_is_sent(lost: object) -> None:
    with pytest.raises(InvalidMessage, match="NaN or infinite would arrive as null"):
        encode_body(lost)


@pytest.mark.parametrize(
    "kept", [Rate(None), Rate(None, (0.5, None)), ConstantRate(percent=math.inf)]
)
def test_a_null_and_a_float_that_arrives_are_sent(kept: object) -> None:
    assert of_wire(kept) == kept


class Keys(TypedDict):
    a: int


class ArrayLine(msgspec.Struct, array_like=True):
    a: int


class Named(msgspec.Struct, omit_defaults=True, rename="camel"):
    the_rate: float = 0
    the_name: str = ""


class LongArrayLine(ArrayLine, array_like=True):
    b: int = 0


@dataclass(frozen=True)
class DatedLine(Line):
    on: str = "today"


@attrs.define
class AttrsLine:
    a: int


@attrs.define
class LongAttrsLine(AttrsLine):
    b: int = 0


@dataclass(eq=False)
class Nested:
    """Fields of declared classes, in each kind of container."""

    line: Line | None = None
    lines: Sequence[Line] = ()
    by_price: dict[float, Line] = field(default_factory=dict)
    of_set: frozenset[Line] = frozenset()
    keys: Keys | None = None
    array: ArrayLine | None = None
    attrs_line: AttrsLine | None = None
    anything: Any = None
    rate: float = 0.0

    @cached_property
    def kept(self) -> int:
        return 1


class HiddenCustomer(Customer):
    hidden: str = pydantic.Field(default="x", exclude=True)


class FullCustomer(HiddenCustomer):
    vat: str = "DE1"


class TallCustomer(Customer):
    height: int = 180


class Orders(pydantic.BaseModel):
    customers: list[Customer] = []
    orders: list[Orders] = []
    lines: deque[Line] = deque()
    whole: pydantic.SerializeAsAny[Customer] | None = None
    either: Customer | Any = None
    first: Customer | TallCustomer | None = pydantic.Field(default=None, union_mode="left_to_right")
    anything: Any = None


class Customers(pydantic.RootModel[list[Customer]]):
    pass


class OneCustomer(pydantic.RootModel[Customer]):
    pass


class Numbers(pydantic.RootModel[list[int]]):
    pass


DATED, FULL = DatedLine("pen", Decimal(1)), FullCustomer(name="Ada", born=date(2000, 1, 1))
TALL = TallCustomer(name="Ada", born=date(2000, 1, 1))
KEYS: Any = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (Nested(line=DATED), "line.on"),
        (Nested(lines=(LINE, DATED)), "lines.1.on"),
        (Nested(by_price={1: DATED}), "by_price.1.on"),
        (Nested(of_set=frozenset({LINE, DATED})), "of_set.0.on"),
        (Nested(keys=KEYS), "keys.b"),
        (Nested(array=LongArrayLine(1, 2)), "array.b"),
        (Nested(attrs_line=LongAttrsLine(1, 2)), "attrs_line.b"),
        (Orders(customers=[FULL]), "customers.0.vat"),
        (Orders(orders=[Orders(customers=[FULL])]), "orders.0.customers.0.vat"),
        (Orders(lines=deque([DATED])), "lines.0.on"),
        (Orders(whole=FULL), "whole.vat"),
        (Orders(either=FULL), "either.vat"),
        (Orders(first=TALL), "first.height"),
        (Customers([FULL]), "root.0.vat"),
        (OneCustomer(FULL), "root.vat"),
    ],
)
def test_a_field_that_the_declared_class_has_not_is_refused_when_it_is_sent(
    message: object, place: str
) -> None:
    with pytest.raises(InvalidMessage, match=rf": {place} is lost"):
        encode_body(message)


def test_fields_that_arrive_or_are_excluded_are_sent() -> None:
    named = Named(0)
    of_attrs = AttrsLine(1)
    nested = Nested(
        LINE, [LINE], {1: LINE}, frozenset({LINE}), {"a": 1}, None, of_attrs, named, rate=1
    )
    assert nested.kept == 1  # no field, though the object keeps it
    hidden = HiddenCustomer(name="Ada", born=date(2000, 1, 1))

    whole = Customer(name="Ada", born=date(2000, 1, 1))
    orders = Orders(customers=[hidden], whole=whole, either=whole, first=whole, anything=FULL)
    for message in (nested, orders, Customers([hidden]), OneCustomer(hidden), Numbers([1])):
        assert type(of_wire(message)) is type(message)


@pytest.mark.parametrize("kind", [Line, Customer, Numbers])
def test_a_class_with_plain_fields_is_converted_once(kind: type) -> None:
    assert message_class(kind).whole is None


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr
    comment: str = ""


class OpenLogin(Login):
    @pydantic.field_serializer("password")
    def shown(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


def test_a_secret_that_would_arrive_as_asterisks_is_refused_when_it_is_sent() -> None:
    secret, stars = pydantic.SecretStr("hunter2"), "*" * 10

    with pytest.raises(InvalidMessage, match="a secret would arrive as asterisks") as refused:
        encode_body(Login(password=secret))

    assert "hunter2" not in str(refused.value)
    assert b"hunter2" in encode_body(OpenLogin(password=secret, comment=stars))[0]
    assert encode_body(Login(password=pydantic.SecretStr(""), comment=stars))


def test_a_body_of_another_content_type_is_rejected() -> None:
    message = Outgoing("q", a_message("m1", b"raw")).message
    raw = type(message)(
        id="m1", headers=message.headers, body=b"raw", content_type="application/octet-stream"
    )
    with pytest.raises(MessageRejected, match="needs a body of application/json"):
        read_typed(raw, message_class(Line))


def plain(_message: object, _context: HandlerContext) -> None:
    """Handle nothing."""


class Unconverted:
    """A class that no library converts."""


@dataclass
class Unreadable:
    part: Unconverted


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (Unconverted, "decorate it with @dataclass"),
        (int, "decorate it with @dataclass"),
        (Unreadable, "give its fields types that JSON can carry"),
    ],
)
def test_a_class_that_no_library_converts_is_refused_at_the_door(
    config: EndpointConfiguration, kind: type, remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        config.add_handler(kind, plain)


def other_line() -> type:
    @dataclass
    class Line:
        article: str

    return Line


@pytest.mark.parametrize(
    ("first", "second"), [(Line, "Line"), ("Line", Line), (Line, other_line())]
)
def test_a_message_type_has_one_class(
    config: EndpointConfiguration, first: Any, second: Any
) -> None:
    config.add_handler(first, plain)
    config.add_handler(first, plain)

    with pytest.raises(ConfigurationError, match="handlers of 'Line' get"):
        config.add_handler(second, plain)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda endpoint: endpoint.send("sales", "Line"), "no body"),
        (lambda endpoint: endpoint.send("sales", LINE, {"article": "pen"}), "its own body"),
        (lambda endpoint: endpoint.send("sales", Line), "an object of a dataclass"),
        (lambda endpoint: endpoint.send_local(object()), "an object of a dataclass"),
        (lambda endpoint: endpoint.send_local("", {}), "a message type is a name"),
    ],
)
def test_a_send_of_neither_type_nor_object_is_refused(
    config: EndpointConfiguration, wrong: Callable[[Any], object], reason: str
) -> None:
    endpoint = Endpoint(config)
    with pytest.raises(InvalidMessage, match=reason):
        wrong(endpoint)
    endpoint.close()


def test_a_dataclass_without_msgspec_names_the_extra(
    config: EndpointConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)

    with pytest.raises(ConfigurationError, match=r"timeoutmgr\[typed\]"):
        config.add_handler(other_line(), plain)


def test_an_endpoint_without_typed_messages_imports_no_converter() -> None:
    program = (
        "import sys, timeoutmgr\n"
        "config = timeoutmgr.EndpointConfiguration('sales')\n"
        "config.use_transport('memory://', accept_loss=True)\n"
        "config.add_handler('Bill', lambda message, context: None)\n"
        "endpoint = timeoutmgr.Endpoint(config); endpoint.install()\n"
        "endpoint.send_local('Bill', {'n': 1}); endpoint.close()\n"
        "print({'msgspec', 'pydantic'} & set(sys.modules))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "set()"


First = TypeVar("First")
Second = TypeVar("Second")


class Pair(pydantic.BaseModel, Generic[First, Second]):
    first: First
    second: Second


class NamedPair(Pair[int, str]):
    message_type: ClassVar = "Pair"


def test_a_class_whose_name_would_be_cut_at_a_comma_needs_a_message_type() -> None:
    with pytest.raises(ConfigurationError, match=r"'Pair\[int, str\]' .* a message_type"):
        message_class(Pair[int, str])
    assert message_class(NamedPair).name == "Pair"


@dataclass(frozen=True)
class Qualified:
    """A message for a foreign receiver, which reads the assembly behind the comma."""

    message_type: ClassVar = "Shop.Placed, Shop, Version=1"


def test_a_class_may_name_an_assembly_to_its_receivers_and_has_no_handler_here() -> None:
    assert message_class(Qualified).name == "Shop.Placed, Shop, Version=1"
    config = EndpointConfiguration("sales")
    with pytest.raises(ConfigurationError, match=r"register the handler for 'Shop\.Placed'"):
        config.add_handler(Qualified, lambda _message, _context: None)
