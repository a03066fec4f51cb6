"""Formats numbers and links for texts."""

from __future__ import annotations


def page(name: str) -> str:
    """Return the address of a page of the documentation."""
    return f"https://celery-lease.github.io/celery-lease/latest/{name}/"


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number of things in words: 1 lease, 2 leases; *things*: an irregular plural."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def plain(value: float) -> str:
    """Return a number of seconds for display, 300 rather than 300.0."""
    return f"{value:.12g}"


def sentence(text: str) -> str:
    """Return a part of a line as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text[-1:] in '.?!' else '.'}"


def storable(text: str) -> str:
    """Replace what some brokers refuse, as in a foreign id: half a surrogate pair, NUL."""
    return text.encode(errors="replace").decode().replace("\0", "")


def ordinal(number: int) -> str:
    """Return an ordinal number: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else endings.get(number % 10, 'th')}"
