"""Reports as text."""

from statistics import median
from typing import Any

from outrider.analysis.baseline import BaselineReport
from outrider.analysis.bench import PLAIN, SPECULATIVE, BenchReport, runs_record
from outrider.analysis.certify import Certificate, Tally
from outrider.analysis.tables import table


def certificate_lines(certificate: Certificate) -> list[str]:
    """Give the divergences, the table by domain and by setting, and the verdict."""
    lines = [
        f"{divergence.describe()} [temperature {temperature:g}, {concurrency} at a time]"
        for temperature, concurrency, divergence in certificate.divergences
    ]
    head = ["", "compared", "identical", "ties", "errors", "acc. length", "acc. rate"]
    rows = [head]
    rows += [[name, *_cells(tally)] for name, tally in certificate.domains.items()]
    rows += [
        [f"temperature {temperature:g}, {concurrency} at a time", *_cells(tally)]
        for (temperature, concurrency), tally in certificate.settings.items()
    ]
    rows.append(["all", *_cells(certificate.total)])
    lines += table(rows)
    where = ""
    if certificate.skipped:
        where = " at temperature 0"
        skipped = ", ".join(f"{each:g}" for each in certificate.skipped)
        lines.append(
            f"not compared: temperature {skipped}, where the rejection rule promises equal "
            "distributions, not equal tokens"
        )
    lines.append(f"verdict: {certificate.verdict}{where}")
    return lines


def _cells(tally: Tally) -> list[str]:
    counts = tally.acceptance
    return [
        str(tally.comparisons),
        str(tally.identical),
        str(tally.ties),
        str(tally.errors),
        f"{counts.acceptance_length:.2f}",
        f"{counts.acceptance_rate:.0%}" if counts.verified else "-",
    ]


def bench_lines(report: BenchReport) -> list[str]:
    """Give throughput and latency of both sides, and the table by domain."""
    rows = [
        ["", "tokens/s", "TTFT ms", "TPOT ms", "p99 TPOT", "E2E ms", "acc. length", "acc. rate"]
    ]
    rows += [[side, *_speed_cells(runs_record(report.of(side)))] for side in _sides(report)]
    lines = table(rows)
    if not report.of(SPECULATIVE):
        return lines
    head = ["", "prompts", "plain tokens/s", "speculative", "speedup", "acc. length", "acc. rate"]
    lines += ["", *table([head, *(_domain_cells(report, name) for name in report.domains)])]
    ratios = report.speedups()
    same, compared = report.identical()
    lines += [
        "",
        f"speedup {median(ratios):.3f} (median of {len(ratios)} paired runs, "
        f"{min(ratios):.3f} to {max(ratios):.3f})",
        f"identical outputs: {same} of {compared}",
    ]
    return lines


def baseline_lines(report: BaselineReport) -> list[str]:
    """Give the throughput of both and their ratio."""
    rows = [["", "tokens", "seconds", "tokens/s"]]
    for name, timing in (("bare loop", report.loop), ("engine, plain", report.engine)):
        tokens, seconds = sum(timing.tokens), sum(timing.seconds)
        rows.append([name, str(tokens), f"{seconds:.2f}", f"{tokens / seconds:.2f}"])
    ratios = report.ratios
    return [
        *table(rows),
        f"engine / loop {median(ratios):.3f} (median of {len(ratios)}, "
        f"{min(ratios):.3f} to {max(ratios):.3f})",
        f"identical outputs: {report.num_identical} of {report.num_compared}",
    ]


def _sides(report: BenchReport) -> list[str]:
    return [side for side in (PLAIN, SPECULATIVE) if report.of(side)]


def _speed_cells(record: dict[str, Any]) -> list[str]:
    names = ("mean_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms")
    return [
        f"{record['output_throughput']:.1f}",
        *("-" if record[name] is None else f"{record[name]:.1f}" for name in names),
        *_acceptance_cells(record),
    ]


def _acceptance_cells(record: dict[str, Any]) -> list[str]:
    if record["acceptance_rate"] is None:
        return ["-", "-"]
    return [f"{record['acceptance_length']:.2f}", f"{record['acceptance_rate']:.0%}"]


def _domain_cells(report: BenchReport, name: str) -> list[str]:
    plain, speculative = (
        runs_record(report.of(side, domain=name)) for side in (PLAIN, SPECULATIVE)
    )
    return [
        name,
        str(sum(len(run.outputs) for run in report.of(PLAIN, repeat=0, domain=name))),
        f"{plain['output_throughput']:.1f}",
        f"{speculative['output_throughput']:.1f}",
        f"{median(report.speedups(name)):.3f}",
        *_acceptance_cells(speculative),
    ]
