"""What scripts/test-recipes is made of: blocks of the pages, a world to run them in, jobs, remains."""
