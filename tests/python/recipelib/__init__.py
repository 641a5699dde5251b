"""The parts of scripts/test-recipes: code blocks of the pages, a world to run them in, jobs, remains."""
