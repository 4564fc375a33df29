"""Reads /metrics in both of its forms with the parsers of Prometheus' own client.

metrics.py URL TOKENS: of a worker that has given one answer of so many tokens.
"""

import sys
import urllib.request

from prometheus_client import parser as classic
from prometheus_client.openmetrics import parser as openmetrics

FORMS = [
    ("application/openmetrics-text", openmetrics.text_string_to_metric_families),
    ("text/plain", classic.text_string_to_metric_families),
]


def ask(url, media_type):
    request = urllib.request.Request(url + "/metrics", headers={"Accept": media_type})
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"].startswith(media_type), answer.headers
        return answer.read().decode()


def check(families, tokens):
    """What was said is what was meant, and each family has help and a type."""
    values = {}
    for family in families.values():
        assert family.documentation and family.type != "unknown", family
        for sample in family.samples:
            values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    assert values["worker_orcd_request_generation_tokens_sum", ()] == tokens
    assert values["worker_orcd_requests_started_total", ()] == 1
    assert values["worker_orcd_requests_ended_total", (("outcome", "MAX_TOKENS"),)] == 1
    kinds = {family.type for family in families.values()}
    assert {"counter", "gauge", "histogram"} <= kinds, kinds


def main():
    url, tokens = sys.argv[1], int(sys.argv[2])
    names = []
    for media_type, parse in FORMS:
        listed = list(parse(ask(url, media_type)))
        families = {family.name: family for family in listed}
        assert len(families) == len(listed), "a family came twice"
        check(families, tokens)
        names.append(set(families))
        print(f"{media_type}: {len(families)} families")
    # An info metric is a gauge to the classic form, under its whole name.
    differ = {name.removesuffix("_info") for name in names[0] ^ names[1]}
    assert len(differ) <= 1, names[0] ^ names[1]


main()
