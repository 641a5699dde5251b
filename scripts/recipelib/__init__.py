"""What scripts/test-recipes is made of: blocks of the README, a world to run them in, jobs, remains."""
