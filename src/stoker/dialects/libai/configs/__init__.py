"""Configs to build on; `get_config` reads them."""
