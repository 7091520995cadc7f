"""What happens when something fails: breakers over time, recoverability, critical errors."""
