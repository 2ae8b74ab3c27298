"""What runs only at the hub: the registrar of the fleet, and the fleet as pages."""
