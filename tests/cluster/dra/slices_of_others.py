"""ResourceSlices as NVIDIA's and AMD's drivers publish them, as far as strata reads them."""

from __future__ import annotations

from typing import Any


def nvidia(node: str, product: str, count: int, *, memory: str = "80Gi", generation: int = 1) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{node}-{i}"},
                "productName": {"string": product},
                "cudaComputeCapability": {"version": "8.0.0"},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{0x10 + i:02x}:00.0"},
            },
            "capacity": {"memory": {"value": memory}},
        }
        for i in range(count)
    ]
    return of_driver("gpu.nvidia.com", node, devices, generation=generation)


def huawei(node: str, count: int) -> dict[str, Any]:
    devices = [
        {
            "name": f"npu-{i}",
            "attributes": {"model": {"string": "Ascend910B3"}, "uuid": {"string": f"{node}-{i}"}},
            "capacity": {"memory": {"value": "64Gi"}},
        }
        for i in range(count)
    ]
    return of_driver("npu.example.com", node, devices)


def of_driver(driver: str, node: str, devices: list[dict[str, Any]], *, generation: int = 1) -> dict[str, Any]:
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}-{generation}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
    }


def allocated(name: str, *devices: tuple[str, str, str], **annotations: str) -> dict[str, Any]:
    """A ResourceClaim to which kube-scheduler gave devices: (driver, pool, device)."""
    results = [
        {"request": "devices", "driver": driver, "pool": pool, "device": device}
        for driver, pool, device in devices
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {},
        "status": {"allocation": {"devices": {"results": results}}},
    }
