"""The tasks of the shop."""

from django_tasks import task  # Django 6: from django.tasks import task

from orders.models import Order


@task
def pay(number: str) -> bool:
    """Mark an order as paid; return whether the order exists."""
    return Order.objects.filter(number=number).update(paid=True) == 1
