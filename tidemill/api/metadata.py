"""What of a Kubernetes object's metadata the product reads. The server keeps the rest to itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidemill.api.model import Identifier, Model, Text

# 40, because a StatefulSet's name plus its revision's hash must fit a label of 63, and "-conductor" is added. A letter first, as Services ask.
JobName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", max_length=40)]
CellName = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]


class Metadata(Model):
    namespace: Identifier = Field("", description="Namespace on a cluster; not used on one machine.")
    labels: dict[str, str] = Field({}, description="Labels, as on every Kubernetes object.")
    annotations: dict[str, str] = Field({}, description="Annotations, as on every Kubernetes object.")
    uid: Identifier = Field("", description="Set by the API server: this object and no other of the same name.")
    resource_version: Identifier = Field("", description="Set by the API server: changes at every write.")
    generation: int = Field(0, description="Set by the API server: grows when the spec changes.")
    creation_timestamp: Text = Field("", description="Set by the API server: when the object was made, RFC 3339.")
    deletion_timestamp: Text = Field("", description="Set by the API server: the object is being deleted.")


class JobMetadata(Metadata):
    name: JobName = Field(description="Name of the job: lower-case letters, digits and dashes, a letter first, at most 40 characters.")


class CellMetadata(Metadata):
    name: CellName = Field(description="Name of the cell: the job's name, then cell-N or standalone-N.")
