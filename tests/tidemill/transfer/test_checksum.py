"""Corrupted, misnamed or misshapen weights are noticed; order of the tensors is not."""

import numpy as np
import xxhash

from tidemill.transfer import Region, checksum
from tidemill.transfer.checksum import Summed
from tidemill.wire.trainer import Shard

TENSORS = (Summed("b", "float32", (2, 3), "00"), Summed("a", "float32", (6,), "11"))


def test_a_checksum_is_the_xxh3_128_of_the_bytes_wherever_they_lie() -> None:
    data = np.arange(1000, dtype=np.uint8)
    expected = xxhash.xxh3_128(data.tobytes()).hexdigest()
    assert checksum.of_bytes(data.tobytes()) == checksum.of_memory(data.ctypes.data, 1000) == expected


def test_the_digest_does_not_depend_on_the_order_in_which_tensors_are_given() -> None:
    assert checksum.digest(TENSORS) == checksum.digest(reversed(TENSORS))


def test_the_digest_changes_with_every_part_of_a_tensor() -> None:
    changed = [
        (TENSORS[0]._replace(name="c"), TENSORS[1]),
        (TENSORS[0]._replace(dtype="bfloat16"), TENSORS[1]),
        (TENSORS[0]._replace(shape=(3, 2)), TENSORS[1]),
        (TENSORS[0]._replace(checksum="01"), TENSORS[1]),
        TENSORS[:1],
    ]
    assert len({checksum.digest(TENSORS), *map(checksum.digest, changed)}) == len(changed) + 1


def test_one_flipped_bit_names_the_tensor_it_is_in() -> None:
    memory = np.arange(24, dtype=np.uint8)
    at = memory.ctypes.data
    shards = [Shard(name, "float32", (3,), offset, 12, checksum.of_memory(at + offset, 12)) for name, offset in (("a", 0), ("b", 12))]
    assert checksum.mismatches(shards, Region(at, 24)) == ()
    memory[13] ^= 1
    assert checksum.mismatches(shards, Region(at, 24)) == ("b",)
