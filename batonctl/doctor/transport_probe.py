"""Moves a few blocks through NIXL, in a process of its own: a broken UCX may crash it.

Prints one line: which transport works, or why none does. Exits 0 or 1.
"""

import sys


def main() -> None:
    """The whole test; NixlTransport moves bytes to itself before it is usable."""
    import torch

    from kvtransfer.errors import TransportUnavailable
    from kvtransfer.transport.nixl import NixlTransport

    pool = torch.zeros((2, 1024), dtype=torch.float32)
    try:
        transport = NixlTransport(pool, "doctor")
    except TransportUnavailable as error:
        sys.exit(str(error))
    transport.close()
    print(f"{transport.name} moved its test bytes on this host")


if __name__ == "__main__":
    main()
