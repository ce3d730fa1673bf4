"""What users write and read: RLJob and GPUCell of `tidemill.dev/v1alpha1`, with the rules a schema cannot say."""

from tidemill.api.gpucell import GPUCell
from tidemill.api.loading import InvalidManifest, gpucell_of, load_rljob, parse_rljob, rljob_of
from tidemill.api.rljob import RLJob

__all__ = ["GPUCell", "InvalidManifest", "RLJob", "gpucell_of", "load_rljob", "parse_rljob", "rljob_of"]
