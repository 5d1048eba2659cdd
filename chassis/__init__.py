"""What every service and tool of Baton shares: errors, settings, gRPC, telemetry, models."""

import os

# Before grpc is imported: its own notes on every closed connection do not belong in our logs.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
