"""The input `mqtt`."""

from agent.leaf.inputs.mqtt.input import MqttInput
from agent.leaf.inputs.mqtt.options import MqttOptions

__all__ = ["MqttInput", "MqttOptions"]
