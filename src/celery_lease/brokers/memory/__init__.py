"""Leases on kombu's in-memory transport: for tests, and to show what a driver is made of.

``driver.py`` is the broker's side: who holds which message until when. ``channel.py`` is kombu's:
where messages arrive, are acknowledged and are given back. Both know as much of the broker as they
must and decide nothing. Here the broker is a dictionary of this process, so a lease lives and is
reaped within it; nothing survives the process, and no other one can see it.
"""
