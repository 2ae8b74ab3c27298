"""Maps payloads of devices and gateways to readings by `[[map]]` and presets. No I/O but the shipped files.

`schema.py` has the keys; `compiled.py` compiles them and does the work; `paths.py`, `times.py` and `senml.py`
are its parts; `payload.py` and `cbor.py` decode. Inputs call `compile_map` once and `Mapping.apply` for each
payload.
"""
