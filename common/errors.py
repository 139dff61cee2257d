"""The one exception that stands for a mistake of the user."""


class UserError(Exception):
    """Report something that the user can mend.

    Its text is one line that says what is wrong and what to do; the command line prints it and
    exits with code 2.
    """
