"""A few dozen plans that hold the best under any preference: estimates of all branches, the best of them built."""
