"""What engines say of themselves beside OpenAI's API: how much they take at once, how busy they are.

vLLM says it in /metrics, llama.cpp's server in /props and, where it was started with `--metrics`, in /metrics.
Others are not asked: one that computes in the thread that answers would stop for it.
"""

from __future__ import annotations

import logging
import re
from typing import Final, NamedTuple

import httpx

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
VLLM: Final = "vllm"
LLAMA_CPP: Final = "llamacpp"
"""What they call the owner of their models in /v1/models."""
REQUESTS: Final = {
    VLLM: ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    LLAMA_CPP: ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}
"""Gauges that count requests, those that run and those that wait."""
SAMPLE: Final = re.compile(r"^([a-z_:]+)(?:\{.*\})? (\d+(?:\.\d+)?(?:e[+-]?\d+)?)$", re.MULTILINE)
MOST: Final = 10**12
"""What is beyond is no figure of an engine."""


class EngineFigures(NamedTuple):
    """slots: requests at once; kv_tokens: in KV memory; 0 for what an engine does not say."""

    slots: int = 0
    kv_tokens: int = 0


async def figures_of(url: str, owner: str, client: httpx.AsyncClient) -> EngineFigures:
    """Return what an engine takes at once."""
    if owner == VLLM:
        text = await _text(f"{url}/metrics", client)
        # One series for each of its data-parallel copies.
        sizes = re.findall(r'^vllm:cache_config_info\{.*\bkv_cache_size_tokens="(\d{1,12})"', text, re.MULTILINE)
        return EngineFigures(kv_tokens=sum(map(int, sizes)))
    if owner == LLAMA_CPP:
        try:
            answer = await client.get(f"{url}/props", timeout=TIMEOUT_S)
            answer.raise_for_status()
            props = answer.json()
            slots, each = int(props["total_slots"]), int(props["default_generation_settings"]["n_ctx"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.info("%s/props: %s: %s", url, type(error).__name__, error)
        else:
            if 0 < slots < MOST and 0 < each < MOST:
                return EngineFigures(slots, slots * each)
            log.warning("%s says that it takes %d requests of %d tokens: not believed", url, slots, each)
    return EngineFigures()


async def num_requests(url: str, owner: str, client: httpx.AsyncClient) -> int:
    """Return how many requests an engine has, whoever sent them; 0 where it does not say."""
    names = REQUESTS.get(owner, ())
    text = await _text(f"{url}/metrics", client) if names else ""
    counts = [float(value) for name, value in SAMPLE.findall(text) if name in names]
    return int(sum(count for count in counts if 0 <= count < MOST))


async def _text(url: str, client: httpx.AsyncClient) -> str:
    """Return what an engine answers; nothing where it does not."""
    try:
        answer = await client.get(url, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        log.info("%s: %s: %s", url, type(error).__name__, error)
        return ""
    return answer.text if answer.status_code == 200 else ""
