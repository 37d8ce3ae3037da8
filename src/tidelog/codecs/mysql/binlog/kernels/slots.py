"""Indexes of the arrays that the scanner and its kernels share, and the kernel's stop codes.

numba's cache depends on the time stamp of a kernel's own file only: touch `kernels.scan` when this
one changes.
"""

from __future__ import annotations

# Indexes of the state array, which carries everything from one call to the next.
OFFSET = 0  # 64-bit end of the last event in its file
FILE = 1  # the file's number, shifted: position = FILE | OFFSET
IN_GROUP = 2
GROUP_START = 3  # packed position of the open group
RECORD_POSITION = 4  # the position of the group's records: GROUP_START, or that of an XA COMMIT
COMMIT_TS = 5  # microseconds since 1970
NEXT_ORDINAL = 6
BEGUN = 7  # the group ends with XID, COMMIT or ROLLBACK
STANDALONE = 8  # the group (MariaDB) ends with its first statement
HELD = 9  # the group's rows are not yielded: XA, neither committed nor rolled back
LAST_POSITION = 10  # (position, ordinal) of the last record counted, or what to resume after
LAST_ORDINAL = 11
CHECKSUM = 12  # events end in a CRC32
MODE = 13
SOURCES = 14  # number of used rows of the table of GTID sources
SOURCE = 15  # the last GTID's source
ROW_AT = 16  # bytes of event CURSOR whose rows were processed, 0: not begun
CURSOR = 17  # out: index of the event that stopped the kernel
RECORDS = 18  # out: records written
PAYLOAD_BYTES = 19  # out: payload bytes written
GTIDS = 20  # out: GTIDs written
EVENT_START = 21  # out: of the event at CURSOR, offsets in the file; in: of all events, if INNER
EVENT_END = 22
NEED = 23  # out: payload bytes that the next row needs, if FULL
STATE_SLOTS = 24

# MODE
WHOLE = 0  # as received
INFLATED = 1  # no checksums; headers have the position, but not the length
INNER = 2  # from a transaction payload: no checksums, no positions of their own

# Indexes of a table.
SCHEMA = 0
COLUMNS = 1  # -1: its rows can't be split
JSON_COLUMNS = 2
FIRST_COLUMN = 3  # the index of its first column in ``walks``
FIRST_STEP = 4  # the index of a whole row's first step in ``steps``
STEPS = 5
TAIL = 6  # bytes after the last step
MAP_START = 7  # the position of the table map's body in ``maps``
MAP_END = 8
CHANGED_BY = 9  # GROUP_START of the last group with rows of it
NOTICE = 10  # the changes to notice: DELETED, REKEYED
NOTICED = 11  # out: the noticed changes
LOOSE = 12  # the lengths of values are unknown: dropped rows may not fit
LEFT_OUT = 13  # number of columns that are left out of payloads
TABLE_SLOTS = 14

DELETED = 1  # rows were deleted
REKEYED = 2  # an update changed columns that ``walks`` marks

# Flags of a column, in ``walks``.
IS_LEFT_OUT = 1
IS_JSON = 2

WATCHED = -1  # SCHEMA of a table whose rows stop the kernel

# Why the kernel stopped at event CURSOR. From MALFORMED up it is an error.
END = 0
SPECIAL = 1  # not processed: Python parses it
FULL = 2  # out of room, in the middle of event CURSOR if ROW_AT
WATCHED_ROW = 3  # one record was written, of a watched table
MALFORMED = 4
BAD_CHECKSUM = 5
OUT_OF_ORDER = 6
NESTED = 7
OUTSIDE = 8
UNMAPPED = 9
COLUMN_COUNT = 10
TORN_ROW = 11
