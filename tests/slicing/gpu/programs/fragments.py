"""Takes and gives back stream-ordered memory at random at the limit of a slice, in sizes that leave holes.

Says when its context is there and waits for a line; then prints how often it was refused and the least that the
slice had left. Words are a seed and a number of steps."""

import random
import sys

from cu import MIB, alloc_async, begin, call, free_bytes, say


def main() -> None:
    seed, steps = int(sys.argv[1]), int(sys.argv[2])
    generator, held, refused = random.Random(seed), [], 0
    begin()
    room = free_bytes()
    say(room=room)
    sys.stdin.readline()
    least = room
    for _ in range(steps):
        if held and generator.random() < 0.48:
            call("cuMemFreeAsync", held.pop(generator.randrange(len(held))), None)
        else:
            code, made = alloc_async(generator.choice([1, 3, 5, 17, 33, 65, 200]) * MIB + generator.randrange(MIB))
            refused += code != 0
            if code == 0:
                held.append(made)
        if generator.random() < 0.02:
            call("cuCtxSynchronize")
        least = min(least, free_bytes())
    for one in held:
        call("cuMemFreeAsync", one, None)
    call("cuCtxSynchronize")
    say(room=room, least=least, refused=refused, left=free_bytes())


main()
