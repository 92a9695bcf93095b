"""The live scheduler under virtual time: what nodes would do with its instructions, and how it went.

`setup` puts a job together, `engine` posts arrivals, heartbeats and `fault_events` to the core and carries out its
instructions, `service` computes how long nodes take, `record` keeps what became of requests, `report` sums it up.
"""
