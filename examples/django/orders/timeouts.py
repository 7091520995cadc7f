"""Handlers; ``manage.py timeoutmgr run`` finds them by the name of this module."""

# handler-begin
from typing import Any

from orders.models import Reminder
from timeoutmgr import HandlerContext
from timeoutmgr.contrib.django import handler


@handler("PaymentOverdue")
def remind(message: dict[str, Any], context: HandlerContext) -> None:
    Reminder.objects.create(number=message["number"])


# handler-end
