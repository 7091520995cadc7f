"""Migrations of the tables of the shop."""
