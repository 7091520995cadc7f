"""RabbitMQ, and other brokers that speak AMQP 0-9-1."""
