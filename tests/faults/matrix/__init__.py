"""The matrix of faults: each case a test in plain words, judged by the oracle down to the tables.

A case opens an environment, hurts it, mends it where it does not mend itself, and asks for the verdict:

    def test_the_agent_of_a_leaf_is_killed(world_of: Worlds, case: Case) -> None:
        case.expected = "nothing acknowledged is lost or doubled"
        with world_of() as w:          # a hub and the leaf edge-1, linked, with devices that send
            w.leaf.agent.kill()        # the fault
            w.leaf.start()             # what a supervisor does
            w.mended()                 # the link flows, the hub holds what came meanwhile: recover_seconds
            w.load.flows()             # devices are answered again
            w.verdict()                # ends load and runs; ingest, refine, audit; the oracle

The name of the test is the name of the case. The module is its theme; a module has at most 300 lines.

* Machines: `w.hub`, `w.leaf`, `w.leaves`, each with `.agent` and `.nats` (`kill`, `end`, `freeze`, `thaw`)
  and `.start()`, `.status()`, `.said(...)` (its log), `.member` (ports and paths). An agent starts its server
  again by itself; nobody starts an agent, so the case does.
* The link: `w.link.cut()`, `stall()`, `restore()`. With `world_of(line=...)` it is a line of packets (the
  fixture `line`), and `w.link.becomes(Quality(...), ...)` makes it slow, long, lossy or broken by windows.
* The load: three devices over HTTP and one that publishes to the leaf's server. `w.load.notes` holds what
  was refused or unanswered. `world_of(devices=, direct=, leaves=, leaf=LeafSettings(...),
  hub=HubSettings(...))` change the environment. Devices at other inputs are in `world.senders`, such as
  repeat what was answered in `world.repeats`:
  `w.load.start(RequestDevice(w.leaf.member, *w.load.series(...)))`.
* A hub of three servers: `world.cluster.open_cluster_environment`.
* `w.noticed()` waits until the last fault has left its trace, such as a link that was told to be down.
* A fault that the tools do not know is noted with `w.injected.add("what", trace)`, where `trace(since)` says
  what was seen of it; without a trace the case fails: the fault did not happen. `injected.repaired`
  notes its repair.
* `w.verdict(Terms(gone=True))` where the fault destroys the only copy, or a class discards: what is gone must
  then be named by the audit. `Terms(seconds=)` is the bound in which all must have come.
* A wait is for a condition with a bound that a busy machine keeps; only a fault itself `w.lasts(seconds)`.

`BACKLOG=10GB` makes the backlog of the case about bytes so large, `FLEET=50` the fleet.
`make faults CASE="the agent of a leaf is killed" SEED=7` runs the cases whose names contain these words.
"""
