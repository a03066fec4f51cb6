"""Test support: real servers and real workers as local processes, and a ledger of what ran.

Everything listens on 127.0.0.1 or a unix socket, keeps its files in a temporary directory, and
ends with the fixture that started it. A test asserts on the ledger and the broker, never on mocks.
"""
