"""All clients of AWS in a process share what describes the services: each session reads it anew.

That is megabytes of JSON, and kombu and the driver take a session for each of their clients.
"""

from __future__ import annotations

import functools

import botocore.session

botocore.session.create_loader = functools.cache(botocore.session.create_loader)
