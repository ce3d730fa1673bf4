"""Gives every claim for storage a fresh folder of this machine. All nodes share the machine, so such a volume can be mounted on several at once."""

from __future__ import annotations

import threading
from pathlib import Path

from kubernetes import config
from kubernetes.client import ApiException, CoreV1Api, V1PersistentVolumeClaim
from urllib3.exceptions import HTTPError

_INTERVAL_SECONDS = 0.3


class Provisioner:
    """A thread that looks for claims without a volume."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._api = CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            try:
                for claim in self._api.list_persistent_volume_claim_for_all_namespaces().items:
                    if claim.status.phase == "Pending" and not claim.spec.volume_name:
                        self._provide(claim)
            except (ApiException, HTTPError):  # the API server is down, or somebody was faster: the next round sees what is left to do
                continue

    def _provide(self, claim: V1PersistentVolumeClaim) -> None:
        name = f"folder-{claim.metadata.uid}"
        place = self._folder / claim.metadata.namespace / claim.metadata.name / claim.metadata.uid
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)  # whatever user a pod has
        spec = {
            "capacity": {"storage": claim.spec.resources.requests["storage"]},
            "accessModes": claim.spec.access_modes,
            "storageClassName": claim.spec.storage_class_name or "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid},
            "hostPath": {"path": str(place)},
        }
        try:
            self._api.create_persistent_volume({"metadata": {"name": name}, "spec": spec})
        except ApiException as refused:
            if refused.status != 409:  # made in an earlier round, and not yet bound
                raise
