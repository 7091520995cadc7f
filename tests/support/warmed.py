"""Caches of a fork server: tables, statements and lists of plug-ins, which each fork finds made."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from timeoutmgr.clock import SystemClock
from timeoutmgr.deadletter import DeadLetterStore
from timeoutmgr.endpoint.configuration import persistence_from_url, transport_from_url

_URLS: Final = ("sqlite:////nowhere/t.db", "postgresql+psycopg://nobody@127.0.0.1:1/nothing")


def _warm(url: str) -> None:
    """Make a transport and stores, which open no connection."""
    with (
        closing(persistence_from_url(url)) as persistence,
        closing(transport_from_url(url)),
        closing(DeadLetterStore(url)),
    ):
        persistence.timeouts("warmed", SystemClock(), atomic_dispatch=True)


for _url in _URLS:
    _warm(_url)
