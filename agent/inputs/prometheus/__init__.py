"""The input `prometheus`."""

from agent.inputs.prometheus.input import PrometheusInput, PrometheusOptions

__all__ = ["PrometheusInput", "PrometheusOptions"]
