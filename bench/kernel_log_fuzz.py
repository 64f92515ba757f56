"""Mutate kernel log records and check that their readers neither fail nor invent facts.

``python -m bench.kernel_log_fuzz`` reads a million and prints JSON; ``make test`` reads fewer. Every fact of a finding
must be in its record: a cut address is not an address.
"""

import argparse
import itertools
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.kernel_samples import SAMPLES
from hack import kmsg
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.kmsg import kmsg_record, line_reader
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.state import evidence
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import Finding, FindingKind

_NOISE = b" ,:()=.'<>[]{}/#!0129afXZn\n\\\x00\xff;-_"
_ADDRESS = re.compile(r"(?=([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?))", re.IGNORECASE)
_ID = re.compile(r"id=([0-9a-f]{4})", re.IGNORECASE)
_HEX = re.compile(r"0x([0-9a-f]{1,8})", re.IGNORECASE)
_NUMBER = re.compile(r"\d+", re.ASCII)

_DERIVED = frozenset({evidence.SEVERITY, evidence.SUBCODE, evidence.SUBCODE_NAME, evidence.OOM_SCOPE})
"""Evidence in kubemend's own wording."""

_REMEMBERED = frozenset({evidence.GPU_UUID})
"""Evidence from an earlier record."""


@dataclass
class Tally:
    """Count the records. ``inventions`` are complaints about findings, with the record."""

    records: int = 0
    malformed: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    inventions: list[str] = field(default_factory=list)


def run(count: int, *, seed: int) -> Tally:
    """Read ``count`` mutated records with one reader, as the agent does. Failures are raised."""
    dice = random.Random(seed)
    reader = line_reader.LineReader(catalog_file.builtin())
    tally = Tally()
    for raw in itertools.islice(records(dice), count):
        tally.records += 1
        record = kmsg_record.parse(raw)
        if isinstance(record, kmsg_record.Malformed):
            tally.malformed += 1
            continue
        if not line_reader.may_matter(raw):
            continue
        for finding in reader.read(record.text, seen=LineContext(observed_at=0.0, boot_seconds=record.usec / 1e6)):
            tally.findings[finding.kind.value] += 1
            tally.inventions += (f"{what}: {raw!r}" for what in inventions(finding, text=record.text))
    return tally


def records(dice: random.Random) -> Iterator[bytes]:
    """Yield mutated records indefinitely: cut, stuffed, doubled, put together from two."""
    raws = [kmsg.record(text, seq=seq, usec=seq * 1000).rstrip(b"\n") for seq, text in enumerate(SAMPLES)]
    while True:
        raw = bytearray(dice.choice(raws))
        for _ in range(dice.randint(1, 4)):
            _mutate(raw, dice=dice, raws=raws)
        yield bytes(raw)


def _mutate(raw: bytearray, *, dice: random.Random, raws: list[bytes]) -> None:
    at = dice.randrange(len(raw) + 1)
    match dice.randrange(6):
        case 0:
            del raw[at : at + dice.randint(1, 12)]
        case 1:
            raw[at:at] = bytes(dice.choices(_NOISE, k=dice.randint(1, 4)))
        case 2:
            raw[at : at + 1] = bytes((dice.randrange(256),))
        case 3:
            raw[at:at] = raw[at : at + dice.randint(1, 20)]
        case 4:
            other = dice.choice(raws)
            raw[at:] = other[dice.randrange(len(other)) :]
        case _:
            del raw[at:]


def inventions(finding: Finding, *, text: str) -> Iterator[str]:
    """Yield facts of a finding that are not in the text."""
    text = f"{text} {finding.text}"  # a message of several records is joined in the finding
    numbers = {int(number) for number in _NUMBER.findall(text) if len(number) < 20}
    addresses = _addresses(text)
    device = finding.device
    if device.pci is not None and device.pci not in addresses:
        yield f"address {device.pci}"
    if finding.kind in (FindingKind.XID, FindingKind.SXID) and int(finding.code) not in numbers:
        yield f"code {finding.code}"
    for name, number in (("pid", finding.pid), ("GI", device.gpu_instance), ("CI", device.compute_instance)):
        if number is not None and number not in numbers:
            yield f"{name} {number}"
    if finding.process_name is not None and finding.process_name not in _normal(text):
        yield f"name {finding.process_name!r}"
    for name, value in finding.evidence.items():
        if name not in _DERIVED | _REMEMBERED and not _contains(text, value, numbers=numbers, addresses=addresses):
            yield f"{name} {value!r}"
    subcode = finding.evidence.get(evidence.SUBCODE)
    if subcode is not None and int(subcode) not in {int(word, 16) >> 20 & 0x3F for word in _HEX.findall(text)}:
        yield f"sub-code {subcode}"


def _contains(text: str, value: str, *, numbers: set[int], addresses: set[PciAddress]) -> bool:
    if value in text or value.replace("-", "_") in text:
        return True
    if value.isdecimal():
        return int(value) in numbers or int(value) in {int(word, 16) for word in _HEX.findall(text)}
    return value in map(str, addresses)


def _addresses(text: str) -> set[PciAddress]:
    named = {PciAddress.parse(match[1]) for match in _ADDRESS.finditer(text)}
    ids = [int(word, 16) for word in _ID.findall(text)]
    return named | {
        PciAddress(port.domain, bus=number >> 8, device=number >> 3 & 0x1F, function=number & 7)
        for port in named
        for number in ids
    }


def _normal(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text).split())


def main() -> int:
    """Fuzz and print the tally. Returns 1 where a fact was invented."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=79)
    options = parser.parse_args()
    before = time.perf_counter()
    tally = run(options.records, seed=options.seed)
    print(
        json.dumps(
            {
                "records": tally.records,
                "malformed": tally.malformed,
                "findings": dict(tally.findings.most_common()),
                "inventions": tally.inventions[:20],
                "invented": len(tally.inventions),
                "seconds": round(time.perf_counter() - before, 1),
            },
            indent=2,
        )
    )
    return 1 if tally.inventions else 0


if __name__ == "__main__":
    sys.exit(main())
