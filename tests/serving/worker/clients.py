"""Clients that ask for streams without end, and hold every text against the right one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx

LEAVES = 10
"""One request of so many is left by its client in the middle."""


class Client:
    """Asks all prompts of one gateway, then of the next. texts: what is right, by prompt, for so many tokens.

    Whoever left a gateway that failed for good would leave it without load for as long as a course runs.
    ends: how its requests ended; wrong: texts that were.
    """

    def __init__(self, http, urls, texts, number, *, tokens, model="tiny"):
        self.http, self.urls, self.texts, self.number = http, urls, texts, number
        self.model, self.tokens = model, tokens
        self.ends, self.wrong = Counter(), []

    async def run(self):
        prompts = list(self.texts)
        for turn in range(self.number, 10**9):
            rounds, which = divmod(turn, len(prompts))
            url = self.urls[(self.number + rounds) % len(self.urls)]
            end = await self.ask(url, prompts[which], leaves=turn % LEAVES == 0)
            self.ends[end] += 1
            if end not in ("whole", "left"):
                await asyncio.sleep(0.5)

    async def ask(self, url, prompt, *, leaves):
        """Return how a request ended; keep any text that is not the beginning of the right one."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.tokens,
            "temperature": 0.0,
            "stream": True,
        }
        text, end = "", "broken"
        try:
            async with self.http.stream("POST", f"{url}/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    return json.loads(await answer.aread())["error"]["code"]
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        end = "whole"
                    elif line.startswith("data: "):
                        event = json.loads(line[6:])
                        if "error" in event:
                            end = event["error"]["code"]
                        else:
                            text += "".join(choice["text"] for choice in event["choices"])
                    if leaves and text:
                        end = "left"
                        break
        except httpx.HTTPError as error:
            end = type(error).__name__
        expected = self.texts[prompt]
        if not expected.startswith(text) or (end == "whole" and text != expected):
            self.wrong.append((end, prompt, text))
        return end
