"""Loops that resume where the last run of their task stopped: ``context.iterate``.

:mod:`.loop` is the loop, :mod:`.sources` its items, :mod:`.places` the places of a task's loops,
and :mod:`.cursors` the stored form of cursors. Places are stored in the task's checkpoint.
"""
