"""A finding, and the report of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.analysis.doctor.catalogue import KINDS, SEVERITIES, Kind, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was noticed: an id of the catalogue, where, and the values."""

    id: str
    detail: str
    subject: str = ""
    """The tensor, setting or part it is about; empty for the pair as a whole."""

    def __post_init__(self) -> None:
        """A finding without a meaning and a way out is none."""
        assert self.id in KINDS, self.id

    @property
    def kind(self) -> Kind:
        """Severity, meaning and remedy."""
        return KINDS[self.id]

    @property
    def severity(self) -> Severity:
        """error, warning or info."""
        return self.kind.severity

    def record(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {
            "id": self.id,
            "severity": self.severity,
            "subject": self.subject,
            "detail": self.detail,
            "meaning": self.kind.meaning,
            "remedy": self.kind.remedy,
        }


@dataclass(slots=True)
class Report:
    """Everything the doctor saw. `facts` are measurements and sizes, for people and for JSON."""

    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """Whether there is no error."""
        return not self.of("error")

    def of(self, severity: Severity) -> list[Finding]:
        """Findings of one severity."""
        return [each for each in self.findings if each.severity == severity]

    @property
    def ids(self) -> set[str]:
        """Ids of all findings."""
        return {each.id for each in self.findings}

    def record(self) -> dict[str, Any]:
        """Give everything for JSON."""
        return {
            "healthy": self.is_healthy,
            "findings": [each.record() for each in self.ordered()],
            "counts": {severity: len(self.of(severity)) for severity in SEVERITIES},
            **self.facts,
        }

    def ordered(self) -> list[Finding]:
        """The worst first."""
        return sorted(self.findings, key=lambda each: SEVERITIES.index(each.severity))


def report_lines(report: Report) -> list[str]:
    """Write the report for people."""
    lines = []
    for each in report.ordered():
        subject = f" {each.subject}" if each.subject else ""
        lines.append(f"{each.severity}: {each.id}{subject}: {each.detail}")
        lines.append(f"    means: {each.kind.meaning}")
        lines.append(f"    do:    {each.kind.remedy}")
    lines += _fact_lines(report.facts)
    counts = ", ".join(f"{len(report.of(s))} {s}" for s in SEVERITIES)
    lines.append(f"{'healthy' if report.is_healthy else 'not healthy'}: {counts}")
    return lines


def _fact_lines(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    memory = facts.get("memory")
    if memory:
        parts = ", ".join(
            f"{name} {size / 1e6:.0f} MB" for name, size in memory["parts"].items() if size
        )
        lines.append(f"memory       {memory['needed'] / 1e6:.0f} MB needed ({parts})")
    for test in facts.get("self_test", ()):
        rates = " ".join("-" if r is None else f"{r:.2f}" for r in test["conditional_accept_rates"])
        lines.append(
            f"self-test    {test['part']}: {test['mean_accept_length']:.2f} tokens per round over "
            f"{test['positions']} positions; conditional accept rates {rates or '-'}"
        )
        if test["expected"] is not None:
            expected = test["expected"]
            rates = " ".join(
                "-" if r is None else f"{r:.2f}" for r in expected["conditional_accept_rates"]
            )
            lines.append(f"    record   {rates or '-'} ({expected['source']})")
        lines += [
            f"    read     {name}: a sampled first token is accepted with a chance of {chance:.3f}"
            for name, chance in test["overlaps"].items()
        ]
    return lines
