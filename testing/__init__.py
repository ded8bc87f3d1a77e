"""For tests of busnode and of what stands on it: a simulated world, checkers, pytest fixtures."""
