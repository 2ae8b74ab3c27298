"""The input `prometheus`."""

from agent.leaf.inputs.prometheus.input import PrometheusInput, PrometheusOptions

__all__ = ["PrometheusInput", "PrometheusOptions"]
