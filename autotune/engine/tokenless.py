"""Asks a Ray cluster for its name without a token, as a program.

    python -m autotune.engine.tokenless HOST:PORT

The exit code is `OPEN` where it answers: whoever reaches it may run code there. It is a program, as
Ray reads only once in a process whether that has a token.
"""

import os
import sys

OPEN, GUARDED = 10, 11


def main(address: str) -> int:
    """Return the exit code for a cluster."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray
    from ray.exceptions import AuthenticationError

    try:
        ray._raylet.GcsClient(address=address)
    except AuthenticationError:
        return GUARDED
    return OPEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
