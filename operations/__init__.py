"""pyinfra operations: one module per thing owned.

Each operation takes the planned changes of its area, executes them on the host and reports them
by their ids; with nothing to change it is a no-op. What to change is decided in `rules`, what is
there is learned in `facts`, and the host-side work is done by ``files/agent``.
"""
