"""kombu's virtual transports: Redis, memory and the like."""
