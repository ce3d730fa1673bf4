"""What users write and read: RLJob and GPUCell of `tidemill.dev/v1alpha1`, with the rules a schema cannot say."""

from tidemill.api.gpucell import GPUCell
from tidemill.api.loading import InvalidManifest, load_rljob, parse_rljob
from tidemill.api.rljob import RLJob

__all__ = ["GPUCell", "InvalidManifest", "RLJob", "load_rljob", "parse_rljob"]
