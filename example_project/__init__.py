"""A small real application: worker processes pack directory trees into checked archives.

Packing takes long, is done chunk by chunk, and must come out right even if the machine that does it
disappears half-way: what leases are for. Start reading at :mod:`example_project.tasks`, or run
``python -m example_project.demo`` from the root of the repository.

============== ====================================================================================
celeryconfig   plain Celery settings, and the ``lease_*`` ones beside them
app            the Celery application, as any other
tasks          the leased task, and how it uses its fencing token
packer         the work: a deterministic archive of a tree, made chunk by chunk
sealing        the other work: a seal over a tree, which can go on where another worker stopped
jobdir         what a job keeps on disk: its fence, ledger, progress and manifest
demo           what to run: the options and the exit code
play, stage    broker, workers, the kill
rolling        the other scene: workers are restarted one after the other while jobs run
show, report   the live table, the last page
verdict        whether all was true
============== ====================================================================================
"""
