"""Parts of scripts/test-python: the environment, the archives, the mounts, and what is run on them."""
