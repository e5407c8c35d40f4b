"""The access of a subtask to the stores of peers, and to images of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from weir.state.images.image_client import is_image
from weir.state.placement.remote import Connect, RemoteStateClient


class Peers:
    """Clients by address, made at first use. Not thread-safe: the lock of the subtask's state guards it."""

    def __init__(self, connect: Connect, epochs: Mapping[int, int]) -> None:
        """``connect`` makes the client of a peer, or of images; ``epochs`` are the owner's and change."""
        self._connect = connect
        self._epochs = epochs
        self._clients: dict[str, RemoteStateClient] = {}

    def client(self, address: str) -> RemoteStateClient:
        """The client of an address, with this subtask's owner epochs.

        Raises:
            CheckpointError, StateError: an image cannot be fetched or opened.
        """
        if address not in self._clients:
            self._clients[address] = self._connect(address, self._epochs)
        return self._clients[address]

    def close_images(self, needed: Collection[str] = ()) -> None:
        """Close the images that are not among ``needed``; connections to peers are shared and stay open."""
        for address in [address for address in self._clients if is_image(address) and address not in needed]:
            self._clients.pop(address).close()
