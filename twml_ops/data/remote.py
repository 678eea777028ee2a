"""Objects of S3 and of Google Cloud Storage, read by Arrow: `s3://bucket/key`, `gs://bucket/key`.

Credentials, the region and the address of another store than Amazon's come from the environment, as
the tools of Amazon and Google read it.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twml_ops.data.errors import DataError, one_line

if TYPE_CHECKING:
    from pyarrow import fs

SCHEMES = ("s3", "gs")
_CONNECT_SECONDS, _REQUEST_SECONDS, _ATTEMPTS = 10, 30, 4
_GCS_RETRY = datetime.timedelta(seconds=15)
_LONGEST = 300  # characters of a message of a store
_LOOK_LIKE_ACCESS = re.compile(
    r"ACCESS_DENIED|FORBIDDEN|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|INVALID_SIGNATURE|"
    r"SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT|EXPIRED_TOKEN|ExpiredToken|"
    r"MISSING_AUTHENTICATION|HTTP status 40[13]|PERMISSION_DENIED|UNAUTHENTICATED|[Cc]redentials",
)
_LOOK_LIKE_NETWORK = re.compile(
    r"NETWORK_CONNECTION|REQUEST_TIMEOUT|curlCode|Could ?n.t (connect|resolve)|UNAVAILABLE|"
    r"SLOW_DOWN|SERVICE_UNAVAILABLE|DEADLINE_EXCEEDED|CURL error|[Rr]etry policy exhausted",
)
_LOOK_LIKE_REGION = re.compile(r"HTTP status 301|PermanentRedirect|AuthorizationHeaderMalformed")


def is_remote(path: str) -> bool:
    """Whether a path is a URI of a store of objects."""
    return path.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def key_of(uri: str) -> str:
    """Bucket and key of a URI, which are taken literally."""
    return uri.partition("://")[2].rstrip("/")


def store_of(uri: str) -> fs.FileSystem:
    """The file system of a URI; nothing is read, but perhaps the region of its bucket.

    Raises:
        FileNotFoundError: there is no such bucket.
        DataError: the URI names no bucket, the store cannot be reached, or this Arrow cannot do it.
    """
    scheme, _, rest = uri.partition("://")
    bucket = rest.partition("/")[0]
    if not bucket:
        raise DataError(f"{uri}: expected {scheme}://BUCKET/PATH")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    unsigned = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes")
    try:
        if scheme == "gs":
            return _gcs()
        if not endpoint and not region:
            region = _region(bucket)
        return _s3(endpoint, region, unsigned)
    except (ImportError, AttributeError) as e:
        what = f"this pyarrow {pa.__version__} was built without it, the wheels of PyPI have it"
        raise DataError(f"{uri}: {what}: {one_line(e)}") from None
    except (OSError, pa.ArrowException) as e:
        raise explained(uri, e) from e


@functools.lru_cache
def _region(bucket: str) -> str:
    from pyarrow import fs

    return str(fs.resolve_s3_region(bucket))


@functools.lru_cache
def _s3(endpoint: str | None, region: str | None, unsigned: bool) -> fs.FileSystem:
    from pyarrow import fs

    options: dict[str, Any] = {"endpoint_override": endpoint} if endpoint else {}
    if region:
        options["region"] = region
    if unsigned:
        options["anonymous"] = True
    return fs.S3FileSystem(
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **options,
    )


@functools.lru_cache
def _gcs() -> fs.FileSystem:
    from pyarrow import fs

    return fs.GcsFileSystem(retry_time_limit=_GCS_RETRY)


def is_of_store(error: Exception) -> bool:
    """Whether an error is of a request to a store, not of the content of a file."""
    return isinstance(error, OSError) and bool(re.search("AWS Error|google::cloud", str(error)))


def explained(uri: str, error: Exception) -> Exception:
    """The error of a store as one that names the URI and says what to do."""
    text = one_line(error)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    bucket = uri.partition("://")[2].partition("/")[0]
    if "NO_SUCH_BUCKET" in text or re.search(r"[Bb]ucket '.*' not found", text):
        return FileNotFoundError(f"{uri}: there is no bucket `{bucket}`")
    if isinstance(error, FileNotFoundError) or "NO_SUCH_KEY" in text:
        return FileNotFoundError(f"{uri}: no such object")
    if _LOOK_LIKE_NETWORK.search(text):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        where = f" at AWS_ENDPOINT_URL={endpoint}" if endpoint and uri.startswith("s3:") else ""
        account = " and GOOGLE_APPLICATION_CREDENTIALS" if "access token" in text else ""
        return DataError(
            f"{uri}: the store cannot be reached{where}; check the network{account}, or copy the "
            f"data to this machine: {text}"
        )
    if _LOOK_LIKE_ACCESS.search(text):
        how = (
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the role of the machine; "
            "AWS_SKIP_SIGNATURE=1 for a public bucket"
            if uri.startswith("s3:")
            else "GOOGLE_APPLICATION_CREDENTIALS or the account of the machine"
        )
        return DataError(
            f"{uri}: access is denied; credentials come from the environment ({how}): {text}"
        )
    if _LOOK_LIKE_REGION.search(text):
        return DataError(f"{uri}: the bucket is in another region; set AWS_REGION: {text}")
    return DataError(f"{uri}: cannot be read: {text}")
