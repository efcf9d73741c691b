"""A training that fails on request, for the tests of launchers."""
