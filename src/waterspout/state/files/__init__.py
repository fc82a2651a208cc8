"""States in files: the whole map in the driver's memory, every write in a file before it counts."""

from waterspout.state.files._state import FileState

__all__ = ["FileState"]
