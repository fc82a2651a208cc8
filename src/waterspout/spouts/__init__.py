"""Sources of batches. Each is imported by path (`waterspout.spouts.files`)."""

__all__: list[str] = []
