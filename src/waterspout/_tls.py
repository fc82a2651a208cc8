"""How a client makes sure of its server, and is known to it: certificates, in files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from waterspout._addresses import resolved
from waterspout.errors import ConfigError

__all__ = ["TLS"]


@dataclass(frozen=True, slots=True)
class TLS:
    """Encrypt a connection, and check the server's certificate.

    The files are read where the connection is made, on the driver and on the executors; `${NAME}`
    in each of these is taken from the environment there.

    Args:
        ca: A file with the certificates of who signs servers; None: those of the system.
        cert: A file with our own certificate, for a server that asks for one.
        key: A file with its key, if it is not in the same file.
        key_password: What opens that file. It is never shown.
        check_hostname: Whether the certificate must name the host that was given.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def __post_init__(self) -> None:
        """Refuse a key without its certificate."""
        if self.key is not None and self.cert is None:
            raise ConfigError("TLS: a key is of no use without its certificate: give cert too")

    def context(self) -> ssl.SSLContext:
        """Return what the clients of servers take."""
        found = {
            name: None if given is None else resolved(given)
            for name, given in (("ca", self.ca), ("cert", self.cert), ("key", self.key))
        }
        try:
            context = ssl.create_default_context(cafile=found["ca"])
            context.check_hostname = self.check_hostname
            if found["cert"] is not None:
                # Without a password for it, OpenSSL would ask at the terminal.
                password = resolved(self.key_password or "")
                context.load_cert_chain(found["cert"], found["key"], lambda: password)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            files = ", ".join(f"{name}={path}" for name, path in found.items() if path)
            said = error.strerror or type(error).__name__ if isinstance(error, OSError) else ""
            raise ConfigError(
                f"TLS: the certificates cannot be used ({files}): {said or 'not readable'}. They "
                "are files in PEM form, which must be there on the driver and, where tasks write, "
                "on the executors."
            ) from None
        return context
