"""How queues are reached: kombu's transports here, our own queue in a database under ``sql``."""
