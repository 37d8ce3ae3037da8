"""Converts the settings of Hadoop's client for an object store into options of the store, and
those of S3 back.

`pipeline.conf` has them for Spark (``spark.hadoop.fs.s3a.access.key``). Tidelog writes by a client
of its own, which must reach the store in the same way. Sources: Hadoop's "Connecting to an Amazon
S3 Bucket" and "Hadoop Azure Support: ABFS", the Cloud Storage connector's ``CONFIGURATION.md``.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

_SPARK: Final = "spark.hadoop."
_INSTEAD: Final = (
    "Tidelog's own client of the store has nothing like it: give the output `storage_options`, or "
    "{} that leave the rest to the environment (docs/how-to/spark.md)"
)
# By the last part of the class's name. Hadoop tries one provider after the other.
_KEYS: Final = (
    "TemporaryAWSCredentialsProvider",
    "SimpleAWSCredentialsProvider",
    "BasicAWSCredentialsProvider",
)
_ANONYMOUS: Final = ("AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider")
_ENVIRONMENT: Final = (  # where our client reads credentials by itself
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "ContainerCredentialsProvider",
    "WebIdentityTokenCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
)
_HADOOP_DEFAULT: Final = (*_KEYS[:2], *_ENVIRONMENT[:2])
_REGION: Final = re.compile(r"\bs3(?:-fips)?[.-](?:dualstack\.)?([a-z]+(?:-[a-z]+)+-\d+)\.")
_NO_REGION: Final = ("sdk", "ec2", "external")  # Hadoop's words for: determined elsewhere
_ENCRYPTION: Final = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}


def store_options(url: str, conf: Mapping[str, object]) -> dict[str, str]:
    """Return what ``pipeline.conf`` sets for the store at ``url``, under the names of
    `log.storage_options`; empty: nothing. Raises ValueError, without values, for a setting that is
    not supported.
    """
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    settings = {
        name.removeprefix(_SPARK): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in conf.items()
    }
    if scheme in ("s3", "s3a"):
        return _of_s3(host, settings)
    if scheme in ("abfs", "abfss"):
        return _of_azure(host.rpartition("@")[2], settings)
    return _of_gcs(settings) if scheme == "gs" else {}


def s3a_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of an S3 store, as of `log.storage_options`, as settings of Hadoop's client;
    empty: they are of another store, or leave all to the environment.
    """
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    found = {f"fs.s3a.{setting}": given[name] for name, setting in _S3A.items() if given.get(name)}
    if "fs.s3a.session.token" in found:
        found[_PROVIDER] = f"org.apache.hadoop.fs.s3a.{_KEYS[0]}"
    elif "fs.s3a.access.key" in found:
        found[_PROVIDER] = f"org.apache.hadoop.fs.s3a.{_KEYS[1]}"
    elif given.get("skip_signature", "").lower() == "true":
        found[_PROVIDER] = f"org.apache.hadoop.fs.s3a.{_ANONYMOUS[0]}"
    if endpoint := found.get("fs.s3a.endpoint"):
        by_host = given.get("virtual_hosted_style_request", "").lower() == "true"
        found["fs.s3a.path.style.access"] = str(not by_host).lower()
        if by_host:  # ours begins with the bucket, which Hadoop's client adds
            scheme, _, host = endpoint.rpartition("://")
            found["fs.s3a.endpoint"] = f"{scheme or 'https'}://{host.partition('.')[2]}"
    return found


_PROVIDER: Final = "fs.s3a.aws.credentials.provider"
_S3A: Final = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
}


# ------------------------------------------------ S3


def _of_s3(bucket: str, settings: Mapping[str, str]) -> dict[str, str]:
    if not any(name.startswith("fs.s3a.") for name in settings):
        return {}

    def get(name: str) -> str:
        everywhere = settings.get(f"fs.s3a.{name}", "")
        return settings.get(f"fs.s3a.bucket.{bucket}.{name}", everywhere).strip()

    found = _endpoint(
        bucket,
        get("endpoint"),
        secure=get("connection.ssl.enabled").lower() != "false",
        by_path=get("path.style.access").lower() == "true",
    )
    if (region := get("endpoint.region")) and region not in _NO_REGION:
        found["region"] = region
    providers = re.split(r"[,\s]+", get("aws.credentials.provider"))
    found |= _credentials(
        [name for name in providers if name],
        {
            "access_key_id": get("access.key"),
            "secret_access_key": get("secret.key"),
            "session_token": get("session.token"),
        },
    )
    if get("security.credential.provider.path") and "access_key_id" not in found:
        raise _unsupported("fs.s3a.security.credential.provider.path", "fs.s3a.* settings")
    if host := get("proxy.host"):
        user, password = quote(get("proxy.username"), ""), quote(get("proxy.password"), "")
        port = f":{get('proxy.port')}" if get("proxy.port") else ""
        found["proxy_url"] = f"http://{f'{user}:{password}@' if user else ''}{host}{port}"
    if get("requester.pays.enabled").lower() == "true":
        found["request_payer"] = "true"
    if how := get("encryption.algorithm") or get("server-side-encryption-algorithm"):
        if how not in _ENCRYPTION:
            raise _unsupported(f"fs.s3a.encryption.algorithm: {how}", "fs.s3a.* settings")
        found["server_side_encryption"] = _ENCRYPTION[how]
        if key := get("encryption.key") or get("server-side-encryption.key"):
            found["sse_kms_key_id"] = key
    return found


