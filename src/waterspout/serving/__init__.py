"""The server in the driver: questions about a run, and commands for it, over HTTP.

It is off unless `Config(serve="127.0.0.1:0")` says where it listens. It ends with its run.
"""

from waterspout.serving._server import RunServer, bound, require_address

__all__ = ["RunServer", "bound", "require_address"]
