"""Keys that kombu leaves in a Redis database after its queues and exchanges are gone."""

from __future__ import annotations

import redis


def forget_keys(url: str, name: str) -> None:
    """Delete the keys of queues and exchanges whose names contain *name*."""
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(match=f"*{name}*"))
        if keys:
            client.delete(*keys)
