"""Durable records and blobs: two SQLite files, each with one writer, and files by digest beside them."""

from hames.store.blobs import Blobs
from hames.store.database import Database, Ticket, checksum
from hames.store.owners import Owner
from hames.store.plugin import STATE, STORE, Store

__all__ = ["STATE", "STORE", "Blobs", "Database", "Owner", "Store", "Ticket", "checksum"]
