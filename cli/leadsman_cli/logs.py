"""Log lines as JSON: one constant message, and fields; `request` is the id of the request that a
line is about, whoever wrote it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from leadsman_extproc.current import REQUEST

_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Writes a record and its `extra` fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one line."""
        fields = {name: value for name, value in vars(record).items() if name not in _OWN}
        request = REQUEST.get()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({} if request is None else {"request": request}),
            **fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json(level: str) -> None:
    """Send every log line of this process to standard error, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
