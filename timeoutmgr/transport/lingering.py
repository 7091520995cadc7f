"""How long a receiver waits for its batch to fill, once there is a first message."""

from typing import Final

LINGER: Final = 0.002
"""Seconds without another message after which a batch is handed out as it is."""
FEW: Final = 8
"""Up to so many are not waited for: a batch of few saves little, and all of it would be late."""
