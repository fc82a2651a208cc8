"""Real servers beside the tests, and the tests of those that need one."""
