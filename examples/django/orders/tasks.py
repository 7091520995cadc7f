"""The tasks of the shop."""

from django_tasks import task  # Django 6: from django.tasks import task

from orders.models import Order


@task
def pay(number: str) -> bool:
    """Note that an order is paid; return whether there is such an order."""
    return Order.objects.filter(number=number).update(paid=True) == 1
