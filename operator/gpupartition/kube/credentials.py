"""Where the API server is and who we are there: kubeconfig or service account, kept fresh while tokens rotate."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from yaml import YAMLError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubernetes.aio.config.kube_config import KubeConfigLoader

log = logging.getLogger(__name__)

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# One line of a watch is one object: etcd takes 1.5 MiB and JSON is wordier than what it stores. aiohttp accepts twice this.
_LONGEST_LINE: Final = 4 * 2**20
_FRESH: Final = 60.0  # seconds between two looks whether a token has expired, as kubernetes' own client takes them


class Credentials:
    """A server and a way in. Its sessions put the current token on each request, so they outlive its rotation."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._tls = self._tls_context() if self.server.startswith("https:") else None
        self._proxy = self._configuration.proxy or self._proxy_of_the_environment()

    @property
    def server(self) -> str:
        """URL of the API server, without a slash at its end."""
        return str(self._configuration.host).rstrip("/")

    def session(self, user_agent: str) -> aiohttp.ClientSession:
        """Open one more session with these credentials; whoever asks for it closes it."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True),
            headers={"User-Agent": user_agent, "Accept": "application/json"},
            middlewares=(self._authorize,),
            proxy=self._proxy,
            read_bufsize=_LONGEST_LINE,
        )

    async def _authorize(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        try:
            token = (await self._configuration.auth_settings()).get("BearerToken")
        except (ConfigException, OSError) as error:  # for our callers, and for those of a framework, one more cut line
            raise aiohttp.ClientConnectionError(f"nothing was sent, there is no token: {error}") from error
        if token and token["value"]:
            request.headers["Authorization"] = token["value"].strip()
        if self._configuration.tls_server_name:
            request.server_hostname = self._configuration.tls_server_name
        return await send(request)

    def _proxy_of_the_environment(self) -> str | None:
        """Asked for once: with `trust_env`, aiohttp asks for each request, in a thread, and in another one for ~/.netrc."""
        server = urlsplit(self.server)
        return None if proxy_bypass(server.hostname or "") else getproxies().get(server.scheme)

    def _tls_context(self) -> ssl.SSLContext:
        given = self._configuration
        try:
            context = ssl.create_default_context(cafile=given.ssl_ca_cert)
            if given.cert_file:
                context.load_cert_chain(given.cert_file, given.key_file)
        except OSError as error:  # ssl's own errors are some of those, and name no file
            files = ", ".join(filter(None, (given.ssl_ca_cert, given.cert_file, given.key_file)))
            raise ConfigException(f"no certificates and key as PEM in {files}: {error}") from error
        if not given.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # Authorities of many clusters lack extensions that Python 3.13 began to insist on; kubectl does not ask for them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


@asynccontextmanager
async def credentials(kubeconfig: Path | str | None = None, context: str | None = None) -> AsyncIterator[Credentials]:
    """Find the way in: the file given, else the pod's service account, else ``$KUBECONFIG`` or ``~/.kube/config``.

    Raises FileNotFoundError where there is none, kubernetes' ConfigException where it makes no sense.
    """
    configuration = Configuration()
    if kubeconfig is None and context is None and _in_a_pod():
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        yield Credentials(configuration)
        return
    files = str(kubeconfig or os.environ.get("KUBECONFIG") or Path("~", ".kube", "config"))
    if not _exists(files):
        raise FileNotFoundError(f"no kubeconfig at {files}: name one, set KUBECONFIG, or run in a pod with an account")
    try:
        # Not persisted: a refreshed token belongs to this process, the file to its owner.
        loader: KubeConfigLoader = await config.load_kube_config(  # type: ignore[no-untyped-call]
            files, context=context, client_configuration=configuration, persist_config=False
        )
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigException(f"{files} is no kubeconfig: {' '.join(str(error).split())}") from error
    except TypeError as error:  # the loader's answer to YAML that is something else
        raise ConfigException(f"{files} is no kubeconfig: a mapping with clusters, users and contexts") from error
    refreshing = asyncio.create_task(keep_fresh(loader, configuration)) if _expires(loader) else None
    try:
        yield Credentials(configuration)
    finally:
        if refreshing is not None:
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing


async def keep_fresh(loader: KubeConfigLoader, configuration: Configuration) -> None:
    """Ask for another token whenever the one that there is has expired, until cancelled; what fails is tried again.

    kubernetes' own `refresh_token` ends, without a word, when a cloud is out of reach once, or a plugin fails at the start.
    """
    while True:
        await asyncio.sleep(_FRESH)
        try:
            # The loader asks only when the token has expired; of a plugin that fails it has logged why.
            why = "" if await _load(loader) else "the plugin that the kubeconfig names has given none"
        except Exception as error:  # noqa: BLE001 - whatever a cloud's library raises
            why = str(error) or type(error).__name__
        if why:
            log.warning("the token was not refreshed: %s (trying again in %g s)", why, _FRESH)
        elif token := getattr(loader, "token", None):  # a plugin may give certificates instead
            configuration.api_key["BearerToken"] = token


async def _load(loader: KubeConfigLoader) -> object:
    return await (loader.load_gcp_token() if loader.provider == "gcp" else loader.load_from_exec_plugin())  # type: ignore[no-untyped-call]


def _in_a_pod() -> bool:
    return _SERVICE_ACCOUNT.exists() and "KUBERNETES_SERVICE_HOST" in os.environ


def _exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)


def _expires(loader: KubeConfigLoader) -> bool:
    """Tell whether the token is a short-lived one, from a plugin or from a cloud's own provider."""
    user = loader._user  # noqa: SLF001 - the loader has no public way to ask, and its own refresh reads the same
    return loader.provider == "gcp" or (user is not None and "exec" in user)
