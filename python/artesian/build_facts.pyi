"""Written by the build."""

VERSION: str
TORCH: str
