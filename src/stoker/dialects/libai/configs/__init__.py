"""Built-in configs; read them with `get_config`."""
