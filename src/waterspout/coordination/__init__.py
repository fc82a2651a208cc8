"""What survives the driver, and the loop that carries out the coordinator's decisions."""

__all__: list[str] = []
