"""The exception for mistakes of the user."""


class UserError(Exception):
    """A mistake that the user can correct, such as an unknown op.

    Its text is one line that says what is wrong and what to do. The command line prints it and
    exits with code 2.
    """
