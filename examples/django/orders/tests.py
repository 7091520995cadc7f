"""Tests of the shop: ``python manage.py test``."""

# tests-begin
from django.test import TransactionTestCase

from orders.models import Order
from timeoutmgr.contrib.django import endpoint


class OrderTest(TransactionTestCase):
    def setUp(self) -> None:
        endpoint.install()
        endpoint.purge(satellites=True)  # a flush of Django keeps messages

    def order(self, card: str) -> None:
        asked = {"number": "A7", "card": card}
        self.client.post("/orders", asked, content_type="application/json")

    def test_an_order_is_reminded_of(self) -> None:
        self.order("good")
        assert Order.objects.exists()
        assert endpoint.timeouts.waiting() == 1

    def test_a_declined_card_leaves_nothing(self) -> None:
        self.order("declined")
        assert not Order.objects.exists()
        assert endpoint.timeouts.waiting() == 0


# tests-end
