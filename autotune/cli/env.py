"""`autotune env`."""

from dataclasses import asdict

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.guarded import guarded
from autotune.cli.job_options import json_option


@click.command("env")
@json_option
@guarded
def command(as_json: bool) -> int:
    """Show the machine and the stack, as a bug report needs it."""
    import platform

    from autotune import __version__
    from autotune.facts import devices, stack
    from autotune.units import format_bytes

    installed = stack.installed()
    present = [devices.cpu(), *(devices.gpu(n) for n in range(devices.gpu_count()))]
    if as_json:
        plain = {key: value for key, value in asdict(installed).items() if key != "training_fields"}
        print_json(
            {
                "schema": 1,
                "autotune": __version__,
                "platform": platform.platform(),
                "stack": plain,
                "devices": [asdict(device) for device in present],
            }
        )
        return 0
    echo(f"autotune {__version__}")
    echo(f"python {installed.python} on {platform.platform()}")
    for name, version in installed.versions.items():
        echo(f"{name} {version or 'not installed'}")
    for name in stack.OPTIONAL:
        if name not in installed.versions:
            echo(f"{name} {'no' if name in installed.absent else 'yes'}")
    for device in present:
        echo(
            f"{device.kind}:{device.index} {device.name}, {format_bytes(device.free_bytes)} of "
            f"{format_bytes(device.total_bytes)} free"
            + (f", driver {device.driver}" if device.driver else "")
        )
    return 0
