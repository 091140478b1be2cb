"""A tracker's process in its ways to fail: the name of the tool is what it does."""

import os
import sys
import time

if __name__ == "__main__":
    if sys.argv[1] == "crashes":
        os.abort()
    time.sleep(600)
