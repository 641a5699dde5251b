"""What scripts/test-recipes is made of: the README's blocks, a world to run them in, jobs, and what is left."""
