"""The cluster in memory: informers fill it, and decisions read a frozen index of it.

`informer` listens to one watch a kind and feeds `cache`, object by object; `allocation` says who holds which
devices; `gather` fills a cache once, from an API server or from files; `capacity` sums up what is used and free.
"""
