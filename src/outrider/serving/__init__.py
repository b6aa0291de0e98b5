"""RULE: the only home of asyncio, threads and the web framework."""
