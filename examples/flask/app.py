"""A Flask app that reminds of orders that are not paid."""

import os
from datetime import timedelta
from typing import Any

from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from timeoutmgr import HandlerContext

# extension-begin
from timeoutmgr.contrib.flask import FlaskTimeouts


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)
timeouts = FlaskTimeouts()


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
    app.config["TIMEOUTMGR"] = {"endpoint": "shop", "features": ["timeout-manager"]}
    db.init_app(app)
    timeouts.init_app(app)
    app.add_url_rule("/orders", view_func=order, methods=["POST"])
    app.add_url_rule("/reminders", view_func=reminders)
    with app.app_context():
        db.create_all()
    return app


# extension-end

REMINDER_DELAY = timedelta(seconds=float(os.environ.get("REMINDER_SECONDS", 14 * 24 * 3600)))


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)


class Reminder(Base):
    __tablename__ = "reminders"
    message_id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[str]


class CardDeclined(Exception):
    """The bank refused the payment."""


# view-begin
def order() -> tuple[dict[str, str], int]:
    asked = request.get_json()
    try:
        db.session.add(Order(number=asked["number"]))
        db.session.flush()
        timeouts.endpoint.send_local(
            "PaymentOverdue",
            {"number": asked["number"]},
            delay=REMINDER_DELAY,
            session=db.session,
        )
        charge(asked["card"])
    except CardDeclined:
        db.session.rollback()
        return {"error": "the card was declined"}, 402
    db.session.commit()
    return {"number": asked["number"]}, 201


# view-end


# handler-begin
@timeouts.handler("PaymentOverdue")
def remind(message: dict[str, Any], context: HandlerContext) -> None:
    db.session.merge(Reminder(message_id=context.message_id, number=message["number"]))
    db.session.commit()


# handler-end


def charge(card: str) -> None:
    if card == "declined":
        raise CardDeclined


def reminders() -> dict[str, list[str]]:
    return {"reminders": list(db.session.scalars(db.select(Reminder.number)))}
