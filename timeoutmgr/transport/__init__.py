"""Transports, which reach queues: by kombu here, and our own queue in a database in ``sql``."""
