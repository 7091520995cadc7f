"""Settings from a TOML file and the environment."""
