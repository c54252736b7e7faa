"""Imported only inside a step's body."""


def triple(number: int) -> int:
    return number * 3
