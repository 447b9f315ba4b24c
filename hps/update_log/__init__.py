"""The update log of a served store: every mutation, in the order of application, once.

Above it: parameter_server (opening, checkpoints, restores), hps/service. Below it:
csrc/update_log, which keeps the bytes.
"""

from hps.update_log.epoch import Epoch
from hps.update_log.history import History, ServedCheckpoint
from hps.update_log.log import FOLDER, OpenLog, UpdateLog, open_update_log
from hps.update_log.records import Identity, Kind, LogEntry, Mutation, decode, encode
from hps.update_log.replay import note, replay
from hps.update_log.sessions import MAX_SESSIONS, Marks, Session, Sessions

__all__ = [
    "FOLDER",
    "MAX_SESSIONS",
    "Epoch",
    "History",
    "Identity",
    "Kind",
    "LogEntry",
    "Marks",
    "Mutation",
    "OpenLog",
    "ServedCheckpoint",
    "Session",
    "Sessions",
    "UpdateLog",
    "decode",
    "encode",
    "note",
    "open_update_log",
    "replay",
]
