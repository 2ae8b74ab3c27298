"""The input `mqtt`."""

from agent.inputs.mqtt.input import MqttInput
from agent.inputs.mqtt.options import MqttOptions

__all__ = ["MqttInput", "MqttOptions"]
