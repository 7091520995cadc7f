"""RabbitMQ delay levels as the source or target of a migration."""
