"""The fleet as pages: HTML made of what the registrar knows."""
