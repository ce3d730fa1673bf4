"""Our objects on a real API server, in a namespace of their own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes import config
from kubernetes.client import ApiException, CustomObjectsApi

from tests.cluster.api_server import ApiServer
from tests.cluster.manifests.documents import Document


class Objects:
    """Our objects in one namespace. `dry` is checked and filled in by the server, and kept by nobody."""

    def __init__(self, api: CustomObjectsApi, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    def create(self, document: Document, dry: bool = False) -> Document:
        options = {"dry_run": "All"} if dry else {}
        made: Document = self._api.create_namespaced_custom_object(*self._place(document), document, field_validation="Strict", **options)
        return made

    def taken(self, document: Document) -> Document | None:
        """As the server would keep it, or None where it refuses the document for what it says."""
        try:
            return self.create(document, dry=True)
        except ApiException as cause:
            if cause.status not in (400, 422):
                raise
            return None

    def replace(self, document: Document) -> Document:
        made: Document = self._api.replace_namespaced_custom_object(
            *self._place(document), document["metadata"]["name"], document, field_validation="Strict"
        )
        return made

    def replace_status(self, document: Document) -> Document:
        made: Document = self._api.replace_namespaced_custom_object_status(*self._place(document), document["metadata"]["name"], document)
        return made

    def _place(self, document: Document) -> tuple[str, str, str, str]:
        return ("tidemill.dev", "v1alpha1", self.namespace, "gpucells" if document["kind"] == "GPUCell" else "rljobs")


@contextmanager
def objects_in_a_namespace(api_server: ApiServer) -> Iterator[Objects]:
    namespace = f"crds-{secrets.token_hex(4)}"
    api_server.make_namespace(namespace)
    with config.new_client_from_config(config_file=str(api_server.kubeconfig)) as client:
        yield Objects(CustomObjectsApi(client), namespace)
    api_server.delete_namespace(namespace)
