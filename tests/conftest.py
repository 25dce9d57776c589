"""Settings of all tests."""

from hypothesis import settings

# A deadline per example would be an assertion about the wall clock of a busy machine.
settings.register_profile("forebay", deadline=None, print_blob=True)
settings.load_profile("forebay")
