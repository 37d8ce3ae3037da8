"""Settings of Hadoop's clients, and what they are for ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import obstore.store
import pytest

from tidelog.config import Config, parse_config
from tidelog.errors import ConfigError
from tidelog.outputs.base.hadoop_settings import s3a_settings, store_options

S3 = "s3a://lake/t"
AZURE = "abfss://box@acct.dfs.core.windows.net/lake"
KEYS = {"fs.s3a.access.key": "id", "fs.s3a.secret.key": "secret"}
OUR_KEYS = {"access_key_id": "id", "secret_access_key": "secret"}
HADOOP = "org.apache.hadoop.fs.s3a"
GCS_KEY = {"client_email": "a@b", "private_key_id": "7", "private_key": "-----\nx"}


def provider(*names: str) -> dict[str, str]:
    return {"fs.s3a.aws.credentials.provider": ", ".join(names)}


def of(url: str, settings: dict[str, Any]) -> dict[str, str]:
    found = store_options(url, {f"spark.hadoop.{name}": each for name, each in settings.items()})
    scheme = {"s3": obstore.store.S3Store, "ab": obstore.store.AzureStore}.get(url[:2])
    client = {"allow_http", "proxy_url"}
    if scheme is not None:  # it knows each option's name
        config: Any = {name: each for name, each in found.items() if name not in client}
        scheme.from_url(url, config=config)
    return found


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"fs.s3a.retry.limit": 3}, {}),
        (KEYS, OUR_KEYS),
        ({**KEYS, "fs.s3a.session.token": "t"}, {**OUR_KEYS, "session_token": "t"}),
        ({**KEYS, "fs.s3a.bucket.lake.access.key": "its"}, {**OUR_KEYS, "access_key_id": "its"}),
        ({**KEYS, "fs.s3a.bucket.other.access.key": "its"}, OUR_KEYS),
        (
            {"fs.s3a.endpoint": "10.0.0.1:9000", "fs.s3a.connection.ssl.enabled": False},
            {"endpoint": "http://10.0.0.1:9000", "allow_http": "true"},
        ),
        (
            {"fs.s3a.endpoint": "https://minio.x/", "fs.s3a.path.style.access": True},
            {"endpoint": "https://minio.x"},
        ),
        (
            {"fs.s3a.endpoint": "obs.x:443"},
            {"endpoint": "https://lake.obs.x:443", "virtual_hosted_style_request": "true"},
        ),
        (
            {"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"},
            {"endpoint": "https://s3.eu-central-1.amazonaws.com", "region": "eu-central-1"},
        ),
        (
            {"fs.s3a.endpoint": "s3.amazonaws.com", "fs.s3a.endpoint.region": "eu-west-1"},
            {"region": "eu-west-1"},
        ),
        ({"fs.s3a.endpoint.region": "sdk"}, {}),
        (
            {**KEYS, **provider(f"{HADOOP}.AnonymousAWSCredentialsProvider")},
            {"skip_signature": "true"},
        ),
        ({**KEYS, **provider(f"{HADOOP}.auth.IAMInstanceCredentialsProvider")}, {}),
        (
            {
                **KEYS,
                **provider(*(f"x.{n}AWSCredentialsProvider" for n in ("Temporary", "Simple"))),
            },
            OUR_KEYS,
        ),
        (
            {
                f"fs.s3a.proxy.{name}": each
                for name, each in {
                    "host": "p",
                    "port": 3128,
                    "username": "u@x",
                    "password": "/",
                }.items()
            },
            {"proxy_url": "http://u%40x:%2F@p:3128"},
        ),
        (
            {"fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn"},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn"},
        ),
        ({"fs.s3a.requester.pays.enabled": "true"}, {"request_payer": "true"}),
    ],
)
def test_settings_of_s3(settings: dict[str, Any], options: dict[str, str]) -> None:
    assert of(S3, settings) == of("s3://lake/t", settings) == options


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"account.key": "a2V5"}, {"account_key": "a2V5"}),
        ({"account.key.acct.dfs.core.windows.net": "a2V5"}, {"account_key": "a2V5"}),
        ({"account.key.other.dfs.core.windows.net": "a2V5"}, {}),
        ({"account.auth.type": "SAS", "sas.fixed.token": "?sig=s"}, {"sas_key": "sig=s"}),
        (
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": "x.ClientCredsTokenProvider",
                "account.oauth2.client.id": "c",
                "account.oauth2.client.secret": "s",
                "account.oauth2.client.endpoint": "https://login.x/tenant/oauth2/token",
            },
            {
                "client_id": "c",
                "client_secret": "s",
                "tenant_id": "tenant",
                "authority_host": "https://login.x",
            },
        ),
        (
            {"account.auth.type": "OAuth", "account.oauth.provider.type": "x.MsiTokenProvider"},
            {},
        ),
        (
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": "x.WorkloadIdentityTokenProvider",
                "account.oauth2.client.id": "c",
                "account.oauth2.msi.tenant": "t",
                "account.oauth2.token.file": "/t",
            },
            {"client_id": "c", "tenant_id": "t", "federated_token_file": "/t"},
        ),
    ],
)
def test_settings_of_azure(settings: dict[str, str], options: dict[str, str]) -> None:
    assert of(AZURE, {f"fs.azure.{name}": each for name, each in settings.items()}) == options


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"fs.gs.auth.service.account.json.keyfile": "/k"}, {"service_account": "/k"}),
        ({"google.cloud.auth.service.account.json.keyfile": "/k"}, {"service_account": "/k"}),
        ({"fs.gs.auth.type": "APPLICATION_DEFAULT"}, {}),
        ({"fs.gs.auth.type": "UNAUTHENTICATED"}, {"skip_signature": "true"}),
        (
            {
                "fs.gs.auth.service.account.email": "a@b",
                "fs.gs.auth.service.account.private.key.id": "7",
                "fs.gs.auth.service.account.private.key": "-----\\nx",
            },
            {"service_account_key": json.dumps(GCS_KEY)},
        ),
    ],
)
def test_settings_of_gcs(settings: dict[str, str], options: dict[str, str]) -> None:
    assert of("gs://lake/t", settings) == options


@pytest.mark.parametrize(
    ("url", "settings", "says"),
    [
        (S3, provider(f"{HADOOP}.auth.AssumedRoleCredentialProvider"), "AssumedRole"),
        (S3, {"fs.s3a.security.credential.provider.path": "jceks://x"}, "credential.provider.path"),
        (S3, {"fs.s3a.encryption.algorithm": "SSE-C"}, "fs.s3a.encryption.algorithm: SSE-C"),
        (AZURE, {"fs.azure.account.auth.type": "Custom"}, "fs.azure.account.auth.type: custom"),
        (AZURE, {"fs.azure.account.keyprovider": "x.Shell"}, "fs.azure.account.keyprovider"),
        ("gs://lake/t", {"fs.gs.auth.type": "USER_CREDENTIALS"}, "fs.gs.auth.type: USER"),
    ],
)
def test_a_setting_that_our_client_has_not_is_named(
    url: str, settings: dict[str, str], says: str
) -> None:
    with pytest.raises(ValueError, match=f"pipeline.conf has .*{says}.*`storage_options`"):
        of(url, {**KEYS, **settings} if url == S3 and "aws" in str(settings) else settings)


def configured(directory: Path, output: dict[str, Any], conf: dict[str, str]) -> Config:
    document = {
        "source": {"kind": "postgres", "url": "postgresql://u@h/d"},
        "log": {"path": "log"},
        "pipeline": {"conf": {f"spark.hadoop.{name}": each for name, each in conf.items()}},
        "outputs": [output],
    }
    return parse_config(json.dumps(document), "test", directory, {})


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_an_output_s_own_options_go_before_those_of_pipeline_conf(
    tmp_path: Path, kind: str
) -> None:
    def options(own: dict[str, str], path: str = S3) -> dict[str, str]:
        output = {"kind": kind, "path": path, "storage_options": own}
        found: Any = configured(tmp_path, output, KEYS).outputs[0]
        assert "secret'" not in repr(found)
        return dict(found.options())

    assert options({}) == OUR_KEYS
    assert options({"region": "eu-west-1"}) == {"region": "eu-west-1"}
    assert options({}, "lake") == {}


def test_a_setting_that_can_not_be_had_is_reported_with_the_configuration(tmp_path: Path) -> None:
    conf = {**KEYS, **provider("x.AssumedRoleCredentialProvider")}
    with pytest.raises(ConfigError, match=r"outputs: .*AssumedRoleCredentialProvider"):
        configured(tmp_path, {"kind": "delta", "path": S3}, conf)


@pytest.mark.parametrize(
    "options",
    [
        {},
        OUR_KEYS,
        {**OUR_KEYS, "session_token": "t", "region": "eu-central-1"},
        {**OUR_KEYS, "endpoint": "http://10.0.0.1:9000", "allow_http": "true"},
        {"endpoint": "https://lake.store.example", "virtual_hosted_style_request": "true"},
        {"skip_signature": "true"},
    ],
)
def test_options_of_s3_say_the_same_to_hadoop(options: dict[str, str]) -> None:
    """For Iceberg, whose library writes metadata with Hadoop's client."""
    assert of(S3, s3a_settings(options)) == options


def test_names_as_in_the_environment_are_understood() -> None:
    options = {"AWS_ACCESS_KEY_ID": "id", "aws_secret_access_key": "secret"}
    assert s3a_settings(options) == s3a_settings(OUR_KEYS)
