"""Parse lines about processes (out of memory, stuck in the kernel) into findings without a device. Pure."""

from kubemend.agent.health import cgroup_paths
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.kmsg import line_findings
from kubemend.agent.health.kmsg.grammar import oom, stuck
from kubemend.agent.health.kmsg.line_findings import Seen
from kubemend.agent.health.state import evidence
from kubemend.agent.model.findings import Finding, FindingKind


class ProcessLines:
    """Parses lines about processes. It keeps the last killed process: two lines report the same death."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._summarised: int | None = None

    def read(self, text: str, *, seen: Seen) -> tuple[Finding, ...]:
        """Return the findings in a line: one at most."""
        if (killed := oom.parse(text)) is not None:
            return self._killed(killed, text=text, seen=seen)
        if (line := stuck.parse(text)) is not None:
            kind = FindingKind.SOFT_LOCKUP if line.soft_lockup else FindingKind.HUNG_TASK
            return (
                line_findings.make(
                    kind,
                    action=self._catalog.action(FaultKey(kind)),
                    text=text,
                    seen=seen,
                    pid=line.pid,
                    process_name=line.name,
                    facts=((evidence.SECONDS, str(line.seconds)),),
                ),
            )
        return ()

    def _killed(self, line: oom.OomLine, *, text: str, seen: Seen) -> tuple[Finding, ...]:
        previous, self._summarised = self._summarised, line.pid if line.cgroup is not None else None
        if line.cgroup is None and previous == line.pid:
            return ()
        cgroup = line.cgroup or ""
        kind = FindingKind.OOM_KILL
        return (
            line_findings.make(
                kind,
                action=self._catalog.action(FaultKey(kind)),
                text=text,
                seen=seen,
                pid=line.pid,
                process_name=line.name,
                facts=(
                    (evidence.CONTAINER_ID, cgroup_paths.container_id(cgroup)),
                    (evidence.POD_UID, cgroup_paths.pod_uid(cgroup)),
                    (evidence.OOM_SCOPE, "node" if line.of_node else "cgroup"),
                ),
            ),
        )
