"""The formats that cross a process boundary: names, subjects, message ids, headers and records.

The one package that `agent` and `hub_jobs` share, so it uses the standard library only and does no I/O.
Whatever it refuses raises `ContractError`, whose text says what was wrong and where. Records carry a version
`v`; fields that a newer sender adds are ignored, a version that is not known is refused in words.
"""

from agent.contract.audit import *
from agent.contract.batch import *
from agent.contract.checkpoint import *
from agent.contract.checks import *
from agent.contract.command import *
from agent.contract.ledger import *
from agent.contract.link import *
from agent.contract.names import *
from agent.contract.reading import *
from agent.contract.verify import *
