"""The command line: parses, calls, renders; decides nothing."""
