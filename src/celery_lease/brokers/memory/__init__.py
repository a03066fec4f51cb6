"""Leases on kombu's in-memory transport, for tests and as an example of a driver.

``driver.py`` stands for the broker: it keeps the holder and the expiry of each message.
``channel.py`` is kombu's part: it receives, acknowledges and returns messages. Neither decides
anything. The broker is a dictionary of this process, so leases are held and reaped within it;
nothing survives the process, and no other process sees it.
"""
