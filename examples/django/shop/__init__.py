"""A Django project that reminds of orders that are not paid."""
