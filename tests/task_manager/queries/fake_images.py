"""Images that are stores in memory."""

from contextlib import nullcontext

from weir.state.images.image_client import ImageClient


class FakeImages:
    def __init__(self, stores=None):
        self.stores, self.is_closed = stores or {}, False

    def register(self, images):
        list(images)

    def connect(self, address):
        return ImageClient(address, lambda image_id: nullcontext(self.stores[image_id]), lambda: None)

    def close(self):
        self.is_closed = True
