"""Accept an order: its row and its reminder are committed together, or not at all."""

import json

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from orders.models import Order, Reminder
from timeoutmgr.contrib.django import endpoint


class CardDeclined(Exception):
    """The bank refused the payment."""


# view-begin
@require_POST
def orders(request: HttpRequest) -> JsonResponse:
    asked = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(number=asked["number"])
            endpoint.send_local(
                "PaymentOverdue", {"number": order.number}, delay=settings.REMINDER_DELAY
            )
            charge(asked["card"])
    except CardDeclined:
        return JsonResponse({"error": "the card was declined"}, status=402)
    return JsonResponse({"number": order.number}, status=201)


# view-end


def charge(card: str) -> None:
    if card == "declined":
        raise CardDeclined


def reminders(request: HttpRequest) -> JsonResponse:
    numbers = Reminder.objects.order_by("id").values_list("number", flat=True)
    return JsonResponse({"reminders": list(numbers)})
