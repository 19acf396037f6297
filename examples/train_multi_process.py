"""Trains as train_multi_device.py does, in several processes that share each batch.

`python examples/train_multi_process.py --processes 2` starts them all on this machine. On a cluster
each machine starts its own, with the address of the first one:
`python examples/train_multi_process.py --processes 2 --process 1 --coordinator host0:1234`.
All other arguments are those of train_multi_device.py; `--devices` counts those of each process.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import jax
from train_multi_device import arguments, run


def start(processes: int, argv: Sequence[str]) -> int:
    """Runs this file in so many processes; returns 0, or the exit status of one that failed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, __file__, *argv, "--coordinator", coordinator, "--process"]
    workers = [subprocess.Popen([*command, str(index)]) for index in range(processes)]
    try:
        while (statuses := {worker.poll() for worker in workers}) - {0} == {None}:
            time.sleep(0.1)
        return next((status for status in statuses if status), 0)
    finally:  # the others wait for one that failed
        for worker in workers:
            worker.kill()
            worker.wait()


def main(argv: Sequence[str]) -> int:
    parser = arguments()
    parser.add_argument("--processes", type=int, default=2, help="%(default)s by default")
    parser.add_argument("--process", type=int, help="which of them this is; without it, none")
    parser.add_argument("--coordinator", help="host:port where process 0 listens")
    args = parser.parse_args(argv)
    if args.process is None:
        return start(args.processes, argv)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # between CPUs
    jax.distributed.initialize(args.coordinator, args.processes, args.process)
    run(args)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
