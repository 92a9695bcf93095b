"""Domains that run work: one file a driver; `part`: what they keep of an attempt; `launch`: what ranks get."""
