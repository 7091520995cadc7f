"""RabbitMQ delay levels as the source or the target of a migration."""
