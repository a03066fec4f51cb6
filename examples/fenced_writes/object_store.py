"""Amazon S3, and stores with the same API: a conditional put of a manifest.

Each holder writes its data under a name with its token, so no holder overwrites another's data. A
manifest names the valid data. It is replaced only if it has not changed since it was read
(``If-Match``), or if there is none (``If-None-Match``). It contains the token, so that manifests of
different holders never have the same ETag, which is a checksum of the content.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from examples.fenced_writes import StaleError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Another holder has written (412) or is writing (409): read the manifest again.
CHANGED = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})


def write(s3: Any, bucket: str, job: str, token: int, value: bytes) -> None:
    """Write *value*; raise ``StaleError`` if a newer holder has written."""
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
    """Return the condition under which the manifest may be replaced."""
    try:
        found = s3.get_object(Bucket=bucket, Key=f"{job}/manifest")
    except s3.exceptions.NoSuchKey:
        return {"IfNoneMatch": "*"}
    if json.load(found["Body"])["token"] > token:
        raise StaleError(job, token)
    return {"IfMatch": found["ETag"]}
