"""Defines formats across processes: names, subjects, message ids, headers and records.

Shared by `agent` and `hub_jobs`; standard library only, no I/O. Refusals raise `ContractError` with fault and
place. Records have a version `v`; unknown fields are ignored, unknown versions refused.
"""

from agent.contract.audit import *
from agent.contract.batch import *
from agent.contract.cbor import *
from agent.contract.checkpoint import *
from agent.contract.checks import *
from agent.contract.command import *
from agent.contract.lake import *
from agent.contract.leaf_state import *
from agent.contract.ledger import *
from agent.contract.link import *
from agent.contract.names import *
from agent.contract.reading import *
from agent.contract.receipt import *
from agent.contract.verify import *
