"""The definitions of what the chart and the docs make for others: gateways, Prometheus, KEDA.

They come with the others' Go modules, of which nothing is built.
"""

import yaml

from .go_programs import module_folder

ISTIO = ("istio.io/api", "v1.31.4", "kubernetes/customresourcedefinitions.gen.yaml")
ENVOY_GATEWAY = (
    "github.com/envoyproxy/gateway",
    "v1.9.1",
    "charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io_{}.yaml",
)
GATEWAY_API = (
    "sigs.k8s.io/gateway-api",
    "v1.6.0",
    "config/crd/standard/gateway.networking.k8s.io_{}.yaml",
)
PROMETHEUS = (
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "example/prometheus-operator-crd/monitoring.coreos.com_{}.yaml",
)
KEDA = ("github.com/kedacore/keda/v2", "v2.18.3", "config/crd/bases/keda.sh_{}.yaml")
WANTED = {
    "gatewayclasses": GATEWAY_API,
    "gateways": GATEWAY_API,
    "destinationrules": ISTIO,
    "envoyextensionpolicies": ENVOY_GATEWAY,
    "backendtrafficpolicies": ENVOY_GATEWAY,
    "servicemonitors": PROMETHEUS,
    "prometheusrules": PROMETHEUS,
    "scaledobjects": KEDA,
}


def foreign_crds():
    """Read the definitions of all that the chart makes for others. Raises NotToBeHadError."""
    return [_definition(plural, *source) for plural, source in WANTED.items()]


def _definition(plural, module, version, path):
    text = (module_folder(module, version) / path.format(plural)).read_text()
    named = [one for one in yaml.safe_load_all(text) if one]
    [found] = [one for one in named if one["spec"]["names"]["plural"] == plural]
    return found
