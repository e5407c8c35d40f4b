"""Clients of the replicated log: producers, whose records are safe once their tickets say so, and readers."""

from weir.log.admin import accept_loss as accept_loss
from weir.log.admin import create_topic as create_topic
from weir.log.admin import log_status as log_status
from weir.log.admin import move_replicas as move_replicas
from weir.log.batches import Record as Record
from weir.log.batches import RecordBatch as RecordBatch
from weir.log.errors import LogRejectedError as LogRejectedError
from weir.log.errors import LogTruncatedError as LogTruncatedError
from weir.log.errors import LogUnknownError as LogUnknownError
from weir.log.producer import Producer as Producer
from weir.log.reader import Reader as Reader
from weir.log.tickets import Ticket as Ticket
from weir.rpc.log_status import LogStatus as LogStatus
