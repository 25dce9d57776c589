"""Settings of a schema registry in a pipeline file."""

from __future__ import annotations

from pydantic import Field

from forebay.connectors.kafka.registry import Registry, registry_auth, require_registry
from forebay.errors import SettingError
from forebay.fields import HttpUrl, LocalPath, Model, SecretField


class RegistrySpec(Model):
    """The schema registry of values; it must support Confluent's protocol."""

    url: HttpUrl = Field(description="Address of the registry.")
    auth: SecretField | None = Field(
        None, description="Where `USER:PASSWORD` is: `{env: NAME}` or `{file: PATH}`; null: none is needed."
    )
    ca: LocalPath | None = Field(
        None,
        description="PEM file with the authorities that its certificate is checked against; null: the usual.",
    )

    def registry(self) -> Registry:
        return Registry(self.url, None if self.auth is None else self.auth.ref(), self.ca)

    def check(self, key: str) -> None:
        """Raise `SetupError` without the extra, `SettingError` if the secret is missing. `key`: the
        source's path.
        """
        require_registry()
        try:
            registry_auth(self.registry())
        except SettingError as error:
            raise SettingError(f"{key}.registry.auth: {error}") from None
