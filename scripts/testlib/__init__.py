"""The parts of scripts/test, their order, and the report of their results."""
