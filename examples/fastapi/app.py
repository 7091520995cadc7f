"""A FastAPI app that reminds of orders that are not paid."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from lifespan import Timeouts, lifespan
from pydantic import BaseModel
from shop import REMINDER_DELAY, Order, Reminder, engine
from sqlalchemy import select
from sqlalchemy.orm import Session

app = FastAPI(lifespan=lifespan)


# session-begin
def open_transaction() -> Iterator[Session]:
    """Commit after the function of the path has returned, roll back if it raises."""
    with Session(engine) as session, session.begin():
        yield session


Transaction = Annotated[Session, Depends(open_transaction, scope="function")]
# session-end


class NewOrder(BaseModel):
    number: str
    card: str


# path-begin
@app.post("/orders", status_code=201)
def order(asked: NewOrder, session: Transaction, timeouts: Timeouts) -> dict[str, str]:
    session.add(Order(number=asked.number))
    session.flush()
    timeouts.send_local(
        "PaymentOverdue", {"number": asked.number}, delay=REMINDER_DELAY, session=session
    )
    charge(asked.card)
    return {"number": asked.number}


# path-end


@app.get("/reminders")
def reminders(session: Transaction) -> dict[str, list[str]]:
    return {"reminders": list(session.scalars(select(Reminder.number)))}


def charge(card: str) -> None:
    if card == "declined":
        raise HTTPException(402, "the card was declined")
