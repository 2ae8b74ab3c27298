"""A whole site from one file: its hub, leaves and tenants, made into the configurations of every server and
agent. Knows public keys only and opens no connection."""
