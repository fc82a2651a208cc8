"""The page: topologies of a home or a ZooKeeper in a browser. `waterspout ui` serves it."""

__all__: list[str] = []
