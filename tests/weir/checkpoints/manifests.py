"""Manifests for tests of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

from weir.protocol.checkpoints.manifest import FileRef, GroupPlace, Manifest, StoreImage, SubtaskPart
from weir.protocol.routing import RoutingTable
from weir.types import SubtaskId


def manifest_of(checkpoint_id: int, files: Iterable[FileRef] = (), generation: int = 1) -> Manifest:
    """A checkpoint of a job with one subtask, whose one image has these files."""
    image = StoreImage(f"image-{checkpoint_id}", {f"{n}.sst": file for n, file in enumerate(files)})
    part = SubtaskPart(
        SubtaskId(1, 0),
        {0: GroupPlace(image.image_id)},
        (image,),
        operators={"source": {"row": 17}},
        new_bytes=5,
    )
    return Manifest(
        checkpoint_id=checkpoint_id,
        job_name="job",
        fingerprint="f00d",
        generation=generation,
        created_ms=1,
        job_start_us=2,
        max_parallelism=2,
        stages={1: (0,)},
        routing={1: RoutingTable(1, 1, (0,), (0, 0), (1, 1))},
        parts=(part,),
        operator_names={1: ("count",)},
        state_ids={"count": 3},
    )