def _endpoint(bucket: str, endpoint: str, *, secure: bool, by_path: bool) -> dict[str, str]:
    if not endpoint:
        return {}
    if "://" not in endpoint:
        endpoint = f"{'https' if secure else 'http'}://{endpoint}"
    endpoint = endpoint.rstrip("/")
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if host == "s3.amazonaws.com" and parts.scheme == "https":
        return {}  # the endpoint of all regions
    found = {"endpoint": endpoint}
    if parts.scheme == "http":
        found["allow_http"] = "true"
    if region := _REGION.search(host):
        found["region"] = region[1]
    elif not by_path and not _is_address(host) and ".amazonaws.com" not in host:
        # As the SDK addresses such a store: the bucket is a part of the host's name.
        found["endpoint"] = f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}"
        found["virtual_hosted_style_request"] = "true"
    return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _credentials(providers: list[str], keys: Mapping[str, str]) -> dict[str, str]:
    for provider in providers or _HADOOP_DEFAULT:
        name = provider.rpartition(".")[2]
        if name in _ANONYMOUS:
            return {"skip_signature": "true"}
        if name in _ENVIRONMENT:
            return {}
        if name not in _KEYS:
            raise _unsupported(f"fs.s3a.aws.credentials.provider: {name}", "providers")
        asks_for_token = name == "TemporaryAWSCredentialsProvider"
        given = {option: key for option, key in keys.items() if key}
        if not asks_for_token:
            given.pop("session_token", None)
        if len(given) == (3 if asks_for_token else 2):
            return given
    return {}


# ------------------------------------------------ Azure


def _of_azure(host: str, settings: Mapping[str, str]) -> dict[str, str]:
    def get(name: str) -> str:
        name = f"fs.azure.{name}"
        return settings.get(f"{name}.{host}", settings.get(name, "")).strip()

    how = get("account.auth.type").lower() or "sharedkey"
    if how == "sharedkey":
        provider = get("account.keyprovider")
        if provider and not provider.endswith(".SimpleKeyProvider"):
            raise _unsupported("fs.azure.account.keyprovider", "fs.azure.* settings")
        return _present(account_key=get("account.key"))
    if how == "sas":
        if not (token := get("sas.fixed.token")):
            raise _unsupported("fs.azure.sas.token.provider.type", "fs.azure.* settings")
        return {"sas_key": token.removeprefix("?")}
    if how != "oauth":
        raise _unsupported(f"fs.azure.account.auth.type: {how}", "fs.azure.* settings")
    client = get("account.oauth2.client.id")
    provider = get("account.oauth.provider.type").rpartition(".")[2]
    if provider == "ClientCredsTokenProvider":
        endpoint = urlsplit(get("account.oauth2.client.endpoint"))
        return _present(
            client_id=client,
            client_secret=get("account.oauth2.client.secret"),
            tenant_id=endpoint.path.strip("/").partition("/")[0],
            authority_host=f"{endpoint.scheme}://{endpoint.netloc}" if endpoint.netloc else "",
        )
    if provider == "MsiTokenProvider":
        return _present(client_id=client)
    if provider == "WorkloadIdentityTokenProvider":
        return _present(
            client_id=client,
            tenant_id=get("account.oauth2.msi.tenant"),
            federated_token_file=get("account.oauth2.token.file"),
        )
    raise _unsupported(f"fs.azure.account.oauth.provider.type: {provider}", "fs.azure.* settings")


# ------------------------------------------------ Google Cloud Storage


def _of_gcs(settings: Mapping[str, str]) -> dict[str, str]:
    def get(name: str) -> str:
        former = settings.get(f"google.cloud.{name}", "")
        return settings.get(f"fs.gs.{name}", former).strip()

    how = get("auth.type").upper()
    if how in ("", "SERVICE_ACCOUNT_JSON_KEYFILE"):
        if key_file := get("auth.service.account.json.keyfile"):
            return {"service_account": key_file}
        email = get("auth.service.account.email")
        key = get("auth.service.account.private.key").replace("\\n", "\n")
        if email and key:
            names = ("client_email", "private_key_id", "private_key")
            parts = (email, get("auth.service.account.private.key.id"), key)
            return {"service_account_key": json.dumps(dict(zip(names, parts, strict=True)))}
        return {}
    if how in ("APPLICATION_DEFAULT", "COMPUTE_ENGINE"):
        return {}
    if how == "UNAUTHENTICATED":
        return {"skip_signature": "true"}
    raise _unsupported(f"fs.gs.auth.type: {how}", "fs.gs.* settings")


def _present(**options: str) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}


def _unsupported(setting: str, others: str) -> ValueError:
    return ValueError(f"pipeline.conf has {setting}. {_INSTEAD.format(others)}")
