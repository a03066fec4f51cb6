"""Amazon S3, and what speaks like it: a conditional put, on a manifest.

Each holder writes its data under a name of its own token, so nobody spoils another's. What counts
is the manifest that names the valid data. It is replaced only if it is still the one that was
looked at (``If-Match``), or not there (``If-None-Match``). It holds the token, so that two of
different holders never have the same ETag, which is a checksum of the content.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from examples.fenced_writes import StaleError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Somebody was faster (412), or is writing at this moment (409): look again.
CHANGED = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})


def write(s3: Any, bucket: str, job: str, token: int, value: bytes) -> None:
    """Write *value* unless a newer holder was here; that is a ``StaleError``."""
    data = f"{job}/{token}"
    s3.put_object(Bucket=bucket, Key=data, Body=value)
    manifest = json.dumps({"token": token, "data": data}).encode()
    while True:
        condition = _look(s3, bucket, job, token)
        try:
            s3.put_object(Bucket=bucket, Key=f"{job}/manifest", Body=manifest, **condition)
        except ClientError as error:
            if error.response["Error"]["Code"] not in CHANGED:
                raise
        else:
            return


def read(s3: Any, bucket: str, job: str) -> tuple[int, bytes]:
    """Return the token and the value of the newest holder that has written."""
    manifest = json.load(s3.get_object(Bucket=bucket, Key=f"{job}/manifest")["Body"])
    data: bytes = s3.get_object(Bucket=bucket, Key=manifest["data"])["Body"].read()
    return manifest["token"], data


def _look(s3: Any, bucket: str, job: str, token: int) -> Mapping[str, str]:
    """Return the condition by which the manifest may be replaced, as far as it may."""
    try:
        found = s3.get_object(Bucket=bucket, Key=f"{job}/manifest")
    except s3.exceptions.NoSuchKey:
        return {"IfNoneMatch": "*"}
    if json.load(found["Body"])["token"] > token:
        raise StaleError(job, token)
    return {"IfMatch": found["ETag"]}
