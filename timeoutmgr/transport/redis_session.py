"""A session with Redis, which can bear markers beside the queues."""

from __future__ import annotations

from timeoutmgr.transport.virtual import VirtualSession

_KEY = "timeoutmgr.marker.{}"


class RedisSession(VirtualSession):
    """A session as over any virtual transport, with a key for each endpoint's marker."""

    def borne_marker(self, endpoint: str, expected: str | None) -> str | None:
        """Return the marker of *endpoint*, if there is one."""
        with self._used("reading a marker") as link:
            found = link.channel.client.get(_KEY.format(endpoint))
        return None if found is None else bytes(found).decode("utf-8", "replace")

    def bear_marker(self, endpoint: str, word: str, store: str) -> None:
        """Mark *endpoint*; another marker is overwritten."""
        with self._used("writing a marker") as link:
            link.channel.client.set(_KEY.format(endpoint), word)

    def drop_marker(self, endpoint: str, expected: str | None) -> None:
        """Remove the marker of *endpoint*."""
        with self._used("removing a marker") as link:
            link.channel.client.delete(_KEY.format(endpoint))
