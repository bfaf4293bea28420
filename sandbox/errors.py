"""The one error a user of the sandbox sees: a sentence that says what to do."""


class SandboxError(Exception):
    """What was found, what was expected and what to do, in one sentence."""
