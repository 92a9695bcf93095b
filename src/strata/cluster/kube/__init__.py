"""The API server: a client, lists and watches that survive it, leader election."""
