"""How right this machine's clock is, and how its readings are dated when it is not."""
