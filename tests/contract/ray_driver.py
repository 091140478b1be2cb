"""A driver that joins a cluster, begins a probe and hears of it: to be killed, or told to end.

python ray_driver.py ADDRESS RUN FOLDER NODES
"""

import sys
import time
from pathlib import Path

from ray_nodes import Nodes, a_probe, joined, lanes

from autotune.engine.call import result_of
from autotune.errors import AutotuneError


def main(address: str, run: str, folder: Path, span: int) -> int:
    cluster = Nodes.known(address)
    with joined(cluster):
        engine = lanes(cluster, folder, 1, on=(1, 2, 3), run=run, span=span)
        call = a_probe(folder, "0000", f"stubs:{'waits_once' if span == 1 else 'meets_others'}")
        print("begun", flush=True)
        try:
            ended = result_of(engine, call, lambda event: print(event, flush=True))
            print("ended", ended.measurement().reason, flush=True)
        except KeyboardInterrupt:
            print("interrupted", time.time(), flush=True)
            return 130
        except AutotuneError as error:
            print(error, flush=True)
            return error.exit_code
        finally:
            engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
