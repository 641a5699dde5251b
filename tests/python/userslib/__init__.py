"""The parts of scripts/test-python: environments, archives, mounts, and the sections."""
