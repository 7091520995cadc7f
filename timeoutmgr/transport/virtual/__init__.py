"""kombu's virtual transports: Redis, memory, and others."""
