"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=20, unique=True)
    paid = models.BooleanField(default=False)


class Reminder(models.Model):
    number = models.CharField(max_length=20)
