"""Dynamic resource allocation: devices as ResourceSlices, claims as DeviceRequests, who holds which devices."""
