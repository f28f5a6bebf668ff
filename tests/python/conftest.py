"""What holds for every Python test."""

import signal

# A runner in the background of a script leaves SIGINT ignored, which programs under test would
# inherit; one with a handler of its own hands on the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
