"""The tables, the endpoint's configuration, and the handler: the worker needs no web framework."""

import os
from datetime import timedelta
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from timeoutmgr import EndpointConfiguration, HandlerContext
from timeoutmgr.satellites import TimeoutManager

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
REMINDER_DELAY = timedelta(seconds=float(os.environ.get("REMINDER_SECONDS", 14 * 24 * 3600)))

engine = create_engine(DATABASE_URL)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)


class Reminder(Base):
    __tablename__ = "reminders"
    message_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[str]


# configuration-begin
def configuration() -> EndpointConfiguration:
    config = EndpointConfiguration("shop")
    config.use_transport(DATABASE_URL)
    config.use_persistence(DATABASE_URL)
    config.enable_feature(TimeoutManager())
    config.add_handler("PaymentOverdue", remind)
    return config


def remind(message: dict[str, Any], context: HandlerContext) -> None:
    """Remind once: the row is committed together with the end of the message."""
    context.session.add(Reminder(message_id=context.message_id, number=message["number"]))


# configuration-end
