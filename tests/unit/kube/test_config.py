import datetime as dt
import json
import os
import ssl
import stat
from pathlib import Path
from typing import Final

import pytest
import yaml

from hack.devnode import apiproxy, kubeconfig
from kubemend.common.kube import client, config, errors, library, paths
from kubemend.common.kube.library import config as loaders
from tests.control_plane import ControlPlane, Tenant
from tests.fakes.certificates import Authority

CREDENTIAL: Final = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://127.8.8.8", True),
        ("http://[::1]:1", True),
        ("https://localhost:6443", True),
        ("https://10.0.0.1", False),
        ("https://localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback_is_recognised(url: str, *, expected: bool) -> None:
    assert config.is_loopback(url) is expected


@pytest.mark.parametrize(
    ("url", "loaded"), [("http://127.0.0.1:1", False), ("https://127.0.0.1:1", True), ("http://10.0.0.1:1", True)]
)
async def test_plain_loopback_loads_no_authorities(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, *, loaded: bool
) -> None:
    """Another one may be reached by a proxy of the environment, with TLS."""
    trusting: list[ssl.SSLContext] = []

    def load(context: ssl.SSLContext) -> None:
        trusting.append(context)

    monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", load)
    session = await config.load(kubeconfig=kubeconfig.write(tmp_path / "client", server=url, token="t"))
    await session.close()
    assert bool(trusting) is loaded


async def test_environment_proxies_do_not_apply_to_loopback(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with tenant.client() as api:
        assert (await api.list(tenant.of("pods"))).items == []


async def test_kubeconfig_may_appear_late(control_plane: ControlPlane, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    async with client.connect(kubeconfig=path) as api:
        with pytest.raises(errors.NotConfiguredError, match="No such file"):
            await api.list(paths.PODS)
        async with apiproxy.ApiProxy(control_plane.kubeconfig, kubeconfig=path):
            assert (await api.get("/version"))["major"] == "1"


@pytest.mark.parametrize("text", ["", "{}", "not: [yaml", "[]", "text", "current-context: x\ncontexts: []\n", "\x00"])
async def test_broken_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    async with client.connect(kubeconfig=path) as api:
        with pytest.raises(errors.NotConfiguredError, match=str(path)):
            await api.list(paths.PODS)


async def test_new_credentials_are_read_after_a_401(tenant: Tenant, tmp_path: Path) -> None:
    path = tmp_path / "client"
    async with client.connect(kubeconfig=path) as api:
        kubeconfig.write(path, server=tenant.server.url, token="old")
        with pytest.raises(errors.UnauthorizedError):
            await api.list(paths.PODS)
        path.write_text(tenant.kubeconfig.read_text())
        assert (await api.list(tenant.of("pods"))).items == []


async def test_a_new_certificate_authority_is_read(control_plane: ControlPlane, tmp_path: Path) -> None:
    path, old = tmp_path / "client", tmp_path / "ca.crt"
    old.write_bytes(Authority.named("before the rotation").pem)
    (cluster,) = yaml.safe_load(control_plane.kubeconfig.read_text())["clusters"]
    kubeconfig.write(path, server=cluster["cluster"]["server"], token="t", certificate_authority=old)
    async with client.connect(kubeconfig=path) as api:
        with pytest.raises(errors.ApiUnavailableError, match="certificate verify failed"):
            await api.get("/version")
        path.write_text(control_plane.kubeconfig.read_text())
        assert (await api.get("/version"))["major"] == "1"


def with_plugin(path: Path, *, server: str, script: str) -> Path:
    """Write a kubeconfig whose credentials a plugin next to it provides."""
    plugin = path.with_name("plugin")
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(stat.S_IRWXU)
    use = f"exec: {{apiVersion: {CREDENTIAL['apiVersion']}, command: {plugin}}}"
    kubeconfig.write(path, server=server, token="unused")
    path.write_text(path.read_text().replace("token: unused", use))
    return path


async def test_credential_plugin_is_asked(tenant: Tenant, tmp_path: Path) -> None:
    answer = {**CREDENTIAL, "status": {"token": tenant.server.token}}
    path = with_plugin(tmp_path / "client", server=tenant.server.url, script=f"echo '{json.dumps(answer)}'")
    async with client.connect(kubeconfig=path) as api:
        assert (await api.list(tenant.of("pods"))).items == []


@pytest.mark.parametrize("command", ["./plugin", "../first/plugin"])
async def test_relative_plugin_is_in_the_directory_of_its_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As in client-go, which takes the directory of the file that has the user."""
    server, answer = "http://127.0.0.1:1", {**CREDENTIAL, "status": {"token": "t"}}
    path = with_plugin(tmp_path / "first" / "client", server=server, script=f"echo '{json.dumps(answer)}'")
    path.write_text(path.read_text().replace(str(path.with_name("plugin")), command))
    kubeconfig.write(tmp_path / "second" / "client", server=server, token="t")
    monkeypatch.chdir(tmp_path)
    files = os.pathsep.join(["first/client", "second/client"])
    await (await config.load(kubeconfig=None, environ={"KUBECONFIG": files})).close()


async def test_plugin_without_a_directory_is_searched_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_plugin(tmp_path / "client", server="http://127.0.0.1:1", script="")
    path.write_text(path.read_text().replace(str(path.with_name("plugin")), "plugin"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.NotConfiguredError, match=r"No such file .*'plugin'"):
        await config.load(kubeconfig=path)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'token has expired, run: cloud login' >&2; exit 255", "255.*token has expired, run: cloud login"),
        ("echo '{}'", "missing key 'apiVersion'"),
        (f"echo '{json.dumps({**CREDENTIAL, 'status': {}})}'", "missing token or clientCertificateData"),
    ],
)
async def test_failing_credential_plugin_is_named(tmp_path: Path, script: str, reason: str) -> None:
    """Without its credentials the server would refuse the user ``system:anonymous``, which is no help to people."""
    path = with_plugin(tmp_path / "client", server="http://127.0.0.1:1", script=script)
    for _ in range(2):
        with pytest.raises(errors.NotConfiguredError, match=f"{path} cannot be used: its credential plugin.*{reason}"):
            await config.load(kubeconfig=path)
    path.write_text(kubeconfig.write(tmp_path / "other", server="http://127.0.0.1:1", token="t").read_text())
    await (await config.load(kubeconfig=path)).close()


async def test_missing_credential_plugin_is_named(tmp_path: Path) -> None:
    path = with_plugin(tmp_path / "client", server="http://127.0.0.1:1", script="")
    (tmp_path / "plugin").unlink()
    with pytest.raises(errors.NotConfiguredError, match=r"its credential plugin failed: .* No such file .*/plugin"):
        await config.load(kubeconfig=path)


async def test_missing_service_account_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    async with client.connect() as api:
        with pytest.raises(errors.NotConfiguredError, match="the service account cannot be used"):
            await api.list(paths.PODS)


async def test_rotating_token_is_read_again_and_its_loss_reported(tmp_path: Path) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_text("of no interest here")
    loader = loaders.incluster_config.InClusterConfigLoader(
        token_filename=str(token),
        cert_filename=str(authority),
        environ={"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"},
    )
    loader._token_refresh_period = dt.timedelta(0)
    configuration = library.Configuration()
    loader.load_and_set(configuration)
    assert await config.credentials(configuration) == {"authorization": "bearer first"}
    token.write_text("second")
    assert await config.credentials(configuration) == {"authorization": "bearer second"}
    token.write_text("")
    with pytest.raises(errors.NotConfiguredError, match="the credentials cannot be used: Token file exists but empty"):
        await config.credentials(configuration)


def context(cluster: str, *, namespace: str = "") -> str:
    """Return the lists of a kubeconfig with one context."""
    return (
        f"clusters: [{{name: {cluster}, cluster: {{server: 'http://127.0.0.1:1/{cluster}'}}}}]\n"
        f"users: [{{name: {cluster}, user: {{token: t}}}}]\n"
        f"contexts: [{{name: {cluster}, context: {{cluster: {cluster}, user: {cluster}, namespace: '{namespace}'}}}}]\n"
    )


@pytest.mark.parametrize(
    ("first", "second", "cluster"),
    [
        ("current-context: b\n" + context("a"), context("b"), "b"),
        ("current-context: a\n" + context("a"), "current-context: b\n" + context("b"), "a"),
        (context("a"), "current-context: b\n" + context("b"), "b"),
        ("", "current-context: b\n" + context("b"), "b"),
    ],
)
async def test_several_kubeconfigs_are_one_as_for_kubectl(
    tmp_path: Path, first: str, second: str, cluster: str
) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    for file, text in zip(files, (first, second), strict=True):
        file.write_text(text or "{}\n")
    session = await config.load(kubeconfig=None, environ={"KUBECONFIG": ":".join(map(str, files))})
    await session.close()
    name, found = config.current_context(files)
    assert (name, found["cluster"]) == (cluster, cluster)
    configuration = library.Configuration()
    await config._load_files(files, configuration)
    assert configuration.host == f"http://127.0.0.1:1/{cluster}"


def test_kubeconfig_is_found_as_kubectl_finds_it(tmp_path: Path) -> None:
    path = tmp_path / ".kube" / "config"
    with pytest.raises(errors.NotConfiguredError, match="not in a pod, and no kubeconfig"):
        config.default_kubeconfigs({"HOME": str(tmp_path)})
    path.parent.mkdir()
    path.touch()
    assert config.default_kubeconfigs({"HOME": str(tmp_path)}) == [path]
    with pytest.raises(errors.NotConfiguredError):
        config.default_kubeconfigs({"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "other")})
