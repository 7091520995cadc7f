"""A shop that reminds of unpaid orders: the program under test."""

from datetime import timedelta

from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from timeoutmgr import Endpoint, EndpointConfiguration, HandlerContext, RecoverabilitySettings
from timeoutmgr.satellites import TimeoutManager

DATABASE = "postgresql+psycopg://localhost/shop"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    is_paid: Mapped[bool] = mapped_column(default=False)
    reminders: Mapped[int] = mapped_column(default=0)


config = EndpointConfiguration("shop")
config.use_transport(DATABASE)
config.use_persistence(DATABASE)
config.enable_feature(TimeoutManager())
config.recoverability = RecoverabilitySettings(
    immediate=2, delayed=1, increase=timedelta(minutes=10)
)
config.recurring("daily-report", "DailyReport", {"to": "all"}, every="1 day at 06:00 Europe/Berlin")


def place_order(endpoint: Endpoint, session: Session, order: str) -> str | None:
    """Store the order and its reminder in one transaction; return the id of the reminder."""
    session.add(Order(id=order))
    reminder = endpoint.send_local(
        "PaymentOverdue", {"order": order}, delay=timedelta(days=14), saga_id=order, session=session
    )
    return reminder.id


@config.handler("PaymentOverdue")
def remind(message: dict[str, str], context: HandlerContext) -> None:
    order = context.session.get_one(Order, message["order"])
    if not order.is_paid:
        order.reminders += 1
        context.send("mail", "Reminder", {"order": order.id})


@config.handler("OrderPaid")
def note_payment(message: dict[str, str], context: HandlerContext) -> None:
    context.session.get_one(Order, message["order"]).is_paid = True
    context.clear_timeouts(message["order"])


@config.handler("ExportOrder")
def export(message: dict[str, str], context: HandlerContext) -> None:
    upload(message["order"])


@config.handler("DailyReport")
def report(message: dict[str, str], context: HandlerContext) -> None:
    context.send("reports", "Report", message)


def upload(order: str) -> None:
    """Send the order to the accounts department."""
