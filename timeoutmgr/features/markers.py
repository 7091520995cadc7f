"""Markers: a word in the store and the broker of an endpoint shows that they belong together.

Two endpoints with the same name and store, but different brokers, would dispatch each other's
timeouts to the wrong broker. Two stores beside one broker would each have a part of the timeouts.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from timeoutmgr.contracts import BearsMarkers, KeepsMarkers, SharedDatabase, StoreMarker
from timeoutmgr.crashpoints import reach
from timeoutmgr.errors import ConfigurationError, WrongPair
from timeoutmgr.features.feature import FeatureSettings
from timeoutmgr.message.redaction import on_one_line
from timeoutmgr.message.routes import DELAYED

logger = logging.getLogger(__name__)


def compare_markers(settings: FeatureSettings, *, write: bool) -> str | None:
    """Return the marker that store and broker share; None if they cannot share a marker.

    With *write*, a pair without markers is marked. Raises WrongPair if the store belongs to another
    broker, or the broker to another store.
    """
    with _both(settings) as both:
        return None if both is None else both.compared(write=write)


def check_pair(settings: FeatureSettings) -> None:
    """Refuse a wrong pair at start; mark a new pair if the settings let a start install."""
    try:
        compare_markers(settings, write=settings.install)
    except WrongPair:
        raise
    except ConfigurationError as error:
        # The queues exist, so this user has all permissions that a worker needs.
        logger.warning(
            "endpoint %s could not mark store and broker: %s",
            settings.name,
            on_one_line(error),
            extra={"event": "pair_not_marked", "endpoint": settings.name},
        )


def renew_marker(settings: FeatureSettings) -> None:
    """Give store and broker a new marker, so that they belong together from now on."""
    with _both(settings) as both:
        if both is not None:
            both.write_marker(os.urandom(8).hex())


def unmark_broker(settings: FeatureSettings) -> None:
    """Remove the marker from the broker; uninstalling removes it from the store."""
    store = settings.persistence
    with closing(settings.transport.session()) as session:
        if not isinstance(session, BearsMarkers):
            return
        kept = store.marker(settings.name) if isinstance(store, KeepsMarkers) else None
        session.drop_marker(settings.name, kept.word if kept else None)


@dataclass(frozen=True, slots=True)
class _MarkedStore:
    """The store with the marker that counts, and the *name* of the marker on the broker."""

    store: object
    name: str
    database: SharedDatabase | None


def _marked_store(settings: FeatureSettings) -> _MarkedStore:
    delayed = settings.delayed_delivery
    if delayed is not None:
        # The queue's name, which no endpoint has: if the endpoint had a timeout manager before, the
        # marker of that other store is still on the broker.
        return _MarkedStore(delayed.store, settings.name + DELAYED, delayed.database)
    persistence = settings.persistence
    database = None if persistence is None else persistence.database
    return _MarkedStore(persistence, settings.name, database)


class _Pair:
    """A store and a broker that can both keep the marker of an endpoint."""

    def __init__(
        self,
        settings: FeatureSettings,
        marked: _MarkedStore,
        store: KeepsMarkers,
        broker: BearsMarkers,
    ) -> None:
        self._endpoint = settings.name
        self._borne_for = marked.name
        self._store = store
        self._broker = broker
        self._store_place = _store_place(marked.database)
        self._broker_place = settings.transport.describe()
        capabilities = settings.transport.capabilities
        self._forgets = capabilities.forgets_markers or not capabilities.durable

    def compared(self, *, write: bool) -> str | None:
        kept, borne = self._read()
        if kept is None and borne is not None:
            # A process that marks them writes the store first, and may do so at this moment.
            kept, borne = self._read()
        if kept is None and borne is None:
            return self._first() if write else None
        if kept is None:
            raise WrongPair(
                self._endpoint,
                f"the broker {self._broker_place} bears the marker {borne} of another store, and "
                f"the store {self._store_place} has none",
            )
        if borne != kept.word:
            if borne is None and kept.broker == self._broker_place and self._may_be_lost(kept):
                return self.write_marker(kept.word) if write else None
            raise WrongPair(
                self._endpoint,
                f"the store {self._store_place} has the marker {kept.word} of the broker "
                f"{kept.broker}, and the broker {self._broker_place} bears "
                f"{'none' if borne is None else borne}",
            )
        if not kept.confirmed and write:
            self._store.confirm_marker(self._endpoint, kept.word, self._broker_place)
        return kept.word

    def _may_be_lost(self, kept: StoreMarker) -> bool:
        """Return whether the same broker may have lost its marker."""
        if not kept.confirmed:
            return True
        if self._forgets:
            logger.warning(
                "broker %s keeps nothing over a restart and lost the marker of endpoint %s; "
                "the endpoint marks the broker again",
                self._broker_place,
                self._endpoint,
                extra={"event": "marker_lost", "endpoint": self._endpoint},
            )
        return self._forgets

    def _read(self) -> tuple[StoreMarker | None, str | None]:
        kept = self._store.marker(self._endpoint)
        return kept, self._broker.borne_marker(self._borne_for, kept.word if kept else None)

    def write_marker(self, word: str) -> str:
        """Write *word* to the broker first: until the store confirms it, this can be repeated."""
        self._broker.bear_marker(self._borne_for, word, self._store_place)
        reach("install.broker_marked")
        self._store.confirm_marker(self._endpoint, word, self._broker_place)
        return word

    def _first(self) -> str | None:
        word = os.urandom(8).hex()
        kept = self._store.propose_marker(self._endpoint, word, self._broker_place)
        reach("install.marker_kept")
        if kept.word != word:
            # Another process was faster, and has set the broker to which the store belongs.
            return self.compared(write=True)
        return self.write_marker(word)


@contextmanager
def _both(settings: FeatureSettings) -> Iterator[_Pair | None]:
    """Yield store and broker, if both can keep a marker."""
    marked = _marked_store(settings)
    store = marked.store
    if not isinstance(store, KeepsMarkers):
        yield None
        return
    with closing(settings.transport.session()) as session:
        if isinstance(session, BearsMarkers):
            yield _Pair(settings, marked, store, session)
        else:
            yield None


def _store_place(database: SharedDatabase | None) -> str:
    if database is None:
        return "of this endpoint"
    if database.path is not None:
        return f"sqlite:///{database.path.resolve()} on {socket.gethostname()}"
    return database.describe()
