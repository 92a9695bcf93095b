"""Takes 1 GiB, forks a child that does nothing, says its pid and waits to be killed."""

import os
import time

from cu import MIB, alloc, begin, say

begin()
code, _ = alloc(1024 * MIB)
child = os.fork()
if child:
    say(code=code, child=child)
while True:
    time.sleep(60)
